"""DescribeTransactions (key 65): the state of transactional ids (KIP-664)."""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    int16,
    int32,
    int64,
    string,
)


class TopicData(Struct):
    """Partitions of one topic."""

    topic: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class TransactionState(Struct):
    """A transactional id; while a transaction ends, only partitions without a marker are listed."""

    error_code: int = int16("0+")
    transactional_id: str = string("0+")
    transaction_state: str = string("0+")
    transaction_timeout_ms: int = int32("0+")
    transaction_start_time_ms: int = int64("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    topics: list[TopicData] = array(TopicData, "0+")


class DescribeTransactionsResponse(Response):
    """The states, in the order of the request."""

    throttle_time_ms: int = int32("0+")
    transaction_states: list[TransactionState] = array(TransactionState, "0+")


class DescribeTransactionsRequest(
    Request[DescribeTransactionsResponse],
    key=65,
    versions="0",
    flexible="0+",
):
    """Ask the coordinator of transactional ids what they are doing."""

    transactional_ids: list[str] = array(string, "0+")
