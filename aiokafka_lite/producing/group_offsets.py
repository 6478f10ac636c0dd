"""Offsets of a group that a transaction commits: whose they are, and what was read so far.

The consumer that they are of is known here only, by three protocols: `DeliverySource`,
`DeliveryInTransaction` and `GroupOfConsumer`.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final, Protocol, runtime_checkable

from aiokafka_lite._compat import Self
from aiokafka_lite._record_py import record_delivery
from aiokafka_lite._transaction import BegunTransaction
from aiokafka_lite.client.arguments import MOST_LONG
from aiokafka_lite.errors import (
    CommitFailedError,
    FencedMemberEpochError,
    IllegalGenerationError,
    KafkaError,
    NoError,
    RebalanceInProgressError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    for_code,
)
from aiokafka_lite.producing.batch import ProducerIdAndEpoch
from aiokafka_lite.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.structs import (
    ConsumerGroupMetadata,
    ConsumerRecord,
    OffsetAndMetadata,
    TopicPartition,
)

# Offset, metadata, and the leader epoch of the record before, -1 where that is not known.
Offsets = Mapping[TopicPartition, tuple[int, str, int]]
AnyOffset = int | tuple[int, str] | OffsetAndMetadata

NO_EPOCH: Final = -1

# What a group says to a member that has lost its partitions.
LOST_MEMBERSHIP = (
    FencedMemberEpochError,
    IllegalGenerationError,
    RebalanceInProgressError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)


class DeliveryInTransaction(Protocol):
    """Records that a consumer has returned, or offsets, that a transaction commits."""

    @property
    def source(self) -> Hashable:
        """Whose they are; those of one source are joined."""

    def enlist(self, transaction: BegunTransaction, *, is_stored: bool = False) -> None:
        """Let a transaction decide what becomes of the records, also of blocks that end before.

        Args:
            transaction: Commits their offsets.
            is_stored: It does not wait for its end to send them to the group.

        Raises:
            AutoCommitError: The consumer may commit them in another way.
        """

    def join(self, other: Self) -> None:
        """Take over another delivery of the same source."""

    def alone(self) -> AbstractAsyncContextManager[None]:
        """Return a block within which the consumer commits nothing in another way."""

    def topic_ids(self) -> Collection[tuple[TopicPartition, bytes]]:
        """Return the ids of the partitions' topics, as far as they are known."""

    async def confirm_topics(self, deadline: float) -> None:
        """Find out whether topics were recreated since, for requests that name them.

        Raises:
            CommitFailedError: Some were.
            KafkaError: That cannot be known.
        """

    def to_commit(self) -> tuple[ConsumerGroupMetadata, Offsets]:
        """Return in whose name to commit which offsets.

        Raises:
            CommitFailedError: Partitions were taken away since the records were returned.
            KafkaError: The offsets cannot say that they are finished.
        """

    def refused(self, error: KafkaError) -> None:
        """Note that the group has refused the offsets."""

    def settle(self, transaction: BegunTransaction, *, is_committed: bool | None) -> None:
        """Note that the transaction is over; None: it is not known whether it was committed."""


class DeliverySource(Protocol):
    """A consumer, a batch of one, or anything else that knows which records it has returned."""

    def delivery(self) -> DeliveryInTransaction:
        """Return these records as a value."""


@runtime_checkable
class GroupOfConsumer(Protocol):
    """Group metadata that belong to a consumer of this process."""

    def name(self, offsets: Offsets) -> DeliveryInTransaction:
        """Return offsets of the group, which the consumer checks."""


class OffsetsOfGroup:
    """Offsets of a group of which no consumer is known: nothing is checked."""

    def __init__(self, group: ConsumerGroupMetadata, offsets: Offsets) -> None:
        self.source = group
        self.offsets = offsets

    def enlist(self, transaction: BegunTransaction, *, is_stored: bool = False) -> None:
        """Tell nobody."""

    def join(self, other: OffsetsOfGroup) -> None:
        """Take over offsets that were named later."""
        self.offsets = {**self.offsets, **other.offsets}

    def alone(self) -> AbstractAsyncContextManager[None]:
        """Return a block that keeps nobody from anything."""
        return nullcontext()

    def topic_ids(self) -> Collection[tuple[TopicPartition, bytes]]:
        """Return nothing: it is not known which topics were read."""
        return ()

    async def confirm_topics(self, deadline: float) -> None:
        """Ask nobody: it is not known which topics were read."""

    def to_commit(self) -> tuple[ConsumerGroupMetadata, Offsets]:
        """Return the group and its offsets."""
        return self.source, self.offsets

    def refused(self, error: KafkaError) -> None:
        """Tell nobody."""

    def settle(self, transaction: BegunTransaction, *, is_committed: bool | None) -> None:
        """Tell nobody."""


def delivery_of(source: DeliverySource | ConsumerRecord[Any, Any]) -> DeliveryInTransaction:
    """Return what a consumer, a batch or a record stands for in a transaction.

    Raises:
        TypeError: It is nothing that a consumer has returned.
    """
    found: DeliveryInTransaction
    if isinstance(source, ConsumerRecord):
        found = record_delivery(source)
        return found
    delivery = getattr(source, "delivery", None)
    if delivery is None:
        raise TypeError(
            "a transaction commits the offsets of a consumer, a batch, a record, or a dict of "
            f"offsets, not of {source!r}"
        )
    found = delivery()
    return found


def named_offsets(group: object, offsets: object) -> DeliveryInTransaction:
    """Return offsets that the application names as a transaction takes them.

    Raises:
        ValueError: They are no mapping with something in it, or one is no offset; or there is no
            group.
        TypeError: A key is not a topic and a partition.
    """
    checked = checked_offsets(offsets)
    if isinstance(group, GroupOfConsumer):
        return group.name(checked)
    if isinstance(group, ConsumerGroupMetadata):
        return OffsetsOfGroup(group, checked)
    if not group or not isinstance(group, str):
        raise ValueError(f"group_id is a group's name or consumer.group_metadata(), not {group!r}")
    return OffsetsOfGroup(ConsumerGroupMetadata(group), checked)


def checked_offsets(offsets: object) -> Offsets:
    """Bring what is to be committed into one shape.

    Raises:
        ValueError: It is no mapping with something in it, or an offset is not one.
        TypeError: A key is not a topic and a partition.
    """
    if not offsets or not isinstance(offsets, Mapping):
        raise ValueError(f"offsets is a dict of TopicPartition to offset, not {offsets!r}")
    checked: dict[TopicPartition, tuple[int, str, int]] = {}
    for tp, value in offsets.items():
        if getattr(tp, "_fields", None) != TopicPartition._fields:
            raise TypeError(f"Key should be TopicPartition instance, not {tp!r}")
        offset, metadata = value if isinstance(value, tuple) else (value, "")
        is_int = isinstance(offset, int) and not isinstance(offset, bool)
        if not is_int or not 0 <= offset <= MOST_LONG or not isinstance(metadata, str):
            raise ValueError(f"an offset to commit is 0 to 2**63 - 1 or (int, str), not {value!r}")
        checked[TopicPartition(*tp)] = offset, metadata, NO_EPOCH
    return checked


def commit_request(
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    group: ConsumerGroupMetadata,
    offsets: Offsets,
    topic_ids: Collection[tuple[TopicPartition, bytes]],
) -> TxnOffsetCommitRequest:
    """Return the request that stores offsets until the transaction ends."""
    ids = dict(topic_ids)
    topics: dict[tuple[str, bytes], list[TxnOffsetCommitRequestPartition]] = {}
    for tp, (offset, metadata, leader_epoch) in offsets.items():
        topics.setdefault((tp.topic, ids.get(tp) or ZERO_UUID), []).append(
            TxnOffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=offset,
                committed_leader_epoch=leader_epoch,
                committed_metadata=metadata,
            )
        )
    return TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.group_instance_id,
        topics=[
            TxnOffsetCommitRequestTopic(name=name, topic_id=topic_id, partitions=partitions)
            for (name, topic_id), partitions in topics.items()
        ],
    )


def are_known(topic_ids: Collection[tuple[TopicPartition, bytes]]) -> bool:
    """Whether all topics can be named by their ids."""
    return bool(topic_ids) and not {b"", ZERO_UUID} & {topic_id for _, topic_id in topic_ids}


def codes_of(answer: TxnOffsetCommitResponse) -> Iterable[int]:
    """Return the error code of each partition."""
    return [partition.error_code for topic in answer.topics for partition in topic.partitions]


def raise_refusal(
    delivery: DeliveryInTransaction, group_id: str, answer: TxnOffsetCommitResponse
) -> None:
    """Raise what the group refused, and tell the consumer.

    Raises:
        CommitFailedError: The group has given the partitions to another member.
        KafkaError: Anything else.
    """
    names = {topic_id: tp.topic for tp, topic_id in delivery.topic_ids()}
    for topic in answer.topics:
        name = topic.name or names.get(topic.topic_id, "")
        for partition in topic.partitions:
            if partition.error_code == NoError.errno:
                continue
            error_class = for_code(partition.error_code)
            tp = TopicPartition(name, partition.partition_index)
            error: KafkaError = error_class(
                f"{error_class.description} ({tp.topic}-{tp.partition}, group {group_id!r})"
            ).at(tp)
            delivery.refused(error)
            if error_class in LOST_MEMBERSHIP:
                raise CommitFailedError(
                    f"group {group_id!r} has rebalanced since the records were handed out: "
                    "the transaction is aborted, and the partitions' owners read them again"
                ) from error
            raise error
