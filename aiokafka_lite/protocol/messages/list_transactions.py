"""ListTransactions (key 66): the transactional ids that a broker coordinates (KIP-664)."""

from __future__ import annotations

from aiokafka_lite.protocol.fields import array, int16, int32, int64, string
from aiokafka_lite.protocol.schema import Request, Response, Struct


class TransactionState(Struct):
    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    transaction_state: str = string("0+")


class ListTransactionsResponse(Response):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    unknown_state_filters: list[str] = array(string, "0+")
    transaction_states: list[TransactionState] = array(TransactionState, "0+")


class ListTransactionsRequest(
    Request[ListTransactionsResponse], key=66, versions="0-2", flexible="0+"
):
    """An empty filter matches all."""

    state_filters: list[str] = array(string, "0+")
    producer_id_filters: list[int] = array(int64, "0+")
    duration_filter: int = int64("1+", default=-1)  # milliseconds; KIP-994
    # KIP-1152
    transactional_id_pattern: str | None = string("2+", nullable="2+", default=None)
