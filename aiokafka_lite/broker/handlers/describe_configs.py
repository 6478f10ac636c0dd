"""DescribeConfigs (key 32), versions 1 to 4.

1 synonyms and sources (KIP-226); 3 types and documentation (KIP-569); 4 flexible.

A broker is described by itself only; the empty name stands for what was set for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from aiokafka_lite.broker.configs.definition import ConfigType
from aiokafka_lite.broker.configs.settings import ALL_NODES, ResourceType, Setting
from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.handlers.registry import handler
from aiokafka_lite.broker.handlers.replies import code_of, text_of
from aiokafka_lite.broker.topics import check_topic_name
from aiokafka_lite.errors import (
    InvalidRequestError,
    KafkaError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


@handler(DescribeConfigsRequest, is_by_element=True)
def handle(ctx: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """Tell the settings of each resource."""
    return DescribeConfigsResponse(
        results=[_describe(ctx, request, resource) for resource in request.resources]
    )


def _describe(
    ctx: RequestContext, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    try:
        settings = _settings(ctx, resource.resource_type, resource.resource_name)
    except KafkaError as error:
        result.error_code, result.error_message = code_of(error), text_of(error)
        return result
    is_broker = resource.resource_type == ResourceType.BROKER
    result.configs = [
        _told(setting, request, is_broker=is_broker)
        for setting in settings
        if _is_wanted(setting.definition.name, resource.configuration_keys)
    ]
    return result


def _is_wanted(name: str, wanted: Collection[str] | None) -> bool:
    return not wanted or name in wanted


def _settings(ctx: RequestContext, kind: int, name: str) -> Iterator[Setting]:
    """Return the settings of a resource.

    Raises:
        InvalidRequestError: There can be no such resource, or another node has to be asked.
        InvalidTopicError: There can be no such topic.
        UnknownTopicOrPartitionError: There is no such topic.
    """
    settings = ctx.cluster.catalog.settings
    match kind:
        case ResourceType.TOPIC:
            check_topic_name(name)
            topic = ctx.cluster.topic(name)
            if topic is None:
                raise UnknownTopicOrPartitionError("")
            return settings.of_topic(topic.config.overrides)
        case ResourceType.BROKER:
            if name == ALL_NODES:
                return settings.of_all_nodes()
            if _node_id(name) != ctx.node.id:
                raise InvalidRequestError(
                    f"Unexpected broker id, expected {ctx.node.id} or empty string, "
                    f"but received {name}"
                )
            names = [listener.name for listener in ctx.cluster.config.all_listeners]
            listeners = {each: ctx.node.address_on(each) for each in names}
            return settings.of_node(ctx.node.address, listeners)
        case ResourceType.GROUP:
            if not name:
                raise InvalidRequestError("Group name must not be empty")
            return settings.of_group(name)
        case _:
            raise InvalidRequestError(f"Unsupported resource type: {kind}")


def _node_id(name: str) -> int:
    try:
        return int(name)
    except ValueError:
        raise InvalidRequestError(f"Broker id must be an integer, but it is: {name}") from None


def _told(
    setting: Setting, request: DescribeConfigsRequest, *, is_broker: bool
) -> DescribeConfigsResourceResult:
    definition = setting.definition
    return DescribeConfigsResourceResult(
        name=definition.name,
        value=setting.value,
        read_only=is_broker and not definition.is_dynamic,
        config_source=setting.source,
        is_sensitive=definition.is_sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=name, value=value, source=source)
            for name, value, source in setting.synonyms
            if request.include_synonyms
        ],
        config_type=ConfigType(definition.kind),
        documentation=definition.documentation if request.include_documentation else None,
    )
