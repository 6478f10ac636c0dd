"""DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from aiokafka_lite.protocol.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from tests.broker.share.requests import ACCEPT, RELEASE, ShareGroup, produce

UNKNOWN_PARTITION, NOT_LEADER, INVALID_GROUP_ID, NON_EMPTY, NO_GROUP = 3, 6, 24, 68, 69


class Offsets(NamedTuple):
    start_offset: int
    lag: int


UNKNOWN = Offsets(-1, -1)


async def describe(
    group: ShareGroup, topics: Mapping[str, Sequence[int]] | None = None, version: int = 1
) -> dict[tuple[str, int], Offsets]:
    """Return the offsets by topic and partition."""
    wanted = DescribeShareGroupOffsetsRequestGroup(
        group_id=group.group_id,
        topics=None
        if topics is None
        else [
            DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=list(partitions))
            for name, partitions in topics.items()
        ],
    )
    async with group.kafka.raw() as client:
        answer = await client.request(DescribeShareGroupOffsetsRequest(groups=[wanted]), version)
    (described,) = answer.groups
    assert described.error_code == 0, described.error_message
    return {
        (topic.topic_name, each.partition_index): Offsets(each.start_offset, each.lag)
        for topic in described.topics
        for each in topic.partitions
    }


async def alter(group: ShareGroup, offsets: Mapping[tuple[str, int], int]) -> int | dict[str, int]:
    """Return the error code of the request, or those of the topics' partitions."""
    topics = [
        AlterShareGroupOffsetsRequestTopic(
            topic_name=topic,
            partitions=[
                AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)
            ],
        )
        for (topic, index), offset in offsets.items()
    ]
    async with group.kafka.raw() as client:
        answer = await client.request(
            AlterShareGroupOffsetsRequest(group_id=group.group_id, topics=topics)
        )
    return answer.error_code or {
        f"{topic.topic_name}-{each.partition_index}": each.error_code
        for topic in answer.responses
        for each in topic.partitions
    }


async def delete(group: ShareGroup, *topics: str) -> int | dict[str, int]:
    """Return the error code of the request, or those of the topics."""
    async with group.kafka.raw() as client:
        answer = await client.request(
            DeleteShareGroupOffsetsRequest(
                group_id=group.group_id,
                topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=each) for each in topics],
            )
        )
    return answer.error_code or {each.topic_name: each.error_code for each in answer.responses}


async def test_lag_counts_records_that_are_not_finished(group: ShareGroup) -> None:
    await produce(group, 10)
    await group.start()
    place = (group.topic, 0)
    assert await describe(group) == {place: UNKNOWN}
    async with group.member() as member:
        await member.poll()
        assert await describe(group) == {place: UNKNOWN}  # only locked
        await member.acknowledge((4, 4, ACCEPT))
        assert await describe(group) == {place: Offsets(0, 9)}
        await member.acknowledge((0, 0, RELEASE))
        assert await describe(group) == {place: Offsets(0, 9)}
        await member.acknowledge((1, 2, ACCEPT))
        await member.poll()
        await member.acknowledge((0, 0, ACCEPT))
        assert (await describe(group))[place].lag == 6
        await member.acknowledge((5, 5, ACCEPT))
        assert await describe(group) == {place: Offsets(3, 5)}
        await produce(group, 2)
        assert await describe(group) == {place: Offsets(3, 7)}
        assert await describe(group, version=0) == {place: Offsets(3, -1)}


async def test_unknown_partitions_and_groups_have_no_offsets(group: ShareGroup) -> None:
    assert await describe(group) == {}
    asked = {group.topic: [0, 7], "unknown": [0]}
    expected = {(group.topic, 0): UNKNOWN, (group.topic, 7): UNKNOWN, ("unknown", 0): UNKNOWN}
    assert await describe(group, asked) == expected


async def test_altered_offset_is_where_the_next_fetch_begins(group: ShareGroup) -> None:
    await produce(group, 5)
    member_id = await group.start()
    await group.leave(member_id)
    async with group.member() as member:
        await member.poll()
        codes = await alter(group, {(group.topic, 0): 2, (group.topic, 9): 0, ("unknown", 0): 0})
        assert codes == {
            f"{group.topic}-0": 0,
            f"{group.topic}-9": UNKNOWN_PARTITION,
            "unknown-0": UNKNOWN_PARTITION,
        }
        assert await describe(group) == {(group.topic, 0): Offsets(2, 3)}
        # The session stays, but it holds nothing any more.
        assert await member.acknowledge((0, 0, ACCEPT)) == NOT_LEADER
        assert (await member.poll()).ranges == [(2, 4, 1)]


async def test_group_that_does_not_exist_can_get_offsets_but_has_none_to_delete(
    group: ShareGroup,
) -> None:
    await produce(group, 5)
    assert await delete(group, group.topic) == await delete(group) == NO_GROUP
    assert await alter(group, {(group.topic, 0): 3}) == {f"{group.topic}-0": 0}
    async with group.member() as member:
        assert (await member.poll()).ranges == [(3, 4, 1)]


async def test_deleted_offsets_are_as_if_never_fetched(group: ShareGroup) -> None:
    await produce(group, 5)
    await group.leave(await group.start())
    async with group.member() as member:
        await member.poll()
        assert await member.acknowledge((0, 4, ACCEPT)) == 0
        assert await delete(group, group.topic, "unknown") == {
            group.topic: 0,
            "unknown": UNKNOWN_PARTITION,
        }
        assert await describe(group) == {}
        assert (await member.fetch(max_wait_ms=100)).ranges == []
    await group.start()
    async with group.member() as member:
        assert (await member.poll()).ranges == [(0, 4, 1)]


async def test_offsets_of_an_empty_group_id_are_refused(group: ShareGroup) -> None:
    group.group_id = ""
    assert await describe(group) == {}
    assert await alter(group, {(group.topic, 0): 1}) == INVALID_GROUP_ID
    assert await delete(group, group.topic) == INVALID_GROUP_ID


async def test_offsets_of_a_group_with_members_are_not_changed(group: ShareGroup) -> None:
    await group.start()
    assert await alter(group, {(group.topic, 0): 1}) == NON_EMPTY
    assert await delete(group, group.topic) == NON_EMPTY
