"""Headers and size prefixes: messages to the bytes of a socket, and back.

A *frame* is the header and message after the 4-byte size prefix. It must stay unchanged while the
message's record sets are used. Callers always use the newest layout of messages.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Final, NamedTuple, TypeAlias, TypeVar, cast

from aiokafka_lite.errors import KafkaProtocolError, UnsupportedVersionError
from aiokafka_lite.protocol import codec, varint
from aiokafka_lite.protocol.decoding import Head, PiecewiseDecoder
from aiokafka_lite.protocol.encoding import Part
from aiokafka_lite.protocol.registry import REQUESTS
from aiokafka_lite.protocol.schema import Message, Request, Response, Struct
from aiokafka_lite.protocol.source import Steps

R = TypeVar("R", bound=Response)

_SIZE: Final = struct.Struct(">i")
ResponseDecoder: TypeAlias = Callable[[memoryview], R]
"""Takes a frame; what it raises is `decode_response`'s."""

_REQUEST_HEAD: Final = struct.Struct(">ihhih")  # size, API key, version, correlation, client id
_FRAME_HEAD: Final = struct.Struct(">hhih")
_RESPONSE_HEAD: Final = struct.Struct(">ii")
_CORRELATION_ID: Final = struct.Struct(">i")
_ERROR_CODE: Final = struct.Struct(">h")

# UNSUPPORTED_VERSION for ApiVersions, in version 0 and without ranges.
_REFUSAL: Final = memoryview(struct.pack(">ihi", 0, UnsupportedVersionError.errno, 0))
_NO_TAGGED_FIELDS: Final = b"\0"
_LARGE_PART_BYTES: Final = 4096
"""Parts from this size on are sent as they are; smaller ones are cheaper to copy together."""


# --- Requests --------------------------------------------------------------------------------
def encode_request(
    request: Request[Response], version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """Encode a request with its header and the size prefix. Raises as `codec.encode`."""
    name = b"" if client_id is None else client_id.encode()
    tags = _NO_TAGGED_FIELDS if request.flexible.covers(version) else b""
    parts = codec.encode_parts(request.for_version(version), version)
    head_size = _REQUEST_HEAD.size - _SIZE.size + len(name) + len(tags)
    head = _REQUEST_HEAD.pack(
        head_size + sum(map(len, parts)),
        request.api_key,
        version,
        correlation_id,
        -1 if client_id is None else len(name),
    )
    return b"".join((head, name, tags, *parts))


@lru_cache(1_000)  # clients may send any key
def _is_flexible(api_key: int, version: int) -> bool:
    cls = REQUESTS.get(api_key)
    return cls is not None and cls.flexible.covers(version)


class RequestFrame(NamedTuple):
    """A request whose header is decoded and whose body is still bytes."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: memoryview


def decode_request(frame: memoryview) -> RequestFrame:
    try:
        api_key, version, correlation_id, size = _FRAME_HEAD.unpack_from(frame)
        pos = _FRAME_HEAD.size
        client_id = None
        if size != -1:
            if not 0 <= size <= len(frame) - pos:
                raise varint.bad_length("client_id", size, len(frame) - pos)
            client_id = str(frame[pos : pos + size], "utf-8")
            pos += size
        if _is_flexible(api_key, version):
            pos = varint.skip_tagged_fields(frame, pos)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise KafkaProtocolError(f"{len(frame)} bytes are not a valid request: {error}") from error
    return RequestFrame(api_key, version, correlation_id, client_id, frame[pos:])


# --- Responses -------------------------------------------------------------------------------
@cache
def _has_tagged_header(cls: type[Response], version: int) -> bool:
    return cls.flexible.covers(version) and not cls.has_plain_header


def encode_response(response: Response, version: int, correlation_id: int) -> bytes:
    """Encode a response with its header and the size prefix. Raises as `codec.encode`."""
    return b"".join(encode_response_parts(response, version, correlation_id))


def encode_response_parts(response: Response, version: int, correlation_id: int) -> list[Part]:
    """Encode a response as buffers to send in a row, without copying large record sets."""
    tags = _NO_TAGGED_FIELDS if _has_tagged_header(type(response), version) else b""
    parts = codec.encode_parts(response.for_version(version), version)
    size = _CORRELATION_ID.size + len(tags) + sum(map(len, parts))
    head = _RESPONSE_HEAD.pack(size, correlation_id)
    if size < _LARGE_PART_BYTES:
        return [b"".join((head, tags, *parts))]
    small: list[Part] = [head, tags]
    buffers: list[Part] = []
    _gather(parts, small, buffers)
    if small:
        buffers.append(b"".join(small))
    return buffers


def encode_response_in_steps(
    response: Response, version: int, correlation_id: int
) -> Steps[list[Part]]:
    """As `encode_response_parts`, but yield after a number of elements."""
    tags = _NO_TAGGED_FIELDS if _has_tagged_header(type(response), version) else b""
    parts: list[Part] = []
    small: list[Part] = [b"", tags]
    buffers: list[Part] = []
    message = yield from response.for_version_in_steps(version)
    try:
        for _ in codec.encoder_in_steps(type(message), version)(message, parts.append):
            _gather(parts, small, buffers)
            buffers.append(b"".join(small))
            parts.clear()
            small.clear()
            yield
    except codec.MISFITS as error:
        raise codec.misfit(message, version, error) from error
    _gather(parts, small, buffers)
    size = _CORRELATION_ID.size + sum(map(len, small)) + sum(map(len, buffers))
    head = _RESPONSE_HEAD.pack(size, correlation_id)
    if not buffers:
        small[0] = head
        return [b"".join(small)]
    if small:
        buffers.append(b"".join(small))
    buffers[0] = head + buffers[0]
    return buffers


def _gather(parts: list[Part], small: list[Part], buffers: list[Part]) -> None:
    """Append large parts to `buffers`, each after the small ones before it, joined."""
    for part in parts:
        if len(part) < _LARGE_PART_BYTES:
            small.append(part)
            continue
        if small:
            buffers.append(b"".join(small))
            small.clear()
        buffers.append(part)


read_correlation_id: Final = _CORRELATION_ID.unpack_from
"""Take a response of 4 bytes or more; return the correlation id in a tuple."""


def response_decoder(request_cls: type[Request[R]], version: int) -> ResponseDecoder[R]:
    """Return a function that decodes responses. ApiVersions may be in version 0 (KIP-511)."""
    cls = cast("type[R]", request_cls.response)
    decode = _frame_decoder(cls, version)
    if not cls.has_plain_header:
        return decode
    decode_oldest = _frame_decoder(cls, 0)

    def decode_whichever(frame: memoryview) -> R:
        if not _is_unsupported_version(frame):
            return decode(frame)
        try:
            return decode_oldest(frame)
        except KafkaProtocolError:
            return decode_oldest(_REFUSAL)  # librdkafka's mock cluster has an invalid layout

    return decode_whichever


@cache
def piecewise_decoder(
    request_cls: type[Request[R]], version: int, element: type[Struct]
) -> PiecewiseDecoder[R]:
    """Return a `PiecewiseDecoder` of responses whose layout is the same in all versions."""
    cls = cast("type[R]", request_cls.response)
    head = Head.TAGGED if _has_tagged_header(cls, version) else Head.PLAIN
    return codec.piecewise_decoder(cls, version, element, head)


def _frame_decoder(cls: type[R], version: int) -> ResponseDecoder[R]:
    head = Head.TAGGED if _has_tagged_header(cls, version) else Head.PLAIN
    decode = codec.decoder(cls, version, head)
    if cls.from_version is Message.from_version:  # nothing is rearranged
        return decode
    return lambda frame: decode(frame).from_version(version)


def _is_unsupported_version(frame: memoryview) -> bool:
    """Every version of the response to ApiVersions starts with its error code."""
    if len(frame) < _CORRELATION_ID.size + _ERROR_CODE.size:
        return False
    error_code = _ERROR_CODE.unpack_from(frame, _CORRELATION_ID.size)[0]
    return bool(error_code == UnsupportedVersionError.errno)
