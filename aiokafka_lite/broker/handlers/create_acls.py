"""CreateAcls (key 30), versions 1 to 3.

1 pattern types (KIP-290); 2 flexible; 3 users as resources (KIP-373). There is no authorizer.
"""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import NO_AUTHORIZER
from aiokafka_lite.errors import SecurityDisabled
from aiokafka_lite.protocol.messages.create_acls import (
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)


@handler(CreateAclsRequest, is_by_element=True)
def handle(ctx: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    """Refuse each permission."""
    return CreateAclsResponse(
        results=[
            AclCreationResult(error_code=SecurityDisabled.errno, error_message=NO_AUTHORIZER)
            for _ in request.creations
        ]
    )
