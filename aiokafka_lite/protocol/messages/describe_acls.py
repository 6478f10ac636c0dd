"""DescribeAcls (key 29): who may do what (KIP-140).

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


class AclDescription(Struct):
    """One permission."""

    principal: str = string("0+")
    host: str = string("0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


class DescribeAclsResource(Struct):
    """The permissions on one resource."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    pattern_type: int = int8("1+", default=3)
    acls: list[AclDescription] = array(AclDescription, "0+")


class DescribeAclsResponse(Response):
    """Permissions by resource."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    resources: list[DescribeAclsResource] = array(DescribeAclsResource, "0+")


class DescribeAclsRequest(
    Request[DescribeAclsResponse], key=29, versions="1-3", flexible="2+", route=Route.ANY
):
    """Which permissions match? A null matches everything."""

    resource_type_filter: int = int8("0+")
    resource_name_filter: str | None = string("0+", nullable="0+")
    pattern_type_filter: int = int8("1+", default=3)
    principal_filter: str | None = string("0+", nullable="0+")
    host_filter: str | None = string("0+", nullable="0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")
