"""JoinGroup (key 11), versions 0 to 9.

1 rebalance timeout of its own; 2 throttle time; 4 a member must come back with the id it was given
(KIP-394); 5 static members (KIP-345); 6 flexible; 7 the answer says the protocol type (KIP-559);
8 a reason for the server's log (KIP-800); 9 SkipAssignment for a static leader (KIP-814).
"""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.groups.values import Join
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.protocol.messages.classic_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)

FIRST_THAT_MUST_KNOW_ITS_ID = 4
FIRST_WITH_NULLABLE_PROTOCOL = 7
FIRST_THAT_CAN_SKIP_THE_ASSIGNMENT = 9


@handler(JoinGroupRequest)
async def handle(ctx: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
    """Join a group; answered when the rebalance has gathered its members."""
    rebalance_timeout_ms = request.rebalance_timeout_ms
    if rebalance_timeout_ms < 0:  # version 0 has none
        rebalance_timeout_ms = request.session_timeout_ms
    joined = await ctx.groups.join(
        request.group_id,
        Join(
            protocol_type=request.protocol_type,
            protocols=tuple((item.name, item.metadata) for item in request.protocols),
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            client_id=ctx.client_id or "",
            client_host=ctx.client_host,
            needs_known_member_id=ctx.api_version >= FIRST_THAT_MUST_KNOW_ITS_ID,
            can_skip_assignment=ctx.api_version >= FIRST_THAT_CAN_SKIP_THE_ASSIGNMENT,
        ),
    )
    protocol = joined.protocol
    if ctx.api_version < FIRST_WITH_NULLABLE_PROTOCOL:
        protocol = protocol or ""
    return JoinGroupResponse(
        error_code=joined.error.errno,
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=protocol,
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata,
            )
            for member in joined.members
        ],
    )
