"""AddPartitionsToTxn (key 24): announce partitions that a transaction writes to (KIP-98).

v3 is flexible, and the newest for clients: v4 and v5 are for brokers, with several transactions at
once (KIP-890).
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Route,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int64,
    string,
)


class AddPartitionsToTxnPartitionResult(Struct):
    """The outcome for one partition."""

    partition_index: int = int32("0+")
    partition_error_code: int = int16("0+")


class AddPartitionsToTxnTopicResult(Struct):
    """The outcomes for one topic."""

    name: str = string("0+")
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(
        AddPartitionsToTxnPartitionResult, "0+"
    )


class AddPartitionsToTxnResult(Struct):
    """The outcomes for one transaction."""

    transactional_id: str = string("4+")
    topic_results: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult, "4+")


class AddPartitionsToTxnResponse(Response):
    """The outcome by partition."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("4+", ignorable=True)
    # KIP-890
    results_by_transaction: list[AddPartitionsToTxnResult] = array(AddPartitionsToTxnResult, "4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, "0-3"
    )


class AddPartitionsToTxnTopic(Struct):
    """Partitions of one topic."""

    name: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class AddPartitionsToTxnTransaction(Struct):
    """A transaction and its partitions."""

    transactional_id: str = string("4+")
    producer_id: int = int64("4+")
    producer_epoch: int = int16("4+")
    verify_only: bool = boolean("4+", default=True)
    topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, "4+")


class AddPartitionsToTxnRequest(
    Request[AddPartitionsToTxnResponse],
    key=24,
    versions="0-5",
    flexible="3+",
    route=Route.COORDINATOR,
):
    """Add partitions to a transaction."""

    # KIP-890
    transactions: list[AddPartitionsToTxnTransaction] = array(AddPartitionsToTxnTransaction, "4+")
    v3_and_below_transactional_id: str = string("0-3")
    v3_and_below_producer_id: int = int64("0-3")
    v3_and_below_producer_epoch: int = int16("0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, "0-3")
