"""OffsetCommit and OffsetFetch. Without a member id, a group that commits must have no members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from aiokafka_lite.client.offsets import CommittedOffset
from aiokafka_lite.client.view import ClusterView
from aiokafka_lite.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponsePartitions,
)
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.structs import TopicPartition


class TopicIds:
    """Maps partitions to topic ids, of which a recreated topic has two, and ids to names."""

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
            topics.setdefault((tp.topic, self.id_of(tp)), []).append(tp.partition)
        return topics

    def id_of(self, tp: TopicPartition) -> bytes:
        return self._ids.get(tp, ZERO_UUID)

    def name_of(self, name: str, topic_id: bytes) -> str:
        return name or self._names.get(topic_id, "")


NO_IDS: Final = TopicIds({})


def commit_request(
    group_id: str,
    offsets: Mapping[TopicPartition, CommittedOffset],
    ids: TopicIds = NO_IDS,
    *,
    member_id: str = "",
    generation: int = -1,
    instance_id: str | None = None,
) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id if member_id else None,
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


def commit_results(
    response: OffsetCommitResponse, ids: TopicIds = NO_IDS
) -> dict[TopicPartition, int]:
    return {
        TopicPartition(ids.name_of(topic.name, topic.topic_id), result.partition_index): (
            result.error_code
        )
        for topic in response.topics
        for result in topic.partitions
    }


def fetch_request(
    group_id: str,
    partitions: Iterable[TopicPartition],
    ids: TopicIds,
    *,
    member_id: str | None,
    member_epoch: int,
) -> OffsetFetchRequest:
    """Build the request; offsets of open transactions are excluded (KIP-447)."""
    return OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=group_id,
                member_id=member_id,
                member_epoch=member_epoch,
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
) -> dict[TopicPartition, OffsetFetchResponsePartitions]:
    return {
        TopicPartition(ids.name_of(topic.name, topic.topic_id), found.partition_index): found
        for group in response.groups
        for topic in group.topics
        for found in topic.partitions
    }
