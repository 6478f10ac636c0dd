"""Builds OffsetCommit and OffsetFetch requests, and reads their responses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aiokafka_lite.client.view import ClusterView
from aiokafka_lite.consumer.membership.protocol import NO_GENERATION, Identity
from aiokafka_lite.consumer.membership.recovery import RECOVERIES
from aiokafka_lite.errors import GroupAuthorizationFailedError, for_code
from aiokafka_lite.protocol.messages.committed_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.structs import TopicPartition


class OffsetToCommit(NamedTuple):
    offset: int
    metadata: str
    leader_epoch: int


class FetchedOffset(NamedTuple):
    offset: int
    metadata: str
    leader_epoch: int
    error_code: int
    topic_id: bytes


class TopicIds:
    """Maps partitions to topic ids, and the ids in a response to names.

    Partitions of one topic have different ids while only some are known to be recreated.
    """

    def __init__(self, ids: Mapping[TopicPartition, bytes]) -> None:
        self._ids = {tp: topic_id or ZERO_UUID for tp, topic_id in ids.items()}
        self._names = {topic_id: tp.topic for tp, topic_id in self._ids.items()}

    @classmethod
    def of_view(cls, view: ClusterView, partitions: Iterable[TopicPartition]) -> TopicIds:
        return cls({tp: view.topic_id(tp.topic) or ZERO_UUID for tp in partitions})

    def by_topic(self, partitions: Iterable[TopicPartition]) -> dict[tuple[str, bytes], list[int]]:
        """Group partition numbers by topic name and id. ZERO_UUID is an unknown id."""
        topics: dict[tuple[str, bytes], list[int]] = {}
        for tp in sorted(partitions):
            topics.setdefault((tp.topic, self._ids[tp]), []).append(tp.partition)
        return topics

    def id_of(self, tp: TopicPartition) -> bytes:
        return self._ids.get(tp, ZERO_UUID)

    def name_of(self, name: str, topic_id: bytes) -> str:
        return name or self._names.get(topic_id, "")


def commit_request(
    group: tuple[str, str | None],
    identity: Identity,
    offsets: Mapping[TopicPartition, OffsetToCommit],
    ids: TopicIds,
) -> OffsetCommitRequest:
    group_id, instance_id = group
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=identity.generation,
        member_id=identity.member_id,
        group_instance_id=instance_id if identity.member_id else None,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                topic_id=topic_id,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=number,
                        committed_offset=entry.offset,
                        committed_leader_epoch=entry.leader_epoch,
                        committed_metadata=entry.metadata,
                    )
                    for number in numbers
                    for entry in (offsets[TopicPartition(topic, number)],)
                ],
            )
            for (topic, topic_id), numbers in ids.by_topic(offsets).items()
        ],
    )


def commit_results(response: OffsetCommitResponse, ids: TopicIds) -> dict[TopicPartition, int]:
    return {
        TopicPartition(ids.name_of(topic.name, topic.topic_id), result.partition_index): (
            result.error_code
        )
        for topic in response.topics
        for result in topic.partitions
    }


def is_about_the_group(error_code: int) -> bool:
    kind = for_code(error_code)
    return kind in RECOVERIES or kind is GroupAuthorizationFailedError


def commit_error_code(response: OffsetCommitResponse) -> int:
    """Return the error code that concerns the whole commit: each partition repeats it."""
    for topic in response.topics:
        for result in topic.partitions:
            if result.error_code and is_about_the_group(result.error_code):
                return result.error_code
    return 0


def fetch_request(
    group_id: str, reader: Identity | None, partitions: Iterable[TopicPartition], ids: TopicIds
) -> OffsetFetchRequest:
    """Build the request; offsets of open transactions are excluded (KIP-447)."""
    return OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=group_id,
                member_id=None if reader is None else reader.member_id,
                member_epoch=NO_GENERATION if reader is None else reader.generation,
                topics=[
                    OffsetFetchRequestTopics(
                        name=topic, topic_id=topic_id, partition_indexes=numbers
                    )
                    for (topic, topic_id), numbers in ids.by_topic(partitions).items()
                ],
            )
        ],
        require_stable=True,
    )


def fetch_results(
    response: OffsetFetchResponse, ids: TopicIds
) -> dict[TopicPartition, FetchedOffset]:
    return {
        tp: FetchedOffset(
            found.committed_offset,
            found.metadata or "",
            found.committed_leader_epoch,
            found.error_code,
            ids.id_of(tp),
        )
        for group in response.groups
        for topic in group.topics
        for found in topic.partitions
        for tp in (TopicPartition(ids.name_of(topic.name, topic.topic_id), found.partition_index),)
    }


def fetch_error_code(response: OffsetFetchResponse) -> int:
    for group in response.groups:
        if group.error_code:
            return group.error_code
        for topic in group.topics:  # the oldest version has only codes of partitions
            for found in topic.partitions:
                if found.error_code and is_about_the_group(found.error_code):
                    return found.error_code
    return 0
