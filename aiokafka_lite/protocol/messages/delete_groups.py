"""DeleteGroups (key 42): remove empty groups with their offsets (KIP-229).

v2 is flexible.
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    int16,
    int32,
    string,
)


class DeletableGroupResult(Struct):
    """The outcome for one group."""

    group_id: str = string("0+")
    error_code: int = int16("0+")


class DeleteGroupsResponse(Response):
    """The outcome by group."""

    throttle_time_ms: int = int32("0+")
    results: list[DeletableGroupResult] = array(DeletableGroupResult, "0+")


class DeleteGroupsRequest(Request[DeleteGroupsResponse], key=42, versions="0-2", flexible="2+"):
    """Delete empty groups."""

    groups_names: list[str] = array(string, "0+")
