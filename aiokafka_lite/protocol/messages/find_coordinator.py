"""FindCoordinator (key 10): the coordinators of groups and transactions."""

from __future__ import annotations

from typing import Final

from aiokafka_lite._compat import Self, override
from aiokafka_lite.errors import UnsupportedVersionError
from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    int8,
    int16,
    int32,
    string,
)

_FIRST_WITH_SEVERAL_KEYS: Final = 4


class Coordinator(Struct):
    key: str = string("4+")
    node_id: int = int32("4+")
    host: str = string("4+")
    port: int = int32("4+")
    error_code: int = int16("4+")
    error_message: str | None = string("4+", nullable="4+", ignorable=True)


class FindCoordinatorResponse(Response):
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16("0-3")
    error_message: str | None = string("1-3", nullable="1-3", ignorable=True)
    node_id: int = int32("0-3")
    host: str = string("0-3")
    port: int = int32("0-3")
    coordinators: list[Coordinator] = array(Coordinator, "4+")  # KIP-699

    @override
    def for_version(self, version: int) -> Self:
        if version >= _FIRST_WITH_SEVERAL_KEYS or not self.coordinators:
            return self
        if len(self.coordinators) > 1:
            raise UnsupportedVersionError(
                f"a FindCoordinator v{version} response can contain only one coordinator"
            )
        (coordinator,) = self.coordinators
        return type(self)(
            throttle_time_ms=self.throttle_time_ms,
            error_code=coordinator.error_code,
            error_message=coordinator.error_message,
            node_id=coordinator.node_id,
            host=coordinator.host,
            port=coordinator.port,
        )

    @override
    def from_version(self, version: int) -> Self:
        """Make a list of the one coordinator, without its key, which these versions lack."""
        if version >= _FIRST_WITH_SEVERAL_KEYS:
            return self
        coordinator = Coordinator(
            error_code=self.error_code,
            error_message=self.error_message,
            node_id=self.node_id,
            host=self.host,
            port=self.port,
        )
        return type(self)(throttle_time_ms=self.throttle_time_ms, coordinators=[coordinator])


class FindCoordinatorRequest(
    Request[FindCoordinatorResponse], key=10, versions="0-6", flexible="3+"
):
    """Key types: 0 groups, 1 transactions, from v6 on 2 share groups (KIP-932)."""

    key: str = string("0-3")
    key_type: int = int8("1+")  # KIP-98
    coordinator_keys: list[str] = array(string, "4+")  # KIP-699

    @override
    def for_version(self, version: int) -> Self:
        if version >= _FIRST_WITH_SEVERAL_KEYS or not self.coordinator_keys:
            return self
        if len(self.coordinator_keys) > 1:
            raise UnsupportedVersionError(
                f"a FindCoordinator v{version} request can contain only one key"
            )
        return type(self)(key=self.coordinator_keys[0], key_type=self.key_type)

    @override
    def from_version(self, version: int) -> Self:
        if version >= _FIRST_WITH_SEVERAL_KEYS:
            return self
        return type(self)(key_type=self.key_type, coordinator_keys=[self.key])
