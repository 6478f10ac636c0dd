"""Idempotent producers and transactions, and their descriptions (KIP-664)."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from aiokafka_lite.protocol.fields import array, boolean, int8, int16, int32, int64, string, uuid
from aiokafka_lite.protocol.messages.offsets import PartitionErrorCode
from aiokafka_lite.protocol.schema import Request, Response, Several, Struct


# --- InitProducerId (key 22) ------------------------------------------------------------------
class InitProducerIdResponse(Response):
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
    """Return a producer id, and fence earlier producers of the transactional id.

    With a null transactional id, the producer is only idempotent. v6 (KIP-939) is unstable.
    """

    transactional_id: str | None = string("0+", nullable="0+")
    transaction_timeout_ms: int = int32("0+")
    producer_id: int = int64("3+", default=-1)  # KIP-360
    producer_epoch: int = int16("3+", default=-1)  # KIP-360
    enable2_pc: bool = boolean("6+")  # KIP-939
    keep_prepared_txn: bool = boolean("6+")  # KIP-939


# --- AddPartitionsToTxn (key 24) --------------------------------------------------------------
class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: int = int32("0+")
    partition_error_code: int = int16("0+")


class AddPartitionsToTxnTopicResult(Struct):
    name: str = string("0+")
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = array(
        AddPartitionsToTxnPartitionResult, "0+"
    )


class AddPartitionsToTxnResult(Struct):
    transactional_id: str = string("4+")
    topic_results: list[AddPartitionsToTxnTopicResult] = array(AddPartitionsToTxnTopicResult, "4+")


class AddPartitionsToTxnResponse(Several, Response):
    several = "results_by_transaction"
    renamed = MappingProxyType({"results_by_topic_v3_and_below": "topic_results"})

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("4+", ignorable=True)
    # KIP-890
    results_by_transaction: list[AddPartitionsToTxnResult] = array(AddPartitionsToTxnResult, "4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array(
        AddPartitionsToTxnTopicResult, "0-3"
    )


class AddPartitionsToTxnTopic(Struct):
    name: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class AddPartitionsToTxnTransaction(Struct):
    transactional_id: str = string("4+")
    producer_id: int = int64("4+")
    producer_epoch: int = int16("4+")
    verify_only: bool = boolean("4+")
    topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, "4+")


class AddPartitionsToTxnRequest(
    Request[AddPartitionsToTxnResponse],
    Several,
    key=24,
    versions="0-5",
    flexible="3+",
    used_to=3,
):
    """Add partitions to a transaction (KIP-98).

    Clients use v3 at most. From v4 on, brokers add partitions for several transactions (KIP-890).
    """

    several = "transactions"
    renamed = MappingProxyType(
        {
            f"v3_and_below_{name}": name
            for name in ("transactional_id", "producer_id", "producer_epoch", "topics")
        }
    )

    # KIP-890
    transactions: list[AddPartitionsToTxnTransaction] = array(AddPartitionsToTxnTransaction, "4+")
    v3_and_below_transactional_id: str = string("0-3")
    v3_and_below_producer_id: int = int64("0-3")
    v3_and_below_producer_epoch: int = int16("0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, "0-3")


# --- AddOffsetsToTxn (key 25) -----------------------------------------------------------------
class AddOffsetsToTxnResponse(Response):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")


class AddOffsetsToTxnRequest(
    Request[AddOffsetsToTxnResponse], key=25, versions="0-4", flexible="3+"
):
    """Add a group's partition of the offsets topic to a transaction (KIP-98).

    From v4 on, errors may be abortable (KIP-890).
    """

    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    group_id: str = string("0+")


# --- TxnOffsetCommit (key 28) -----------------------------------------------------------------
FIRST_BY_TOPIC_ID: Final = 6


class TxnOffsetCommitResponseTopic(Struct):
    name: str = string("0-5", ignorable=True)
    topic_id: bytes = uuid("6+", ignorable=True)  # KIP-1319
    partitions: list[PartitionErrorCode] = array(PartitionErrorCode, "0+")


class TxnOffsetCommitResponse(Response):
    throttle_time_ms: int = int32("0+")
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic, "0+")


class TxnOffsetCommitRequestPartition(Struct):
    partition_index: int = int32("0+")
    committed_offset: int = int64("0+")
    committed_leader_epoch: int = int32("2+", default=-1, ignorable=True)  # KIP-320
    committed_metadata: str | None = string("0+", nullable="0+")


class TxnOffsetCommitRequestTopic(Struct):
    name: str = string("0-5", ignorable=True)
    topic_id: bytes = uuid("6+", ignorable=True)  # KIP-1319
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition, "0+")


class TxnOffsetCommitRequest(
    Request[TxnOffsetCommitResponse], key=28, versions="0-6", flexible="3+", used_to=4
):
    """Commit a group's offsets as part of a transaction (KIP-98), fencing old members (KIP-447).

    From v4 on, errors may be abortable. v5 also adds the group to the transaction (KIP-890).
    """

    transactional_id: str = string("0+")
    group_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    generation_id: int = int32("3+", default=-1)  # KIP-447
    member_id: str = string("3+")  # KIP-447
    group_instance_id: str | None = string("3+", nullable="3+", default=None)  # KIP-345
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic, "0+")


# --- EndTxn (key 26) --------------------------------------------------------------------------
class EndTxnResponse(Response):
    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    producer_id: int = int64("5+", default=-1, ignorable=True)  # KIP-890
    producer_epoch: int = int16("5+", default=-1, ignorable=True)  # KIP-890


class EndTxnRequest(Request[EndTxnResponse], key=26, versions="0-5", flexible="3+", used_to=4):
    """Commit or abort a transaction (KIP-98).

    From v4 on, errors may be abortable. From v5 on, every transaction has a new epoch (KIP-890).
    """

    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    committed: bool = boolean("0+")


# --- WriteTxnMarkers (key 27) -----------------------------------------------------------------
class WritableTxnMarkerTopicResult(Struct):
    name: str = string("0+")
    partitions: list[PartitionErrorCode] = array(PartitionErrorCode, "0+")


class WritableTxnMarkerResult(Struct):
    producer_id: int = int64("0+")
    topics: list[WritableTxnMarkerTopicResult] = array(WritableTxnMarkerTopicResult, "0+")


class WriteTxnMarkersResponse(Response):
    markers: list[WritableTxnMarkerResult] = array(WritableTxnMarkerResult, "0+")


class TopicRequest(Struct):
    name: str = string("0+")
    partition_indexes: list[int] = array(int32, "0+")


class WritableTxnMarker(Struct):
    """A `transaction_result` of true commits."""

    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    transaction_result: bool = boolean("0+")
    topics: list[TopicRequest] = array(TopicRequest, "0+")
    coordinator_epoch: int = int32("0+")
    transaction_version: int = int8("2+", default=0, ignorable=True)  # KIP-1228


class WriteTxnMarkersRequest(
    Request[WriteTxnMarkersResponse], key=27, versions="1-2", flexible="1+"
):
    """Write transaction markers to partitions that the broker leads.

    From v2 on, the version of the transaction decides which epochs are valid (KIP-1228).
    """

    markers: list[WritableTxnMarker] = array(WritableTxnMarker, "0+")


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


class DescribeProducersRequest(
    Request[DescribeProducersResponse], key=61, versions="0", flexible="0+"
):
    """Ask the leaders of partitions for active producers (KIP-664)."""

    topics: list[TopicRequest] = array(TopicRequest, "0+")
