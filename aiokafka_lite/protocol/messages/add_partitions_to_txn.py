"""AddPartitionsToTxn (key 24): announce partitions that a transaction writes to (KIP-98).

v3 is flexible, and the newest for clients: v4 and v5 are for brokers, with several transactions at
once (KIP-890).
"""

from __future__ import annotations

from typing import Final

from aiokafka_lite._compat import Self, override
from aiokafka_lite.errors import UnsupportedVersionError
from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int64,
    string,
)

_FIRST_FOR_BROKERS: Final = 4


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

    @override
    def for_version(self, version: int) -> Self:
        if version >= _FIRST_FOR_BROKERS or not self.results_by_transaction:
            return self
        if len(self.results_by_transaction) > 1:
            raise UnsupportedVersionError(
                f"an AddPartitionsToTxn v{version} response can contain only one transaction"
            )
        return type(self)(
            throttle_time_ms=self.throttle_time_ms,
            error_code=self.error_code,
            results_by_topic_v3_and_below=self.results_by_transaction[0].topic_results,
        )

    @override
    def from_version(self, version: int) -> Self:
        """Make a list of the one transaction; its id is empty, for these versions do not say."""
        if version >= _FIRST_FOR_BROKERS:
            return self
        result = AddPartitionsToTxnResult(topic_results=self.results_by_topic_v3_and_below)
        return type(self)(throttle_time_ms=self.throttle_time_ms, results_by_transaction=[result])


class AddPartitionsToTxnTopic(Struct):
    """Partitions of one topic."""

    name: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class AddPartitionsToTxnTransaction(Struct):
    """A transaction and its partitions."""

    transactional_id: str = string("4+")
    producer_id: int = int64("4+")
    producer_epoch: int = int16("4+")
    verify_only: bool = boolean("4+")
    topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, "4+")


class AddPartitionsToTxnRequest(
    Request[AddPartitionsToTxnResponse],
    key=24,
    versions="0-5",
    flexible="3+",
):
    """Add partitions to a transaction."""

    # KIP-890
    transactions: list[AddPartitionsToTxnTransaction] = array(AddPartitionsToTxnTransaction, "4+")
    v3_and_below_transactional_id: str = string("0-3")
    v3_and_below_producer_id: int = int64("0-3")
    v3_and_below_producer_epoch: int = int16("0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array(AddPartitionsToTxnTopic, "0-3")

    @override
    def for_version(self, version: int) -> Self:
        if version >= _FIRST_FOR_BROKERS or not self.transactions:
            return self
        if len(self.transactions) > 1 or self.transactions[0].verify_only:
            raise UnsupportedVersionError(
                "verify_only or several transactions require AddPartitionsToTxn "
                f"v{_FIRST_FOR_BROKERS} or newer, not v{version}"
            )
        (transaction,) = self.transactions
        return type(self)(
            v3_and_below_transactional_id=transaction.transactional_id,
            v3_and_below_producer_id=transaction.producer_id,
            v3_and_below_producer_epoch=transaction.producer_epoch,
            v3_and_below_topics=transaction.topics,
        )

    @override
    def from_version(self, version: int) -> Self:
        if version >= _FIRST_FOR_BROKERS:
            return self
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=self.v3_and_below_transactional_id,
            producer_id=self.v3_and_below_producer_id,
            producer_epoch=self.v3_and_below_producer_epoch,
            topics=self.v3_and_below_topics,
        )
        return type(self)(transactions=[transaction])

    @property
    @override
    def usable_max_version(self) -> int:
        """From version 4 on a broker answers other brokers only."""
        return _FIRST_FOR_BROKERS - 1
