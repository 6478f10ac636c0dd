"""DeleteAcls (key 31), versions 1 to 3.

1 pattern types (KIP-290); 2 flexible; 3 users as resources (KIP-373). There is no authorizer.
"""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import NO_AUTHORIZER
from aiokafka_lite.errors import SecurityDisabled
from aiokafka_lite.protocol.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsRequest,
    DeleteAclsResponse,
)


@handler(DeleteAclsRequest, is_by_element=True)
def handle(ctx: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    """Refuse each filter."""
    return DeleteAclsResponse(
        filter_results=[
            DeleteAclsFilterResult(error_code=SecurityDisabled.errno, error_message=NO_AUTHORIZER)
            for _ in request.filters
        ]
    )
