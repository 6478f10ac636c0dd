"""What frames on the wire contain."""

from __future__ import annotations

from aiokafka_lite.protocol import codec
from aiokafka_lite.protocol.framing import RequestFrame, read_correlation_id
from aiokafka_lite.protocol.registry import REQUESTS
from aiokafka_lite.protocol.schema import Request, Response


def request_in(frame: RequestFrame) -> Request[Response]:
    """Decode a request's body."""
    message = codec.decode(REQUESTS[frame.api_key], frame.version, frame.body)
    return message.from_version(frame.version)


def correlation_id_of(response: memoryview) -> int:
    correlation_id: int = read_correlation_id(response)[0]
    return correlation_id
