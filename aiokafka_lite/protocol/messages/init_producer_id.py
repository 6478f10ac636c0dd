"""InitProducerId (key 22): get a producer id; fence earlier producers of a transactional id.

v2 is flexible; v3 resume with an id and epoch (KIP-360); v6 two-phase commit (KIP-939), unstable.
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    boolean,
    int16,
    int32,
    int64,
    string,
)


class InitProducerIdResponse(Response):
    """The producer id and epoch."""

    throttle_time_ms: int = int32("0+", ignorable=True)
    error_code: int = int16("0+")
    producer_id: int = int64("0+", default=-1)
    producer_epoch: int = int16("0+")
    ongoing_txn_producer_id: int = int64("6+", default=-1)  # KIP-939
    ongoing_txn_producer_epoch: int = int16("6+", default=-1)  # KIP-939


class InitProducerIdRequest(
    Request[InitProducerIdResponse],
    key=22,
    versions="0-6",
    flexible="2+",
    is_newest_unstable=True,
):
    """Ask for a producer id; with a null transactional id only for idempotence."""

    transactional_id: str | None = string("0+", nullable="0+")
    transaction_timeout_ms: int = int32("0+")
    producer_id: int = int64("3+", default=-1)  # KIP-360
    producer_epoch: int = int16("3+", default=-1)  # KIP-360
    enable2_pc: bool = boolean("6+")  # KIP-939
    keep_prepared_txn: bool = boolean("6+")  # KIP-939
