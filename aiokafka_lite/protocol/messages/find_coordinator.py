"""FindCoordinator (key 10): which broker coordinates a group or a transaction.

v1 key types; v3 is flexible; v4 several keys at once (KIP-699), which moved every field of the
answer into a list; v6 share groups (KIP-932).
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


class Coordinator(Struct):
    """The coordinator of one key."""

    key: str = string("4+")
    node_id: int = int32("4+")
    host: str = string("4+")
    port: int = int32("4+")
    error_code: int = int16("4+")
    error_message: str | None = string("4+", nullable="4+", ignorable=True)


class FindCoordinatorResponse(Response):
    """Coordinators by key."""

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0-3")
    error_message: str | None = string("1-3", nullable="1-3", ignorable=True)
    node_id: int = int32("0-3")
    host: str = string("0-3")
    port: int = int32("0-3")
    coordinators: list[Coordinator] = array(Coordinator, "4+")  # KIP-699


class FindCoordinatorRequest(
    Request[FindCoordinatorResponse], key=10, versions="0-6", flexible="3+", route=Route.ANY
):
    """Who coordinates these keys? Key types: 0 groups, 1 transactions, 2 share groups."""

    key: str = string("0-3")
    key_type: int = int8("1+")  # KIP-98
    coordinator_keys: list[str] = array(string, "4+")  # KIP-699
