"""IncrementalAlterConfigs (key 44): change single settings of a resource (KIP-339).

v1 is flexible.
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    string,
)


class AlterConfigsResourceResponse(Struct):
    """The outcome for one resource."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    resource_type: int = int8("0+")
    resource_name: str = string("0+")


class IncrementalAlterConfigsResponse(Response):
    """The outcome by resource."""

    throttle_time_ms: int = int32("0+")
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse, "0+")


class AlterableConfig(Struct):
    """A setting, and whether to set it, delete it, append to its list or subtract from it."""

    name: str = string("0+")
    config_operation: int = int8("0+")
    value: str | None = string("0+", nullable="0+")


class AlterConfigsResource(Struct):
    """A resource and the changes to its settings."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configs: list[AlterableConfig] = array(AlterableConfig, "0+")


class IncrementalAlterConfigsRequest(
    Request[IncrementalAlterConfigsResponse],
    key=44,
    versions="0-1",
    flexible="1+",
):
    """Change settings of these resources; all changes of a resource are made, or none."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource, "0+")
    validate_only: bool = boolean("0+")
