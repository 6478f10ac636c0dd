"""DeleteGroups (key 42), versions 0 to 2.

1 answers before it throttles; 2 flexible.
"""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.protocol.messages.groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


@handler(DeleteGroupsRequest, is_by_element=True)
def handle(ctx: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    """Delete groups that have no members, with everything they have committed."""
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=group_id, error_code=ctx.groups.delete(group_id).errno)
            for group_id in request.groups_names
        ]
    )
