"""AlterConfigs (key 33): replace all settings of a resource.

v2 is flexible.
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


class AlterConfigsResponse(Response):
    """The outcome by resource."""

    throttle_time_ms: int = int32("0+")
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse, "0+")


class AlterableConfig(Struct):
    """A setting and its value."""

    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")


class AlterConfigsResource(Struct):
    """A resource with all that is to be set for it: what is not named goes back to its default."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configs: list[AlterableConfig] = array(AlterableConfig, "0+")


class AlterConfigsRequest(Request[AlterConfigsResponse], key=33, versions="0-2", flexible="2+"):
    """Replace the settings of these resources."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource, "0+")
    validate_only: bool = boolean("0+")
