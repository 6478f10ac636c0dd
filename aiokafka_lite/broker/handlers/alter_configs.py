"""AlterConfigs (key 33), versions 0 to 2.

2 flexible. What is not named goes back to its default: IncrementalAlterConfigs is what to use.
"""

from __future__ import annotations

from collections import Counter

from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.config_changes import Change, Operation, change_configs
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import code_of, text_of
from aiokafka_lite.broker.slices import in_slices
from aiokafka_lite.errors import InvalidRequestError, KafkaError
from aiokafka_lite.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


@handler(AlterConfigsRequest)
async def handle(ctx: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """Replace the settings of each resource, all of one or none."""
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
            await _replace(ctx, resource, validate_only=request.validate_only)
        except KafkaError as error:
            answer.error_code, answer.error_message = code_of(error), text_of(error)
        responses.append(answer)
    await ctx.cluster.disk.settled()
    return AlterConfigsResponse(responses=responses)


async def _replace(
    ctx: RequestContext, resource: AlterConfigsResource, *, validate_only: bool
) -> None:
    changes = [
        Change(config.name, Operation.SET, config.value)
        async for config in in_slices(resource.configs)
    ]
    change_configs(
        ctx,
        resource.resource_type,
        resource.resource_name,
        changes,
        replaces_all=True,
        validate_only=validate_only,
    )
