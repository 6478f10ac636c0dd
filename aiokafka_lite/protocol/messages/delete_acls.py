"""DeleteAcls (key 31): take permissions back (KIP-140).

v1 pattern types (KIP-290); v2 is flexible; v3 users as resources (KIP-373).
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


class DeleteAclsMatchingAcl(Struct):
    """A permission that matched."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    pattern_type: int = int8("1+", default=3)
    principal: str = string("0+")
    host: str = string("0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


class DeleteAclsFilterResult(Struct):
    """What matched one filter."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    matching_acls: list[DeleteAclsMatchingAcl] = array(DeleteAclsMatchingAcl, "0+")


class DeleteAclsResponse(Response):
    """Outcomes, in the order of the filters."""

    throttle_time_ms: int = int32("0+")
    filter_results: list[DeleteAclsFilterResult] = array(DeleteAclsFilterResult, "0+")


class DeleteAclsFilter(Struct):
    """Which permissions; a null matches everything."""

    resource_type_filter: int = int8("0+")
    resource_name_filter: str | None = string("0+", nullable="0+")
    pattern_type_filter: int = int8("1+", default=3)
    principal_filter: str | None = string("0+", nullable="0+")
    host_filter: str | None = string("0+", nullable="0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


class DeleteAclsRequest(
    Request[DeleteAclsResponse], key=31, versions="1-3", flexible="2+", route=Route.CONTROLLER
):
    """Delete the permissions that match."""

    filters: list[DeleteAclsFilter] = array(DeleteAclsFilter, "0+")
