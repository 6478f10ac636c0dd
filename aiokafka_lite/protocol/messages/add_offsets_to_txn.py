"""AddOffsetsToTxn (key 25): announce a group whose offsets a transaction commits (KIP-98).

v3 is flexible; v4 abortable errors (KIP-890).
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import Request, Response, int16, int32, int64, string


class AddOffsetsToTxnResponse(Response):
    """The outcome."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")


class AddOffsetsToTxnRequest(
    Request[AddOffsetsToTxnResponse], key=25, versions="0-4", flexible="3+"
):
    """Add a group's partition of the offsets topic to a transaction."""

    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    group_id: str = string("0+")
