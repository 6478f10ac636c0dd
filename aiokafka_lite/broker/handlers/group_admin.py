"""Handlers that list, describe and delete groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.groups.classic.machine import ClassicGroup, GroupState
from aiokafka_lite.broker.groups.kip848.driver import Group
from aiokafka_lite.broker.groups.kip848.group import ConsumerGroup
from aiokafka_lite.broker.groups.kip848.machine import preferred_assignor
from aiokafka_lite.broker.groups.kip848.member import ConsumerGroupMember
from aiokafka_lite.broker.groups.values import CONSUMER_PROTOCOL_TYPE
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import GROUP_OPERATIONS, answered
from aiokafka_lite.broker.slices import in_slices
from aiokafka_lite.errors import (
    CoordinatorLoadInProgressError,
    GroupIdNotFound,
    InvalidGroupIdError,
    NoError,
)
from aiokafka_lite.protocol.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)
from aiokafka_lite.protocol.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from aiokafka_lite.protocol.messages.groups import DescribedGroup as DescribedClassicGroup
from aiokafka_lite.protocol.source import Steps

DescribedT = TypeVar("DescribedT", DescribedClassicGroup, DescribedGroup)

CLASSIC_TYPE = "classic"
CONSUMER_TYPE = "consumer"


@handler(ListGroupsRequest)
async def list_groups(ctx: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    """List the groups of this node. Filters ignore case."""
    states = {name.strip().lower() async for name in in_slices(request.states_filter)}
    types = {name.strip().lower() async for name in in_slices(request.types_filter)}
    if ctx.groups.is_loading:
        return ListGroupsResponse(error_code=CoordinatorLoadInProgressError.errno)
    listed = [_listed(group) async for group in in_slices(tuple(ctx.groups.groups.values()))]
    return ListGroupsResponse(
        groups=[
            group
            for group in listed
            if (not states or group.group_state.lower() in states)
            and (not types or group.group_type in types)
        ]
    )


def _listed(group: Group) -> ListedGroup:
    listed = ListedGroup(group_id=group.group_id, group_state=group.state.value)
    if isinstance(group, ClassicGroup):
        listed.protocol_type, listed.group_type = group.protocol_type or "", CLASSIC_TYPE
    else:
        listed.protocol_type, listed.group_type = CONSUMER_PROTOCOL_TYPE, CONSUMER_TYPE
    return listed


FIRST_WITH_GROUP_ID_NOT_FOUND = 6


@handler(DescribeGroupsRequest)
def describe_groups(
    ctx: RequestContext, request: DescribeGroupsRequest
) -> Steps[DescribeGroupsResponse]:
    """Describe classic groups. Before version 6, an unknown group is in state Dead (KIP-1043)."""
    return answered(ctx, request, _with_operations(request, _describe_classic))


def _with_operations(
    request: DescribeGroupsRequest | ConsumerGroupDescribeRequest,
    describe: Callable[[RequestContext, str, DescribedT], None],
) -> Callable[[RequestContext, str, DescribedT], None]:
    def fill(ctx: RequestContext, group_id: str, described: DescribedT) -> None:
        describe(ctx, group_id, described)
        if request.include_authorized_operations and described.error_code == NoError.errno:
            described.authorized_operations = GROUP_OPERATIONS

    return fill


def _describe_classic(ctx: RequestContext, group_id: str, described: DescribedClassicGroup) -> None:
    described.error_code = ctx.groups.availability(group_id).errno
    group = ctx.groups.groups.get(group_id)
    if described.error_code:
        return
    if isinstance(group, ClassicGroup):
        described.group_state = group.state.value
        described.protocol_type = group.protocol_type or ""
        described.protocol_data = _settled_protocol(group) or ""
        described.members = _classic_members(group)
        return
    described.group_state = GroupState.DEAD.value
    if ctx.api_version >= FIRST_WITH_GROUP_ID_NOT_FOUND:
        what = "not found" if group is None else "is not a classic group"
        raise GroupIdNotFound(f"Group {group_id} {what}.")


def _settled_protocol(group: ClassicGroup) -> str | None:
    """Return the protocol of a stable group. A rebalance may change it."""
    return group.protocol if group.state is GroupState.STABLE else None


def _classic_members(group: ClassicGroup) -> list[DescribedGroupMember]:
    protocol = _settled_protocol(group)
    return [
        DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=b"" if protocol is None else member.metadata(protocol),
            member_assignment=member.assignment,
        )
        for member in group.members.values()
    ]


CLASSIC_MEMBER = 0
CONSUMER_MEMBER = 1


@handler(ConsumerGroupDescribeRequest)
def consumer_group_describe(
    ctx: RequestContext, request: ConsumerGroupDescribeRequest
) -> Steps[ConsumerGroupDescribeResponse]:
    return answered(ctx, request, _with_operations(request, _describe_consumers))


def _describe_consumers(ctx: RequestContext, group_id: str, described: DescribedGroup) -> None:
    error = ctx.groups.availability(group_id) if group_id else InvalidGroupIdError
    described.error_code = error.errno
    group = ctx.groups.groups.get(group_id)
    if described.error_code:
        return
    if not isinstance(group, ConsumerGroup):
        what = "not found" if group is None else "is not a consumer group"
        raise GroupIdNotFound(f"Group {group_id} {what}.")
    described.group_state = group.state.value
    described.group_epoch = group.epoch
    described.assignment_epoch = group.target_epoch
    described.assignor_name = preferred_assignor(group.members.values())
    described.members = [_consumer_member(ctx, group, member) for member in group.members.values()]


def _consumer_member(
    ctx: RequestContext, group: ConsumerGroup, member: ConsumerGroupMember
) -> Member:
    held: dict[bytes, list[int]] = {}
    for partitions in (member.assigned, member.pending_revocation):
        for topic_id, numbers in partitions.items():
            held.setdefault(topic_id, []).extend(sorted(numbers))
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topic_names),
        subscribed_topic_regex=member.topic_regex,
        assignment=_assignment(ctx, held),
        target_assignment=_assignment(ctx, group.target_of(member)),
        member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    )


def _assignment(ctx: RequestContext, partitions: Mapping[bytes, Iterable[int]]) -> Assignment:
    """Return partitions by topic, without deleted topics."""
    topics = ((ctx.cluster.topic_by_id(topic_id), held) for topic_id, held in partitions.items())
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic.topic_id, topic_name=topic.name, partitions=sorted(held))
            for topic, held in topics
            if topic is not None
        ]
    )


@handler(DeleteGroupsRequest)
def delete_groups(ctx: RequestContext, request: DeleteGroupsRequest) -> Steps[DeleteGroupsResponse]:
    return answered(ctx, request, _delete)


def _delete(ctx: RequestContext, group_id: str, result: DeletableGroupResult) -> None:
    result.error_code = ctx.groups.delete(group_id).errno
