"""Describe transactions and their producers (KIP-664)."""

from __future__ import annotations

from aiokafka_lite.protocol.fields import array, int16, int32, int64, string
from aiokafka_lite.protocol.schema import Request, Response, Struct


# --- DescribeTransactions (key 65) ------------------------------------------------------------
class TopicData(Struct):
    topic: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class TransactionState(Struct):
    """While a transaction ends, only partitions without a marker are listed."""

    error_code: int = int16("0+")
    transactional_id: str = string("0+")
    transaction_state: str = string("0+")
    transaction_timeout_ms: int = int32("0+")
    transaction_start_time_ms: int = int64("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    topics: list[TopicData] = array(TopicData, "0+")


class DescribeTransactionsResponse(Response):
    throttle_time_ms: int = int32("0+")
    transaction_states: list[TransactionState] = array(TransactionState, "0+")


class DescribeTransactionsRequest(
    Request[DescribeTransactionsResponse],
    key=65,
    versions="0",
    flexible="0+",
):
    """Ask the coordinator for the states of transactional ids (KIP-664)."""

    transactional_ids: list[str] = array(string, "0+")


# --- DescribeProducers (key 61) ---------------------------------------------------------------
class ProducerState(Struct):
    """A producer, and the offset at which its open transaction starts, or -1."""

    producer_id: int = int64("0+")
    producer_epoch: int = int32("0+")
    last_sequence: int = int32("0+", default=-1)
    last_timestamp: int = int64("0+", default=-1)
    coordinator_epoch: int = int32("0+")
    current_txn_start_offset: int = int64("0+", default=-1)


class PartitionResponse(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    active_producers: list[ProducerState] = array(ProducerState, "0+")


class TopicResponse(Struct):
    name: str = string("0+")
    partitions: list[PartitionResponse] = array(PartitionResponse, "0+")


class DescribeProducersResponse(Response):
    throttle_time_ms: int = int32("0+")
    topics: list[TopicResponse] = array(TopicResponse, "0+")


class TopicRequest(Struct):
    name: str = string("0+")
    partition_indexes: list[int] = array(int32, "0+")


class DescribeProducersRequest(
    Request[DescribeProducersResponse], key=61, versions="0", flexible="0+"
):
    """Ask the leaders of partitions for active producers (KIP-664)."""

    topics: list[TopicRequest] = array(TopicRequest, "0+")
