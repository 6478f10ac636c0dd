"""DescribeGroups (key 15), versions 0 to 6.

1 throttle time; 3 authorized operations (KIP-430); 4 instance ids (KIP-345); 5 flexible;
6 an unknown group is GROUP_ID_NOT_FOUND (KIP-1043), before it was a group in state Dead.
"""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.groups.classic.machine import ClassicGroup, GroupState
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.errors import GroupIdNotFound, NoError
from aiokafka_lite.protocol.messages.groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

FIRST_WITH_GROUP_ID_NOT_FOUND = 6
NOT_ASKED = -(2**31)
# One bit for each operation on a group that exists: READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS,
# ALTER_CONFIGS. Without an authorizer everyone may do everything.
ALL_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11


@handler(DescribeGroupsRequest, is_by_element=True)
def handle(ctx: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    """Describe groups and their members."""
    groups = [_describe(ctx, group_id) for group_id in request.groups]
    if request.include_authorized_operations:
        for group in groups:
            if group.error_code == NoError.errno:
                group.authorized_operations = ALL_OPERATIONS
    return DescribeGroupsResponse(groups=groups)


def _describe(ctx: RequestContext, group_id: str) -> DescribedGroup:
    error = ctx.groups.availability(group_id)
    if error is not NoError:
        return DescribedGroup(group_id=group_id, error_code=error.errno)
    group = ctx.groups.groups.get(group_id)
    if isinstance(group, ClassicGroup):
        return DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=_settled_protocol(group) or "",
            members=_members(group),
        )
    described = DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
    if ctx.api_version >= FIRST_WITH_GROUP_ID_NOT_FOUND:
        described.error_code = GroupIdNotFound.errno
        what = "not found" if group is None else "is not a classic group"
        described.error_message = f"Group {group_id} {what}."
    return described


def _settled_protocol(group: ClassicGroup) -> str | None:
    """Return the protocol in use; while a group rebalances it may be about to choose another."""
    return group.protocol if group.state is GroupState.STABLE else None


def _members(group: ClassicGroup) -> list[DescribedGroupMember]:
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
        for member in group.members
    ]
