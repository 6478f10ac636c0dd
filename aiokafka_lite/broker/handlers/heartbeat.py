"""Heartbeat (key 12), versions 0 to 4.

1 throttle time; 3 static members (KIP-345); 4 flexible.
"""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.protocol.messages.classic_group import HeartbeatRequest, HeartbeatResponse


@handler(HeartbeatRequest)
def handle(ctx: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    """Keep a member's session alive and tell it when it has to join again."""
    error = ctx.groups.heartbeat(
        request.group_id, request.member_id, request.group_instance_id, request.generation_id
    )
    return HeartbeatResponse(error_code=error.errno)
