"""ListGroups (key 16), versions 0 to 5.

1 throttle time; 3 flexible; 4 filter by state, states in the answer (KIP-518); 5 the same for the
type of the group (KIP-848).
"""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.errors import CoordinatorLoadInProgressError
from aiokafka_lite.protocol.messages.list_groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)

CLASSIC_TYPE = "classic"


@handler(ListGroupsRequest)
def handle(ctx: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    """List the groups that this broker coordinates; filters do not mind the case of letters."""
    if ctx.groups.is_loading:
        return ListGroupsResponse(error_code=CoordinatorLoadInProgressError.errno)
    states = {name.strip().lower() for name in request.states_filter}
    types = {name.strip().lower() for name in request.types_filter}
    if types and CLASSIC_TYPE not in types:
        return ListGroupsResponse()
    return ListGroupsResponse(
        groups=[
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type or "",
                group_state=group.state.value,
                group_type=CLASSIC_TYPE,
            )
            for group in ctx.groups.groups.values()
            if not states or group.state.value.lower() in states
        ]
    )
