"""SyncGroup (key 14), versions 0 to 5.

1 throttle time; 3 static members (KIP-345); 4 flexible; 5 both sides say the protocol, and the
group refuses a member that is mistaken about it (KIP-559).
"""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.groups.values import Sync
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.errors import InconsistentGroupProtocolError
from aiokafka_lite.protocol.messages.classic_group import SyncGroupRequest, SyncGroupResponse

FIRST_THAT_MUST_NAME_THE_PROTOCOL = 5


@handler(SyncGroupRequest)
async def handle(ctx: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
    """Fetch one's assignment; the leader's request brings everyone's."""
    is_named = request.protocol_type is not None and request.protocol_name is not None
    if ctx.api_version >= FIRST_THAT_MUST_NAME_THE_PROTOCOL and not is_named:
        return SyncGroupResponse(error_code=InconsistentGroupProtocolError.errno)
    synced = await ctx.groups.sync(
        request.group_id,
        Sync(
            member_id=request.member_id,
            generation=request.generation_id,
            instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol=request.protocol_name,
            assignments={item.member_id: item.assignment for item in request.assignments},
        ),
    )
    return SyncGroupResponse(
        error_code=synced.error.errno,
        protocol_type=synced.protocol_type,
        protocol_name=synced.protocol,
        assignment=synced.assignment,
    )
