"""DescribeConfigs (key 32): the settings of topics, brokers and groups.

v1 synonyms and where a value comes from (KIP-226); v3 types and documentation (KIP-569); v4 is
flexible.
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


class DescribeConfigsSynonym(Struct):
    """A setting of another place or name that the value may come from; the first one wins."""

    name: str = string("1+")
    value: str | None = string("1+", nullable="0+")
    source: int = int8("1+")


class DescribeConfigsResourceResult(Struct):
    """One setting; the value of a sensitive one is null."""

    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")
    read_only: bool = boolean("0+")
    config_source: int = int8("1+", default=-1, ignorable=True)
    is_sensitive: bool = boolean("0+")
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym, "1+", ignorable=True)
    config_type: int = int8("3+", default=0, ignorable=True)
    documentation: str | None = string("3+", nullable="0+", ignorable=True)


class DescribeConfigsResult(Struct):
    """The settings of one resource."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configs: list[DescribeConfigsResourceResult] = array(DescribeConfigsResourceResult, "0+")


class DescribeConfigsResponse(Response):
    """Settings by resource."""

    throttle_time_ms: int = int32("0+")
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult, "0+")


class DescribeConfigsResource(Struct):
    """A resource, and which of its settings are asked for: null for all."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configuration_keys: list[str] | None = array(string, "0+", nullable="0+")


class DescribeConfigsRequest(
    Request[DescribeConfigsResponse], key=32, versions="1-4", flexible="4+"
):
    """What are the settings of these resources?"""

    resources: list[DescribeConfigsResource] = array(DescribeConfigsResource, "0+")
    include_synonyms: bool = boolean("1+")
    include_documentation: bool = boolean("3+")
