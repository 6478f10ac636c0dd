"""Finding, listing, describing and deleting groups: the same answers as Kafka 4.3."""

from __future__ import annotations

import asyncio

import pytest

from aiokafka_lite import errors
from aiokafka_lite.protocol.messages.groups import (
    DeleteGroupsRequest,
    DescribedGroup,
    DescribeGroupsRequest,
    ListGroupsRequest,
)
from aiokafka_lite.protocol.messages.metadata import FindCoordinatorRequest
from tests.support.cluster import KafkaHandle, unique
from tests.support.group_requests import GroupRequests, MemberOf, subscription

NONE = 0
COORDINATOR_NOT_AVAILABLE = errors.CoordinatorNotAvailableError.errno
NON_EMPTY_GROUP = errors.NonEmptyGroup.errno
GROUP_ID_NOT_FOUND = errors.GroupIdNotFound.errno
INVALID_REQUEST = errors.InvalidRequestError.errno


# -- find -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
async def test_find_one_coordinator(cluster: KafkaHandle, version: int) -> None:
    request = FindCoordinatorRequest(coordinator_keys=[unique("group")])
    async with cluster.raw() as client:
        (found,) = (await client.request(request, version)).coordinators
        while found.error_code == COORDINATOR_NOT_AVAILABLE:  # a fresh Kafka makes its topic
            (found,) = (await client.request(request, version)).coordinators
    assert found.error_code == NONE
    assert f"{found.host}:{found.port}" == cluster.bootstrap_servers
    assert found.node_id >= 0
    assert found.error_message == ("NONE" if version >= 1 else "")


@pytest.mark.parametrize("version", [4, 5, 6])
async def test_find_several_coordinators(cluster: KafkaHandle, version: int) -> None:
    keys = [unique("group"), unique("group")]
    async with cluster.raw() as client:
        answer = await client.request(FindCoordinatorRequest(coordinator_keys=keys), version)
    assert [found.key for found in answer.coordinators] == keys
    for found in answer.coordinators:
        assert (found.error_code, found.error_message) == (NONE, "")
        assert f"{found.host}:{found.port}" == cluster.bootstrap_servers


async def test_share_coordinators_need_a_new_version(cluster: KafkaHandle) -> None:
    request = FindCoordinatorRequest(key_type=2, coordinator_keys=["g:t:0"])
    async with cluster.raw() as client:
        answer = await client.request(request, 5)
    (found,) = answer.coordinators
    assert (found.error_code, found.node_id, found.host, found.port) == (
        INVALID_REQUEST,
        -1,
        "",
        -1,
    )


# -- list -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
async def test_list_in_every_version(
    group: GroupRequests, cluster: KafkaHandle, version: int
) -> None:
    await group.member()
    async with cluster.raw() as client:
        answer = await client.request(ListGroupsRequest(), version)
    (listed,) = [item for item in answer.groups if item.group_id == group.group_id]
    assert listed.protocol_type == "consumer"
    assert listed.group_state == ("Stable" if version >= 4 else "")
    assert listed.group_type == ("classic" if version >= 5 else "")


@pytest.mark.parametrize(
    ("states", "types", "is_listed"),
    [
        (["Stable"], [], True),
        (["stable", "Empty"], [], True),
        (["Empty"], [], False),
        (["nonsense"], [], False),
        ([], ["Classic"], True),
        ([], ["classic"], True),
        ([], ["Consumer"], False),
        (["Stable"], ["Classic", "Consumer"], True),
    ],
)
async def test_list_with_filters(
    group: GroupRequests, cluster: KafkaHandle, states: list[str], types: list[str], is_listed: bool
) -> None:
    await group.member()
    async with cluster.raw() as client:
        answer = await client.request(ListGroupsRequest(states_filter=states, types_filter=types))
    assert (group.group_id in {item.group_id for item in answer.groups}) is is_listed


# -- describe -----------------------------------------------------------------------------------


async def describe(
    group: GroupRequests, version: int = 6, *, operations: bool = False
) -> DescribedGroup:
    request = DescribeGroupsRequest(
        groups=[group.group_id], include_authorized_operations=operations
    )
    async with group.kafka.raw() as client:
        (described,) = (await client.request(request, version)).groups
    return described


@pytest.mark.parametrize("version", range(7))
async def test_describe_a_stable_group(group: GroupRequests, version: int) -> None:
    member = await group.member("one")
    described = await describe(group, version)
    assert (described.error_code, described.group_state) == (NONE, "Stable")
    assert (described.protocol_type, described.protocol_data) == ("consumer", "range")
    assert described.authorized_operations == -(2**31)
    (only,) = described.members
    assert only.member_id == member.member_id
    assert only.group_instance_id == ("one" if version >= 4 else None)
    assert (only.client_id, only.client_host) == ("raw", "/127.0.0.1")
    assert bytes(only.member_metadata) == subscription("some-topic")
    assert bytes(only.member_assignment) == b"all"


@pytest.mark.parametrize(("version", "error"), [(5, NONE), (6, GROUP_ID_NOT_FOUND)])
async def test_describe_an_unknown_group(group: GroupRequests, version: int, error: int) -> None:
    described = await describe(group, version)
    assert (described.error_code, described.group_state) == (error, "Dead")
    expected = f"Group {group.group_id} not found." if version >= 6 else None
    assert described.error_message == expected
    assert (described.protocol_type, described.protocol_data, described.members) == ("", "", [])


async def test_describe_says_what_everyone_may_do(group: GroupRequests) -> None:
    await group.member()
    described = await describe(group, operations=True)
    allowed = [bit for bit in range(31) if described.authorized_operations >> bit & 1]
    assert allowed == [3, 6, 8, 10, 11]


async def test_describe_while_members_join(group: GroupRequests) -> None:
    member = await group.member()
    joining = asyncio.create_task(group.join_with_id())
    await group.until_state("PreparingRebalance")
    described = await describe(group)
    assert (described.group_state, described.protocol_data) == ("PreparingRebalance", "")
    assert len(described.members) == 2
    assert {bytes(item.member_metadata) for item in described.members} == {b""}
    assert {bytes(item.member_assignment) for item in described.members} == {b"", b"all"}
    await group.leave((member.member_id, None))
    joined = await joining
    assert (await describe(group)).group_state == "CompletingRebalance"
    await group.sync(MemberOf(joined.member_id, joined.generation_id))
    await group.leave((joined.member_id, None))
    described = await describe(group)
    assert (described.group_state, described.protocol_type) == ("Empty", "consumer")
    assert (described.protocol_data, described.members) == ("", [])


# -- delete -------------------------------------------------------------------------------------


async def delete(group: GroupRequests, *others: str, version: int = 2) -> dict[str, int]:
    request = DeleteGroupsRequest(groups_names=[group.group_id, *others])
    async with group.kafka.raw() as client:
        answer = await client.request(request, version)
    return {result.group_id: result.error_code for result in answer.results}


@pytest.mark.parametrize("version", range(3))
async def test_delete_groups(group: GroupRequests, cluster: KafkaHandle, version: int) -> None:
    topic = await cluster.create_topic()
    await group.commit(topic, 5)
    busy = GroupRequests(cluster)
    member = await busy.member()
    unknown = unique("unknown")
    assert await delete(group, busy.group_id, unknown, version=version) == {
        group.group_id: NONE,
        busy.group_id: NON_EMPTY_GROUP,
        unknown: GROUP_ID_NOT_FOUND,
    }
    assert (await group.fetch(topic)).committed_offset == -1
    assert await group.listed() is None
    assert await busy.heartbeat(member) == NONE


async def test_deleted_group_starts_afresh(group: GroupRequests) -> None:
    member = await group.member()
    await group.leave((member.member_id, None))
    assert await delete(group) == {group.group_id: NONE}
    assert (await group.member()).generation == 1


async def test_pending_id_ends_with_its_group(group: GroupRequests) -> None:
    pending = await group.join()
    assert await delete(group) == {group.group_id: NONE}
    refused = await group.join(pending.member_id)
    assert refused.error_code == errors.UnknownMemberIdError.errno
