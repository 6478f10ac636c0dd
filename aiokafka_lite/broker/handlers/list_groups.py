"""ListGroups (key 16), versions 0 to 5.

1 throttle time; 3 flexible; 4 filter by state, states in the answer (KIP-518); 5 the same for the
type of the group (KIP-848).
"""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.groups.classic.machine import ClassicGroup
from aiokafka_lite.broker.groups.kip848.driver import Group
from aiokafka_lite.broker.groups.values import CONSUMER_PROTOCOL_TYPE
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.slices import in_slices
from aiokafka_lite.errors import CoordinatorLoadInProgressError
from aiokafka_lite.protocol.messages.groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)

CLASSIC_TYPE = "classic"
CONSUMER_TYPE = "consumer"


@handler(ListGroupsRequest)
async def handle(ctx: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    """List the groups that this node coordinates; filters ignore case."""
    if ctx.groups.is_loading:
        return ListGroupsResponse(error_code=CoordinatorLoadInProgressError.errno)
    states = {name.strip().lower() async for name in in_slices(request.states_filter)}
    types = {name.strip().lower() async for name in in_slices(request.types_filter)}
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
