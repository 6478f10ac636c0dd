"""CreateAcls (key 30): permit or forbid (KIP-140).

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


class AclCreationResult(Struct):
    """The outcome for one permission."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


class CreateAclsResponse(Response):
    """Outcomes, in the order of the request."""

    throttle_time_ms: int = int32("0+")
    results: list[AclCreationResult] = array(AclCreationResult, "0+")


class AclCreation(Struct):
    """A permission."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    resource_pattern_type: int = int8("1+", default=3)
    principal: str = string("0+")
    host: str = string("0+")
    operation: int = int8("0+")
    permission_type: int = int8("0+")


class CreateAclsRequest(
    Request[CreateAclsResponse], key=30, versions="1-3", flexible="2+", route=Route.CONTROLLER
):
    """Add permissions."""

    creations: list[AclCreation] = array(AclCreation, "0+")
