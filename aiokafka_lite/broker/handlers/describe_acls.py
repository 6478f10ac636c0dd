"""DescribeAcls (key 29), versions 1 to 3.

1 pattern types (KIP-290); 2 flexible; 3 users as resources (KIP-373). There is no authorizer.
"""

from __future__ import annotations

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.errors import SecurityDisabled
from aiokafka_lite.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse


@handler(DescribeAclsRequest)
def handle(ctx: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    """Say that everyone may do everything, in Kafka's words."""
    return DescribeAclsResponse(
        error_code=SecurityDisabled.errno,
        error_message="No Authorizer is configured on the broker",
    )
