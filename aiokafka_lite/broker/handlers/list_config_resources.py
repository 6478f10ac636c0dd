"""ListConfigResources (key 74), versions 0 to 1.

0 is ListClientMetricsResources (KIP-714); 1 other types of resources (KIP-1142).
"""

from __future__ import annotations

from aiokafka_lite.broker.configs.settings import ResourceType
from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.errors import UnsupportedVersionError
from aiokafka_lite.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

FIRST_WITH_TYPES = 1


@handler(ListConfigResourcesRequest)
def handle(ctx: RequestContext, request: ListConfigResourcesRequest) -> ListConfigResourcesResponse:
    """List the resources that settings can be asked of, or were made for."""
    wanted: set[int] = set(request.resource_types)
    if ctx.api_version < FIRST_WITH_TYPES:
        wanted = {ResourceType.CLIENT_METRICS}
    if not wanted <= set(ResourceType):
        return ListConfigResourcesResponse(error_code=UnsupportedVersionError.errno)
    kinds = [kind for kind in ResourceType if not wanted or kind in wanted]
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in kinds
            for name in _names(ctx, kind)
        ]
    )


def _names(ctx: RequestContext, kind: ResourceType) -> list[str]:
    match kind:
        case ResourceType.TOPIC:
            return list(ctx.broker.topics)
        case ResourceType.BROKER | ResourceType.BROKER_LOGGER:
            return [str(node.id) for node in ctx.broker.live_nodes]
        case _:
            return ctx.broker.catalog.settings.resources(kind)
