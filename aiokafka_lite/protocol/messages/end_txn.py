"""EndTxn (key 26): commit or abort a transaction (KIP-98).

v3 is flexible; v4 abortable errors, v5 a new epoch for each transaction (KIP-890).
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Route,
    boolean,
    int16,
    int32,
    int64,
    string,
)


class EndTxnResponse(Response):
    """The outcome, with the producer's next epoch."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    producer_id: int = int64("5+", default=-1, ignorable=True)  # KIP-890
    producer_epoch: int = int16("5+", default=-1, ignorable=True)  # KIP-890


class EndTxnRequest(
    Request[EndTxnResponse], key=26, versions="0-5", flexible="3+", route=Route.COORDINATOR
):
    """Commit or abort."""

    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    committed: bool = boolean("0+")
