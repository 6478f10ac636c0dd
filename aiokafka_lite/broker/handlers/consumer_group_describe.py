"""ConsumerGroupDescribe (key 69), versions 0 and 1 (KIP-848).

1 says of each member which protocol it speaks (KIP-1099).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.groups.kip848.group import ConsumerGroup
from aiokafka_lite.broker.groups.kip848.machine import preferred_assignor
from aiokafka_lite.broker.groups.kip848.member import ConsumerGroupMember
from aiokafka_lite.broker.handlers.describe_groups import ALL_OPERATIONS
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.errors import GroupIdNotFound, InvalidGroupIdError, NoError
from aiokafka_lite.protocol.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)

CLASSIC_MEMBER = 0
CONSUMER_MEMBER = 1


@handler(ConsumerGroupDescribeRequest, is_by_element=True)
def handle(
    ctx: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Describe groups, with the current and the target assignment of each member."""
    groups = [_describe(ctx, group_id) for group_id in request.group_ids]
    if request.include_authorized_operations:
        for group in groups:
            if group.error_code == NoError.errno:
                group.authorized_operations = ALL_OPERATIONS
    return ConsumerGroupDescribeResponse(groups=groups)


def _describe(ctx: RequestContext, group_id: str) -> DescribedGroup:
    error = ctx.groups.availability(group_id) if group_id else InvalidGroupIdError
    if error is not NoError:
        return DescribedGroup(group_id=group_id, error_code=error.errno)
    group = ctx.groups.groups.get(group_id)
    if not isinstance(group, ConsumerGroup):
        what = "not found" if group is None else "is not a consumer group"
        return DescribedGroup(
            group_id=group_id,
            error_code=GroupIdNotFound.errno,
            error_message=f"Group {group_id} {what}.",
        )
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=preferred_assignor(group.members.values()),
        members=[_member(ctx, group, member) for member in group.members.values()],
    )


def _member(ctx: RequestContext, group: ConsumerGroup, member: ConsumerGroupMember) -> Member:
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
    """Return partitions by topics; those that exist no more are left out."""
    topics = ((ctx.cluster.topic_by_id(topic_id), held) for topic_id, held in partitions.items())
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic.topic_id, topic_name=topic.name, partitions=sorted(held))
            for topic, held in topics
            if topic is not None
        ]
    )
