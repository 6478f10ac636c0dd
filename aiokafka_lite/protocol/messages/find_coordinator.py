"""FindCoordinator (key 10): the coordinators of groups and transactions."""

from __future__ import annotations

from aiokafka_lite.protocol.fields import array, int8, int16, int32, string
from aiokafka_lite.protocol.schema import Request, Response, Several, Struct


class Coordinator(Struct):
    key: str = string("4+")
    node_id: int = int32("4+")
    host: str = string("4+")
    port: int = int32("4+")
    error_code: int = int16("4+")
    error_message: str | None = string("4+", nullable="4+", ignorable=True)


class FindCoordinatorResponse(Several, Response):
    several = "coordinators"

    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0-3")
    error_message: str | None = string("1-3", nullable="1-3", ignorable=True)
    node_id: int = int32("0-3")
    host: str = string("0-3")
    port: int = int32("0-3")
    coordinators: list[Coordinator] = array(Coordinator, "4+")  # KIP-699


class FindCoordinatorRequest(
    Request[FindCoordinatorResponse], Several, key=10, versions="0-6", flexible="3+"
):
    """Key types: 0 groups, 1 transactions, from v6 on 2 share groups (KIP-932)."""

    several = "coordinator_keys"

    key: str = string("0-3")
    key_type: int = int8("1+")  # KIP-98
    coordinator_keys: list[str] = array(string, "4+")  # KIP-699
