"""AlterConfigs (key 33), which IncrementalAlterConfigs replaces."""

from __future__ import annotations

from aiokafka_lite.protocol.fields import array, boolean, int8, int32, string
from aiokafka_lite.protocol.messages.configs import AlterConfigsResourceResponse
from aiokafka_lite.protocol.schema import Request, Response, Struct


class AlterConfigsResponse(Response):
    throttle_time_ms: int = int32("0+")
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse, "0+")


class AlterableConfig(Struct):
    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")


class AlterConfigsResource(Struct):
    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configs: list[AlterableConfig] = array(AlterableConfig, "0+")


class AlterConfigsRequest(Request[AlterConfigsResponse], key=33, versions="0-2", flexible="2+"):
    """Replace all settings of resources: a setting that is not named gets its default."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource, "0+")
    validate_only: bool = boolean("0+")
