"""Offsets of a group that a transaction commits: whose they are, and what was read so far.

The consumer they are of is met here only, by what `OffsetSource` asks of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

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
from aiokafka_lite.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
AnyOffset = int | tuple[int, str] | OffsetAndMetadata

# What a group says to a member that has lost its partitions.
LOST_MEMBERSHIP = (
    FencedMemberEpochError,
    IllegalGenerationError,
    RebalanceInProgressError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)


class OffsetSource(Protocol):
    """What a consumer says of itself to a transaction."""

    def positions(self) -> Offsets:
        """Return the positions: the offset behind what was handed out of each partition."""

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Return as whom its partitions are held."""


def checked_offsets(offsets: object) -> dict[TopicPartition, OffsetAndMetadata]:
    """Bring what is to be committed into one shape.

    Raises:
        ValueError: It is no mapping with something in it, or an offset is not one.
        TypeError: A key is not a topic and a partition.
    """
    if not offsets or not isinstance(offsets, Mapping):
        raise ValueError(f"offsets is a dict of TopicPartition to offset, not {offsets!r}")
    checked = {}
    for tp, value in offsets.items():
        if getattr(tp, "_fields", None) != TopicPartition._fields:
            raise TypeError(f"Key should be TopicPartition instance, not {tp!r}")
        offset, metadata = value if isinstance(value, tuple) else (value, "")
        is_offset = isinstance(offset, int) and not isinstance(offset, bool) and offset >= 0
        if not is_offset or not isinstance(metadata, str):
            raise ValueError(f"an offset to commit is an int >= 0 or (int, str), not {value!r}")
        checked[TopicPartition(*tp)] = OffsetAndMetadata(offset, metadata)
    return checked


def commit_request(
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    group: ConsumerGroupMetadata,
    offsets: Offsets,
) -> TxnOffsetCommitRequest:
    """Return the request that stores offsets until the transaction ends."""
    topics: dict[str, list[TxnOffsetCommitRequestPartition]] = {}
    for tp, (offset, metadata) in offsets.items():
        topics.setdefault(tp.topic, []).append(
            TxnOffsetCommitRequestPartition(
                partition_index=tp.partition, committed_offset=offset, committed_metadata=metadata
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
            TxnOffsetCommitRequestTopic(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
    )


def codes_of(answer: TxnOffsetCommitResponse) -> Iterable[int]:
    """Return the error code of each partition."""
    return [partition.error_code for topic in answer.topics for partition in topic.partitions]


def raise_refusal(group: ConsumerGroupMetadata, answer: TxnOffsetCommitResponse) -> None:
    """Raise what the group refused.

    Raises:
        CommitFailedError: The group has given the partitions to another member.
        KafkaError: Anything else.
    """
    for topic in answer.topics:
        for partition in topic.partitions:
            if partition.error_code == NoError.errno:
                continue
            error_class = for_code(partition.error_code)
            tp = TopicPartition(topic.name, partition.partition_index)
            error: KafkaError = error_class(
                f"{error_class.description} ({tp.topic}-{tp.partition}, group {group.group_id!r})"
            ).at(tp)
            if error_class in LOST_MEMBERSHIP:
                raise CommitFailedError(
                    f"group {group.group_id!r} has rebalanced since the records were handed out: "
                    "the transaction is aborted, and the partitions' owners read them again"
                ) from error
            raise error
