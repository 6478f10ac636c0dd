"""The two protocols by which a group is joined, for tests of what members of both do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import pytest

from aiokafka_lite import CooperativeStickyPartitionAssignor
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.protocol import registry
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerGroupHeartbeatRequest,
    LeaveGroupRequest,
)
from aiokafka_lite.protocol.messages.metadata import ApiVersion, ApiVersionsResponse
from aiokafka_lite.protocol.schema import Message

PROTOCOLS: Final = ("classic", "consumer")
# For tests that take `protocol`, and give it to their consumers as `group_protocol`.
in_both_protocols: Final = pytest.mark.parametrize("protocol", PROTOCOLS)

# Settings of members that rebalance in each of three ways.
WAYS: Final[Mapping[str, Mapping[str, object]]] = MappingProxyType(
    {
        "eager": {"group_protocol": "classic"},
        "cooperative": {
            "group_protocol": "classic",
            "partition_assignment_strategy": (CooperativeStickyPartitionAssignor,),
        },
        "consumer": {"group_protocol": "consumer"},
    }
)

# The request that asks to be let in, and the one that says that the member lives.
JOIN: Final[Mapping[str, str]] = MappingProxyType(
    {"classic": "JoinGroup", "consumer": "ConsumerGroupHeartbeat"}
)
HEARTBEAT: Final[Mapping[str, str]] = MappingProxyType(
    {"classic": "Heartbeat", "consumer": "ConsumerGroupHeartbeat"}
)


def goodbyes(broker: Broker | BrokerThread) -> list[Message]:
    """Return the requests so far by which members of either protocol have left their groups."""
    requests = [seen.request for seen in broker.requests]
    return [
        request
        for request in requests
        if isinstance(request, LeaveGroupRequest)
        or (isinstance(request, ConsumerGroupHeartbeatRequest) and request.member_epoch < 0)
    ]


def classic_only(context: object, request: object) -> ApiVersionsResponse:
    """Offer what brokers before Kafka 4 offer of groups."""
    offered = [
        ApiVersion(api_key=key, min_version=kind.min_version, max_version=kind.max_version)
        for key, kind in registry.REQUESTS.items()
        if kind is not ConsumerGroupHeartbeatRequest
    ]
    return ApiVersionsResponse(api_keys=offered)


def offering(**newest: int | None) -> Callable[[object, object], ApiVersionsResponse]:
    """Offer all that is spoken here, but of some APIs, named, old versions only, or none."""

    def answer(context: object, request: object) -> ApiVersionsResponse:
        keys = []
        for key, kind in registry.REQUESTS.items():
            newest_offered = newest.get(kind.__name__.removesuffix("Request"), kind.max_version)
            if newest_offered is not None:
                keys.append(
                    ApiVersion(
                        api_key=key, min_version=kind.min_version, max_version=newest_offered
                    )
                )
        return ApiVersionsResponse(api_keys=keys)

    return answer
