"""Encode and decode messages: `encode(message, version)` and `decode(cls, version, view)`.

Codecs are compiled once for each class and version, on first use (see decoding.py, encoding.py).
"""

from __future__ import annotations

import struct
from typing import Final, TypeVar, cast

from aiokafka_lite._compat import Buffer
from aiokafka_lite.errors import IllegalArgumentError, KafkaProtocolError, UnsupportedVersionError
from aiokafka_lite.protocol.decoding import Decoder, Head, compile_decoder
from aiokafka_lite.protocol.encoding import Encoder, Part, compile_encoder
from aiokafka_lite.protocol.schema import Blob, Message

M = TypeVar("M", bound=Message)
B = TypeVar("B", bound=Blob)

_decoders: Final[dict[tuple[type[Message], int, Head], Decoder[Message]]] = {}
_encoders: Final[dict[tuple[type[Message], int], Encoder[Message]]] = {}
_INT16: Final = struct.Struct(">h")


def decoder(cls: type[M], version: int, head: Head = Head.NONE) -> Decoder[M]:
    """Return the compiled decoder: it takes a view of bytes and uses them up, or raises.

    With a `head`, it takes a view of both.

    Raises:
        UnsupportedVersionError: The class has no such version.
    """
    compiled = _decoders.get((cls, version, head))
    if compiled is None:
        _check_version(cls, version)
        compiled = _decoders[cls, version, head] = compile_decoder(cls, version, head)
    return cast("Decoder[M]", compiled)


def encoder(cls: type[M], version: int) -> Encoder[M]:
    """Return the compiled encoder: it hands the message's parts to an append function.

    Raises:
        UnsupportedVersionError: The class has no such version.
    """
    compiled = _encoders.get((cls, version))
    if compiled is None:
        _check_version(cls, version)
        compiled = _encoders[cls, version] = cast("Encoder[Message]", compile_encoder(cls, version))
    return compiled


def _check_version(cls: type[Message], version: int) -> None:
    if not cls.versions.covers(version):
        raise UnsupportedVersionError(
            f"{cls.__name__} has the versions {cls.versions}, not {version}"
        )


def decode(cls: type[M], version: int, data: Buffer) -> M:
    """Decode one message; records in it are slices of `data`, which must stay unchanged.

    Raises:
        KafkaProtocolError: The bytes are not such a message and nothing else.
        UnsupportedVersionError: The class has no such version.
    """
    return decoder(cls, version)(memoryview(data))


def encode(message: Message, version: int) -> bytes:
    """Encode one message.

    Raises:
        UnsupportedVersionError: The class has no such version, or it cannot carry the content.
        IllegalArgumentError: A value does not fit its field.
    """
    return b"".join(encode_parts(message, version))


def encode_parts(message: Message, version: int) -> list[Part]:
    """Encode one message as buffers to be sent in a row; record sets among them are not copied.

    Raises: as `encode`.
    """
    parts: list[Part] = []
    encode_into = encoder(type(message), version)
    try:
        encode_into(message, parts.append)
    except (struct.error, AttributeError, TypeError, ValueError) as error:
        name = type(message).__name__
        raise IllegalArgumentError(f"{name} v{version}: a value misfits: {error}") from error
    return parts


def encode_versioned(blob: Blob, version: int) -> bytes:
    """Encode an embedded message behind its version, as two bytes.

    Raises: as `encode`.
    """
    return _INT16.pack(version) + encode(blob, version)


def decode_versioned(cls: type[B], data: Buffer) -> B:
    """Decode an embedded message that says its version in its first two bytes.

    A version newer than the class knows is read as the newest that it knows, if the class allows
    that; what follows is left alone.

    Raises:
        KafkaProtocolError: The bytes are not such a message and nothing else.
        UnsupportedVersionError: The version is not one that the class has.
    """
    view = memoryview(data)
    if len(view) < _INT16.size:
        raise KafkaProtocolError(f"{cls.__name__}: {len(view)} bytes hold no version")
    (version,) = _INT16.unpack_from(view)
    if version > cls.versions.last and cls.is_forward_compatible:
        return decoder(cls, cls.versions.last)(view[_INT16.size :], True)
    return decoder(cls, version)(view[_INT16.size :])
