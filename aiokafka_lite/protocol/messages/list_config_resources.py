"""ListConfigResources (key 74): the resources that have settings.

v0 lists client metrics only (KIP-714), under the name ListClientMetricsResources; v1 other types
(KIP-1142).
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Route,
    Struct,
    array,
    int8,
    int16,
    int32,
    string,
)


class ConfigResource(Struct):
    """A resource; its type is 16, client metrics, before v1."""

    resource_name: str = string("0+")
    resource_type: int = int8("1+", default=16, ignorable=True)


class ListConfigResourcesResponse(Response):
    """Names and types."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    config_resources: list[ConfigResource] = array(ConfigResource, "0+")


class ListConfigResourcesRequest(
    Request[ListConfigResourcesResponse], key=74, versions="0-1", flexible="0+", route=Route.ANY
):
    """Which resources of these types are there? An empty list asks for all types."""

    resource_types: list[int] = array(int8, "1+")
