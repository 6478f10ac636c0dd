"""What administrators ask about share groups, on the embedded broker and on Kafka."""

from __future__ import annotations

from aiokafka_lite import errors
from aiokafka_lite.broker import Broker
from aiokafka_lite.protocol.messages.groups import ListGroupsRequest
from aiokafka_lite.protocol.messages.metadata import ApiVersionsRequest, FindCoordinatorRequest
from aiokafka_lite.protocol.messages.share_groups import ShareGroupDescribeRequest
from aiokafka_lite.protocol.wire import uuid_to_str
from tests.broker.groups.share.requests import ShareGroupRequests
from tests.support.cluster import KafkaHandle
from tests.support.group_requests import await_coordinator

NONE = 0
SHARE_PARTITION = 2  # the type of a key


async def test_described_group_shows_its_members(group: ShareGroupRequests, topic: str) -> None:
    first = group.of("a", topic, rack_id="r")
    await first.join()
    await first.until(lambda: first.count == 4)
    await group.of("b", topic, "another").join()
    described = await group.described()
    assert (described.error_code, described.error_message) == (NONE, None)
    assert (described.group_state, described.assignor_name) == ("Stable", "simple")
    assert (described.group_epoch, described.assignment_epoch) == (4, 4)
    assert described.authorized_operations == -(2**31)
    members = {member.member_id: member for member in described.members}
    one, other = members["a"], members["b"]
    assert (one.rack_id, one.member_epoch, other.rack_id, other.member_epoch) == ("r", 3, None, 4)
    assert (one.client_id, one.client_host) == ("raw", "/127.0.0.1")
    assert (one.subscribed_topic_names, sorted(other.subscribed_topic_names)) == (
        [topic],
        sorted([topic, "another"]),
    )
    (held,) = one.assignment.topic_partitions
    assert (held.topic_name, held.topic_id) == (topic, await group.topic_id(topic))
    assert sorted(held.partitions) == [0, 1, 2, 3]
    (held,) = other.assignment.topic_partitions
    assert len(held.partitions) == 2


async def test_describe_names_errors_and_operations(
    cluster: KafkaHandle, group: ShareGroupRequests
) -> None:
    await group.of("a", "t").join()
    request = ShareGroupDescribeRequest(
        group_ids=["", group.group_id, "no-such"], include_authorized_operations=True
    )
    async with cluster.raw() as client:
        found = {each.group_id: each for each in (await client.request(request)).groups}
    assert found[""].error_code == errors.InvalidGroupIdError.errno
    assert found["no-such"].error_code == errors.GroupIdNotFound.errno
    assert found["no-such"].error_message == "Group no-such not found."
    allowed = found[group.group_id].authorized_operations
    assert [bit for bit in range(31) if allowed >> bit & 1] == [3, 6, 8, 10, 11]


async def test_group_is_listed_until_it_is_deleted(
    cluster: KafkaHandle, group: ShareGroupRequests
) -> None:
    member = group.of("a", "t")
    await member.join()
    request = ListGroupsRequest(states_filter=["stable"], types_filter=["SHARE"])
    async with cluster.raw() as client:
        listed = (await client.request(request)).groups
    (found,) = (each for each in listed if each.group_id == group.group_id)
    assert (found.group_type, found.protocol_type, found.group_state) == (
        "share",
        "share",
        "Stable",
    )
    assert await group.delete() == errors.NonEmptyGroup.errno
    await member.leave()
    assert (await group.described()).group_state == "Empty"
    assert (await group.described()).group_epoch == 3
    assert await group.delete() == NONE
    assert await group.listed() is None
    assert await group.delete() == errors.GroupIdNotFound.errno
    assert (await member.join()).member_epoch == 2


async def test_coordinator_of_share_partitions_is_found(
    cluster: KafkaHandle, group: ShareGroupRequests, topic: str
) -> None:
    await (member := group.of("a", topic)).join()
    await member.until(lambda: member.count == 4)
    key = f"{group.group_id}:{uuid_to_str(await group.topic_id(topic))}:0"
    wrong = ["", "x", "a:b", "a:b:c", f"{key}:1"]
    async with cluster.raw() as client:
        find = FindCoordinatorRequest(key_type=SHARE_PARTITION, coordinator_keys=[key])
        (found,) = (await client.request(find)).coordinators
        assert (found.error_code, found.key, found.node_id) == (NONE, key, 1)
        for key in wrong:
            find.coordinator_keys = [key]
            (found,) = (await client.request(find)).coordinators
            assert (found.error_code, found.node_id) == (errors.InvalidRequestError.errno, -1)


async def test_share_groups_are_a_feature(cluster: KafkaHandle) -> None:
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    async with cluster.raw() as client:
        answer = await client.request(request, 4)
    supported = {each.name: each.max_version for each in answer.supported_features}
    finalized = {each.name: each.max_version_level for each in answer.finalized_features}
    assert supported["share.version"] == finalized["share.version"]
    # 2 since Kafka 4.4 (KIP-1191).
    assert supported["share.version"] in ([2] if cluster.kind == "embedded" else [1, 2])
    ranges = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    assert (ranges[76], ranges[77]) == ((1, 1), (1, 1))


async def test_full_group_takes_no_more_members() -> None:
    async with Broker(group_share_max_size=2) as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        await await_coordinator(kafka)
        group = ShareGroupRequests(kafka, "g")
        for member_id in "ab":
            await group.of(member_id, "t").join()
        for epoch in (0, 1):
            answer = await group.beat("c", epoch, topics=["t"])
            assert answer.error_code == errors.GroupMaxSizeReachedError.errno
            assert answer.error_message == (
                "The share group has reached its maximum capacity of 2 members."
            )
        assert (await group.of("a", "t").join()).error_code == NONE
