"""OffsetCommit without a member, which a coordinator accepts for a group without members."""

from __future__ import annotations

from collections.abc import Mapping

from aiokafka_lite.protocol.messages.committed_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from aiokafka_lite.structs import TopicPartition


def commit_request(group_id: str, offsets: Mapping[TopicPartition, int]) -> OffsetCommitRequest:
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, []).append(
            OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=""
            )
        )
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[OffsetCommitRequestTopic(name=name, partitions=p) for name, p in topics.items()],
    )


def commit_codes(response: OffsetCommitResponse) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, outcome.partition_index): outcome.error_code
        for topic in response.topics
        for outcome in topic.partitions
    }
