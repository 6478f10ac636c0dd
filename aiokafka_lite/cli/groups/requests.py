"""Requests about groups: their names, members and committed offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from aiokafka_lite.cli.asking import why
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.errors import (
    GroupIdNotFound,
    KafkaProtocolError,
    UnsupportedVersionError,
    for_code,
)
from aiokafka_lite.protocol.codec import decode_versioned
from aiokafka_lite.protocol.messages import consumer_group_describe, groups
from aiokafka_lite.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from aiokafka_lite.protocol.messages.group_members import ConsumerProtocolAssignment
from aiokafka_lite.protocol.messages.groups import DescribeGroupsRequest, ListGroupsRequest
from aiokafka_lite.protocol.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from aiokafka_lite.structs import TopicPartition

T = TypeVar("T")

DEAD: Final = "Dead"
# States without members, in which committed offsets may be changed.
WITHOUT_MEMBERS: Final = ("Empty", DEAD)


class GroupListing(NamedTuple):
    """A group in a broker's list. Old brokers have neither state nor type."""

    group_id: str
    state: str
    type: str
    protocol_type: str
    coordinator: int


class MemberDescription(NamedTuple):
    member_id: str
    client_id: str
    host: str
    partitions: frozenset[TopicPartition]


class GroupDescription(NamedTuple):
    group_id: str
    state: str
    assignor: str
    members: tuple[MemberDescription, ...]


def list_groups(cluster: BlockingCluster) -> list[GroupListing]:
    """Wait while a node loads its groups. Each retry asks the nodes that the cluster has then."""

    def of(node: int) -> list[GroupListing]:
        response = cluster.request(node, ListGroupsRequest())
        if response.error_code:
            error = for_code(response.error_code)
            raise error(f"broker {node} rejected the ListGroups request: {why(error)}")
        return [
            GroupListing(each.group_id, each.group_state, each.group_type, each.protocol_type, node)
            for each in response.groups
        ]

    return cluster.retrying(
        lambda: sorted(each for node in sorted(cluster.look([]).nodes) for each in of(node))
    )


def describe(
    cluster: BlockingCluster, node: int, group_ids: Iterable[str]
) -> list[GroupDescription]:
    """Return descriptions of groups. A group that does not exist has the state `DEAD`."""
    found: dict[str, GroupDescription] = {}
    left = list(group_ids)
    try:
        # Classic groups are not found by this request, as in Java's admin client.
        response = cluster.request(node, ConsumerGroupDescribeRequest(group_ids=left))
    except UnsupportedVersionError:
        pass  # the broker has no groups of KIP-848
    else:
        for group in response.groups:
            # The second is from Kafka 3.9, where the protocol is disabled.
            if group.error_code in (GroupIdNotFound.errno, UnsupportedVersionError.errno):
                continue
            _raise_for(group.group_id, group.error_code, group.error_message)
            found[group.group_id] = _of_consumer(group)
    left = [each for each in left if each not in found]
    if left:
        for classic in cluster.request(node, DescribeGroupsRequest(groups=left)).groups:
            if classic.error_code != GroupIdNotFound.errno:
                _raise_for(classic.group_id, classic.error_code, classic.error_message)
            found[classic.group_id] = _of_classic(classic)
    return list(found.values())


def at_coordinator(cluster: BlockingCluster, group_id: str, ask: Callable[[int], T]) -> T:
    """Call with the node id of the group's coordinator. Each retry looks it up again."""
    return cluster.retrying(lambda: ask(cluster.coordinator(group_id)))


def read_group(
    cluster: BlockingCluster, group_id: str
) -> tuple[GroupDescription, dict[TopicPartition, int]]:
    """Return a group's description and its committed offsets."""

    def ask(node: int) -> tuple[GroupDescription, dict[TopicPartition, int]]:
        described = describe(cluster, node, [group_id])
        if not described:
            raise KafkaProtocolError(
                f"the broker's DescribeGroups response does not contain group {group_id!r}"
            )
        return described[0], _committed(cluster, node, group_id)

    return at_coordinator(cluster, group_id, ask)


def _raise_for(group_id: str, error_code: int, message: str | None) -> None:
    if error_code:
        error = for_code(error_code)
        raise error(f"group {group_id} cannot be described: {message or why(error)}")


def _member(
    member: consumer_group_describe.Member | groups.DescribedGroupMember,
    partitions: frozenset[TopicPartition],
) -> MemberDescription:
    host = member.client_host.lstrip("/")
    return MemberDescription(member.member_id, member.client_id, host, partitions)


def _of_consumer(group: consumer_group_describe.DescribedGroup) -> GroupDescription:
    members = tuple(
        _member(
            each,
            frozenset(
                TopicPartition(topic.topic_name, number)
                for topic in each.assignment.topic_partitions
                for number in topic.partitions
            ),
        )
        for each in group.members
    )
    return GroupDescription(group.group_id, group.group_state, group.assignor_name, members)


def _of_classic(group: groups.DescribedGroup) -> GroupDescription:
    members = tuple(_member(each, _assigned(each.member_assignment)) for each in group.members)
    state = DEAD if group.error_code == GroupIdNotFound.errno else group.group_state
    return GroupDescription(group.group_id, state, group.protocol_data, members)


def _assigned(blob: bytes) -> frozenset[TopicPartition]:
    """Empty if the assignment is not a consumer's."""
    try:
        assignment = decode_versioned(ConsumerProtocolAssignment, blob) if blob else None
    except (KafkaProtocolError, UnsupportedVersionError):
        return frozenset()
    return frozenset(
        TopicPartition(each.topic, number)
        for each in (assignment.assigned_partitions if assignment is not None else ())
        for number in each.partitions
    )


def _committed(cluster: BlockingCluster, node: int, group_id: str) -> dict[TopicPartition, int]:
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group_id, topics=None)])
    offsets: dict[TopicPartition, int] = {}
    for group in cluster.request(node, request).groups:
        if group.error_code != GroupIdNotFound.errno:
            _raise_for(group_id, group.error_code, None)
        for topic in group.topics:
            for each in topic.partitions:
                name = topic.name or cluster.view.topic_names.get(topic.topic_id, "")
                # A topic without a name was deleted.
                if name and not each.error_code and each.committed_offset >= 0:
                    offsets[TopicPartition(name, each.partition_index)] = each.committed_offset
    return offsets


def owners(members: Iterable[MemberDescription]) -> Mapping[TopicPartition, MemberDescription]:
    return {tp: member for member in members for tp in member.partitions}
