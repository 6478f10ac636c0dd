"""IncrementalAlterConfigs (key 44), versions 0 to 1.

1 flexible. What is not named stays as it is (KIP-339).
"""

from __future__ import annotations

from collections import Counter

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.config_changes import Change, change_configs
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import code_of, text_of
from aiokafka_lite.broker.slices import in_slices
from aiokafka_lite.errors import InvalidRequestError, KafkaError
from aiokafka_lite.protocol.messages.configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


@handler(IncrementalAlterConfigsRequest)
async def handle(
    ctx: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Change settings of each resource, all that are named of one or none."""
    named: Counter[tuple[int, str]] = Counter()
    async for resource in in_slices(request.resources):
        named[resource.resource_type, resource.resource_name] += 1
    responses = []
    async for resource in in_slices(request.resources):
        answer = AlterConfigsResourceResponse(
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            error_message=None,
        )
        try:
            if named[resource.resource_type, resource.resource_name] > 1:
                raise InvalidRequestError("Each resource must appear at most once.")
            await _change(ctx, resource, validate_only=request.validate_only)
        except KafkaError as error:
            answer.error_code, answer.error_message = code_of(error), text_of(error)
        responses.append(answer)
    await ctx.cluster.disk.settled()
    return IncrementalAlterConfigsResponse(responses=responses)


async def _change(
    ctx: RequestContext, resource: AlterConfigsResource, *, validate_only: bool
) -> None:
    changes = [
        Change(config.name, config.config_operation, config.value)
        async for config in in_slices(resource.configs)
    ]
    change_configs(
        ctx,
        resource.resource_type,
        resource.resource_name,
        changes,
        replaces_all=False,
        validate_only=validate_only,
    )
