"""ApiVersions (key 18): the APIs, versions and features of a broker."""

from __future__ import annotations

from aiokafka_lite.protocol.fields import array, boolean, int16, int32, int64, string
from aiokafka_lite.protocol.schema import Request, Response, Struct


class ApiVersion(Struct):
    api_key: int = int16("0+")
    min_version: int = int16("0+")
    max_version: int = int16("0+")


class SupportedFeatureKey(Struct):
    name: str = string("3+")
    min_version: int = int16("3+")
    max_version: int = int16("3+")


class FinalizedFeatureKey(Struct):
    name: str = string("3+")
    max_version_level: int = int16("3+")
    min_version_level: int = int16("3+")


class ApiVersionsResponse(Response, has_plain_header=True):
    """A broker that does not know the version answers in v0 with its own range (KIP-511).

    Features have levels (KIP-584), from 0 on in v4.
    """

    error_code: int = int16("0+")
    api_keys: list[ApiVersion] = array(ApiVersion, "0+")
    throttle_time_ms: int = int32("1+", ignorable=True)
    # KIP-584
    supported_features: list[SupportedFeatureKey] = array(
        SupportedFeatureKey, "3+", tag=0, ignorable=True
    )
    finalized_features_epoch: int = int64("3+", default=-1, tag=1, ignorable=True)  # KIP-584
    # KIP-584
    finalized_features: list[FinalizedFeatureKey] = array(
        FinalizedFeatureKey, "3+", tag=2, ignorable=True
    )
    zk_migration_ready: bool = boolean("3+", tag=3, ignorable=True)  # KIP-866


class ApiVersionsRequest(Request[ApiVersionsResponse], key=18, versions="0-5", flexible="3+"):
    """In v5, the client names the broker that it expects. Others answer REBOOTSTRAP_REQUIRED."""

    client_software_name: str = string("3+", ignorable=True)  # KIP-511
    client_software_version: str = string("3+", ignorable=True)  # KIP-511
    cluster_id: str | None = string("5+", nullable="5+", default=None, ignorable=True)  # KIP-1242
    node_id: int = int32("5+", default=-1, ignorable=True)  # KIP-1242
