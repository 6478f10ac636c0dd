"""The requests that are spoken, by Kafka's API key, and which version to use with a broker."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from aiokafka_lite.errors import IncompatibleBrokerVersion, UnsupportedVersionError
from aiokafka_lite.protocol import messages as m
from aiokafka_lite.protocol.schema import Request, Response

REQUESTS: Final[Mapping[int, type[Request[Response]]]] = MappingProxyType(
    {
        cls.api_key: cls
        for cls in (
            m.ProduceRequest,
            m.FetchRequest,
            m.ListOffsetsRequest,
            m.MetadataRequest,
            m.OffsetCommitRequest,
            m.OffsetFetchRequest,
            m.FindCoordinatorRequest,
            m.JoinGroupRequest,
            m.HeartbeatRequest,
            m.LeaveGroupRequest,
            m.SyncGroupRequest,
            m.DescribeGroupsRequest,
            m.ListGroupsRequest,
            m.SaslHandshakeRequest,
            m.ApiVersionsRequest,
            m.CreateTopicsRequest,
            m.DeleteTopicsRequest,
            m.DeleteRecordsRequest,
            m.InitProducerIdRequest,
            m.OffsetForLeaderEpochRequest,
            m.AddPartitionsToTxnRequest,
            m.AddOffsetsToTxnRequest,
            m.EndTxnRequest,
            m.TxnOffsetCommitRequest,
            m.SaslAuthenticateRequest,
            m.CreatePartitionsRequest,
            m.DeleteGroupsRequest,
            m.OffsetDeleteRequest,
            m.DescribeClusterRequest,
            m.ConsumerGroupHeartbeatRequest,
            m.ConsumerGroupDescribeRequest,
        )
    }
)

API_NAMES: Final[Mapping[int, str]] = MappingProxyType(
    {key: cls.__name__.removesuffix("Request") for key, cls in REQUESTS.items()}
)
"""Kafka's name of each API, as in ``{1: "Fetch"}``."""

API_KEYS: Final[Mapping[str, int]] = MappingProxyType({n: k for k, n in API_NAMES.items()})
"""Kafka's key of each API, as in ``{"Fetch": 1}``."""


def request_class(api_key: int) -> type[Request[Response]]:
    """Return the request of an API key.

    Raises:
        UnsupportedVersionError: The API is not spoken.
    """
    cls = REQUESTS.get(api_key)
    if cls is None:
        raise UnsupportedVersionError(f"API key {api_key} is not known")
    return cls


def negotiate(cls: type[Request[Response]], broker_min: int, broker_max: int) -> int:
    """Return the newest stable version that both sides speak.

    Raises:
        IncompatibleBrokerVersion: There is none.
    """
    version = min(cls.max_version, broker_max)
    if version < max(cls.min_version, broker_min):
        raise IncompatibleBrokerVersion(
            f"{API_NAMES[cls.api_key]}: the broker speaks versions {broker_min} to {broker_max}, "
            f"this client {cls.min_version} to {cls.max_version}: use a broker that shares one"
        )
    return version


def negotiate_for(request: Request[Response], broker_min: int, broker_max: int) -> int:
    """Return the newest stable version that both sides speak and that can carry this content.

    A Fetch without topic ids, for example, must stay below version 13.

    Raises:
        IncompatibleBrokerVersion: There is none.
    """
    return negotiate(type(request), broker_min, min(broker_max, request.usable_max_version))
