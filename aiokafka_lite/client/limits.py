"""How much a broker is believed: sizes of answers, throttles; and where ids start over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from aiokafka_lite.client.exchange import Pending
from aiokafka_lite.protocol.messages.fetch import FetchRequest
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from aiokafka_lite.protocol.schema import Response

MAX_CORRELATION_ID: Final = 2**31 - 1
MAX_SMALL_ANSWER_BYTES: Final = 16 * 1024 * 1024
MAX_THROTTLE_S: Final = 60.0
# The two answers whose size follows from the cluster, not from what was asked.
LARGE_ANSWERS: Final = (FetchRequest, MetadataRequest)


def answer_limit_bytes(in_flight: Iterable[Pending[Response]], max_frame_bytes: int) -> int:
    """Return how large an answer may be, given what was asked."""
    if any(issubclass(each.request_class, LARGE_ANSWERS) for each in in_flight):
        return max_frame_bytes
    return min(MAX_SMALL_ANSWER_BYTES, max_frame_bytes)
