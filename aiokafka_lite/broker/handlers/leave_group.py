"""LeaveGroup (key 13), versions 0 to 5.

1 throttle time; 3 several members at once, by instance id too, each with an error of its own
(KIP-345); 4 flexible; 5 a reason for the server's log (KIP-800).
"""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.groups.values import Leaver
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.protocol.messages.classic_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)


@handler(LeaveGroupRequest, is_by_element=True)
def handle(ctx: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    """Remove members from a group."""
    leavers = [Leaver(item.member_id, item.group_instance_id) for item in request.members]
    error, errors = ctx.groups.leave(request.group_id, leavers)
    return LeaveGroupResponse(
        error_code=error.errno,
        members=[
            MemberResponse(
                member_id=leaver.member_id,
                group_instance_id=leaver.instance_id,
                error_code=member_error.errno,
            )
            for leaver, member_error in zip(leavers, errors, strict=not error.errno)
        ],
    )
