"""Offsets of a group that a transaction commits; protocols stand between it and the consumer."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

from aiokafka_lite._compat import Self
from aiokafka_lite._record_py import record_delivery
from aiokafka_lite._transaction import BegunTransaction, DecidedOffsets
from aiokafka_lite.client.arguments import check_offsets, check_text
from aiokafka_lite.client.view import NO_EPOCH
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
from aiokafka_lite.protocol.messages.transactions import (
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

AnyOffset = int | tuple[int, str] | OffsetAndMetadata

# The errors of a group for a member that has lost its partitions.
LOST_MEMBERSHIP = (
    FencedMemberEpochError,
    IllegalGenerationError,
    RebalanceInProgressError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)


class DeliveryInTransaction(Protocol):
    """Returned records of a consumer, or offsets, that a transaction commits."""

    @property
    def source(self) -> Hashable:
        """Deliveries of one source are joined."""

    def enlist(self, transaction: BegunTransaction, *, is_stored: bool = False) -> None:
        """Let a transaction decide on the records, or raise AutoCommitError.

        `is_stored`: the group gets the offsets before the transaction's end.
        """

    def join(self, other: Self) -> None: ...

    def alone(self) -> AbstractAsyncContextManager[None]:
        """Return a block that excludes all other commits of the consumer."""

    def topic_ids(self) -> Collection[tuple[TopicPartition, bytes]]: ...

    async def confirm_topics(self, deadline: float) -> None:
        """Raise CommitFailedError if a topic was recreated, for requests with topic names."""

    def to_commit(self) -> tuple[ConsumerGroupMetadata, DecidedOffsets]:
        """Return the member and the offsets. Raises as `raise_if_revoked`."""

    def raise_if_revoked(self) -> None:
        """Raise CommitFailedError if a partition is no longer assigned."""

    def refused(self, error: KafkaError) -> bool:
        """Note a refusal. Return whether a generation is over, and the consumer may join again."""

    def settle(self, transaction: BegunTransaction, *, is_committed: bool | None) -> None:
        """Note the end of the transaction. `is_committed` is None if unknown."""


class DeliverySource(Protocol):
    """An object that has returned records, such as a consumer or a batch."""

    def delivery(self) -> DeliveryInTransaction: ...


@runtime_checkable
class GroupOfConsumer(Protocol):
    """Group metadata of a consumer in this process."""

    def name(self, offsets: DecidedOffsets) -> DeliveryInTransaction: ...


class OffsetsOfGroup:
    """Offsets of a group without a known consumer, which are not checked."""

    def __init__(self, group: ConsumerGroupMetadata, offsets: DecidedOffsets) -> None:
        self.source = group
        self.offsets = offsets

    def enlist(self, transaction: BegunTransaction, *, is_stored: bool = False) -> None: ...

    def join(self, other: OffsetsOfGroup) -> None:
        self.offsets = {**self.offsets, **other.offsets}

    def alone(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def topic_ids(self) -> Collection[tuple[TopicPartition, bytes]]:
        return ()

    async def confirm_topics(self, deadline: float) -> None: ...

    def to_commit(self) -> tuple[ConsumerGroupMetadata, DecidedOffsets]:
        return self.source, self.offsets

    def raise_if_revoked(self) -> None: ...

    def refused(self, error: KafkaError) -> bool:
        return False

    def settle(self, transaction: BegunTransaction, *, is_committed: bool | None) -> None: ...


def delivery_of(source: DeliverySource | ConsumerRecord[Any, Any]) -> DeliveryInTransaction:
    found: DeliveryInTransaction
    if isinstance(source, ConsumerRecord):
        found = record_delivery(source)
        return found
    delivery = getattr(source, "delivery", None)
    if delivery is None:
        raise TypeError(
            f"cannot commit the offsets of {source!r} in a transaction: pass a consumer, a batch, "
            "a record, or a dict of offsets"
        )
    found = delivery()
    return found


def named_offsets(group: object, offsets: object) -> DeliveryInTransaction:
    checked = {tp: (*offset, NO_EPOCH) for tp, offset in check_offsets(offsets).items()}
    if isinstance(group, GroupOfConsumer):
        return group.name(checked)
    if not isinstance(group, ConsumerGroupMetadata):
        if not group or not isinstance(group, str):
            raise ValueError(
                f"group_id must be a group's name or consumer.group_metadata(), not {group!r}"
            )
        group = ConsumerGroupMetadata(group)
    check_text("group_id", group.group_id)
    return OffsetsOfGroup(group, checked)


def commit_request(
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    group: ConsumerGroupMetadata,
    offsets: DecidedOffsets,
    topic_ids: Collection[tuple[TopicPartition, bytes]],
) -> TxnOffsetCommitRequest:
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
    return bool(topic_ids) and not {b"", ZERO_UUID} & {topic_id for _, topic_id in topic_ids}


def codes_of(answer: TxnOffsetCommitResponse) -> Iterable[int]:
    return [partition.error_code for topic in answer.topics for partition in topic.partitions]


def raise_refusal(
    delivery: DeliveryInTransaction, group_id: str, answer: TxnOffsetCommitResponse
) -> None:
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
            if delivery.refused(error) or error_class in LOST_MEMBERSHIP:
                raise CommitFailedError(
                    f"group {group_id!r} has rebalanced since the consumer returned the records. "
                    "The transaction is aborted, and the members that own the partitions now read "
                    "the records again"
                ) from error
            raise error
