"""Builds OffsetFetch requests, and reads their responses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from aiokafka_lite.client.offset_commits import TopicIds
from aiokafka_lite.consumer.membership.protocol import NO_GENERATION, Identity
from aiokafka_lite.consumer.membership.recovery import is_about_the_group
from aiokafka_lite.protocol.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from aiokafka_lite.structs import TopicPartition


class FetchedOffset(NamedTuple):
    offset: int
    metadata: str
    leader_epoch: int
    error_code: int
    topic_id: bytes


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
