"""Encode and decode messages: `encode(message, version)` and `decode(cls, version, view)`.

Codecs are compiled once for each class and version, on first use. Unknown versions raise
UnsupportedVersionError.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cache
from typing import Final, TypeVar

from aiokafka_lite._compat import Buffer
from aiokafka_lite.errors import IllegalArgumentError, KafkaProtocolError, UnsupportedVersionError
from aiokafka_lite.protocol.decoding import (
    DecoderInSteps,
    DecoderSource,
    Head,
    MessageDecoder,
    PiecewiseDecoder,
    PiecewiseSource,
)
from aiokafka_lite.protocol.encoding import Encoder, EncoderInSteps, EncoderSource, Part
from aiokafka_lite.protocol.schema import Blob, Message, RecordKey, Struct

M = TypeVar("M", bound=Message)
B = TypeVar("B", bound=Blob)
K = TypeVar("K", bound=RecordKey)

_INT16: Final = struct.Struct(">h")


@cache
def decoder(cls: type[M], version: int, head: Head = Head.NONE) -> MessageDecoder[M]:
    """Return a decoder. It takes a view of the message, with its header if a `head` is given."""
    _check_version(cls, version)
    return DecoderSource(cls, version, head).compile(f"decode {cls.__name__} v{version}")


@cache
def piecewise_decoder(
    cls: type[M], version: int, element: type[Struct], head: Head
) -> PiecewiseDecoder[M]:
    _check_version(cls, version)
    return PiecewiseSource(cls, version, head, element).compile(
        f"decode {cls.__name__} v{version} piecewise"
    )


@cache
def encoder(cls: type[M], version: int) -> Encoder[M]:
    """Return an encoder, which passes the message's parts to an append function."""
    _check_version(cls, version)
    return _encoder_source(cls, version, in_steps=False).compile(
        f"encode {cls.__name__} v{version}"
    )


@cache
def decoder_in_steps(cls: type[M], version: int) -> DecoderInSteps[M]:
    """As `decoder`, but as a generator that yields after a number of elements."""
    _check_version(cls, version)
    return DecoderSource(cls, version, Head.NONE, in_steps=True).compile(
        f"decode {cls.__name__} v{version} in steps"
    )


@cache
def encoder_in_steps(cls: type[M], version: int) -> EncoderInSteps[M]:
    """As `encoder`, but as a generator that yields after a number of elements."""
    _check_version(cls, version)
    return _encoder_source(cls, version, in_steps=True).compile(
        f"encode {cls.__name__} v{version} in steps"
    )


def _encoder_source(cls: type[Message], version: int, *, in_steps: bool) -> EncoderSource:
    signature = f"def encode_{cls.__name__}(message, append):"
    source = EncoderSource(signature, cls, version, in_steps=in_steps)
    source.write_struct(cls, "message", cls.__name__)
    source.flush()
    source.end("")
    return source


def _check_version(cls: type[Message], version: int) -> None:
    if not cls.versions.covers(version):
        raise UnsupportedVersionError(
            f"{cls.__name__} is supported in versions {cls.versions}, not in version {version}"
        )


def decode(cls: type[M], version: int, data: Buffer) -> M:
    """Decode one message. Its record sets are slices of `data`, which must stay unchanged."""
    message: M = decoder(cls, version)(memoryview(data))
    return message


def encode(message: Message, version: int) -> bytes:
    """Encode one message. IllegalArgumentError: a value does not fit its field."""
    return b"".join(encode_parts(message, version))


def encode_parts(message: Message, version: int) -> list[Part]:
    """Encode one message as buffers to send in a row, without copying record sets."""
    parts: list[Part] = []
    encode_into = encoder(type(message), version)
    try:
        encode_into(message, parts.append)
    except MISFITS as error:
        raise misfit(message, version, error) from error
    return parts


MISFITS: Final = (struct.error, AttributeError, TypeError, ValueError)
"""Encoders' exceptions for values that do not fit; see `misfit`."""


def misfit(message: Message, version: int, error: BaseException) -> IllegalArgumentError:
    return IllegalArgumentError(
        f"{type(message).__name__} v{version}: a field has an invalid value: {error}"
    )


def encode_versioned(blob: Blob, version: int) -> bytes:
    """Encode an embedded message after its version, as two bytes. Raises as `encode`."""
    return _INT16.pack(version) + encode(blob, version)


def decode_versioned(cls: type[B], data: Buffer) -> B:
    """Decode a message after its version. A forward compatible one may be newer."""
    view = memoryview(data)
    if len(view) < _INT16.size:
        raise KafkaProtocolError(
            f"{cls.__name__} is incomplete: {len(view)} bytes are too few for the version field"
        )
    (version,) = _INT16.unpack_from(view)
    message: B
    if version > cls.versions.last and cls.is_forward_compatible:
        message = decoder(cls, cls.versions.last)(view[_INT16.size :], True)
    else:
        message = decoder(cls, version)(view[_INT16.size :])
    return message


def encode_key(key: RecordKey) -> bytes:
    return _INT16.pack(key.record_type) + encode(key, 0)


def decode_key(classes: Mapping[int, type[K]], data: Buffer) -> K | None:
    """Decode the key of a coordinator's record, if its type is known. Raises as `decode`."""
    view = memoryview(data)
    if len(view) < _INT16.size:
        raise KafkaProtocolError(
            f"a record's key of {len(view)} bytes is too short for a record type"
        )
    (record_type,) = _INT16.unpack_from(view)
    cls = classes.get(record_type)
    return None if cls is None else decode(cls, 0, view[_INT16.size :])
