"""ApiVersions (key 18): ask a broker what it speaks.

v3 is flexible, but the answer's header is not: a client reads it before it knows the broker.
A broker that does not know the version asked for answers in v0 with UNSUPPORTED_VERSION and its
own range for this API (KIP-511). v4 allows features from level 0 on. In v5 the client says whom it
means to reach, and another broker answers REBOOTSTRAP_REQUIRED (KIP-1242).
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int64,
    string,
)


class ApiVersion(Struct):
    """One API with the versions that the broker speaks."""

    api_key: int = int16("0+")
    min_version: int = int16("0+")
    max_version: int = int16("0+")


class SupportedFeatureKey(Struct):
    """A feature that the broker could use, with its levels (KIP-584)."""

    name: str = string("3+")
    min_version: int = int16("3+")
    max_version: int = int16("3+")


class FinalizedFeatureKey(Struct):
    """A feature that the cluster uses, with its levels (KIP-584)."""

    name: str = string("3+")
    max_version_level: int = int16("3+")
    min_version_level: int = int16("3+")


class ApiVersionsResponse(Response, has_plain_header=True):
    """The APIs and features of a broker."""

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
    """Asks which APIs the broker has, in which versions."""

    client_software_name: str = string("3+", ignorable=True)  # KIP-511
    client_software_version: str = string("3+", ignorable=True)  # KIP-511
    cluster_id: str | None = string("5+", nullable="5+", default=None, ignorable=True)  # KIP-1242
    node_id: int = int32("5+", default=-1, ignorable=True)  # KIP-1242
