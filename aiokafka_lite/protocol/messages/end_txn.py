"""EndTxn (key 26): commit or abort a transaction (KIP-98).

v3 is flexible; v4 abortable errors, v5 a new epoch for each transaction (KIP-890).
"""

from __future__ import annotations

from typing import Final

from aiokafka_lite._compat import override
from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    boolean,
    int16,
    int32,
    int64,
    string,
)

_FIRST_TO_BUMP_EPOCH: Final = 5  # in transactions of version 2 (KIP-890)


class EndTxnResponse(Response):
    """The outcome, with the producer's next epoch."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    producer_id: int = int64("5+", default=-1, ignorable=True)  # KIP-890
    producer_epoch: int = int16("5+", default=-1, ignorable=True)  # KIP-890


class EndTxnRequest(Request[EndTxnResponse], key=26, versions="0-5", flexible="3+"):
    """Commit or abort."""

    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    committed: bool = boolean("0+")

    @property
    @override
    def usable_max_version(self) -> int:
        return _FIRST_TO_BUMP_EPOCH - 1
