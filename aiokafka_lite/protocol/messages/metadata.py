"""What brokers offer, lead and coordinate: Metadata, ApiVersions, FindCoordinator."""

from __future__ import annotations

from typing import Final

from aiokafka_lite._compat import Self, override
from aiokafka_lite.errors import UnsupportedVersionError
from aiokafka_lite.protocol.fields import array, boolean, int8, int16, int32, int64, string, uuid
from aiokafka_lite.protocol.schema import Request, Response, Several, Struct

# --- Metadata (key 3) -------------------------------------------------------------------------
_FIRST_TO_TELL_NONE_FROM_ALL: Final = 1


class MetadataResponseBroker(Struct):
    node_id: int = int32("0+")
    host: str = string("0+")
    port: int = int32("0+")
    rack: str | None = string("1+", nullable="1+", default=None, ignorable=True)


class MetadataResponsePartition(Struct):
    error_code: int = int16("0+")
    partition_index: int = int32("0+")
    leader_id: int = int32("0+")
    leader_epoch: int = int32("7+", default=-1, ignorable=True)  # KIP-320
    replica_nodes: list[int] = array(int32, "0+")
    isr_nodes: list[int] = array(int32, "0+")
    offline_replicas: list[int] = array(int32, "5+", ignorable=True)  # KIP-112


class MetadataResponseTopic(Struct):
    error_code: int = int16("0+")
    name: str | None = string("0+", nullable="12+")
    topic_id: bytes = uuid("10+", ignorable=True)  # KIP-516
    is_internal: bool = boolean("1+", ignorable=True)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition, "0+")
    topic_authorized_operations: int = int32("8+", default=-(2**31))  # KIP-430


class MetadataResponse(Response):
    throttle_time_ms: int = int32("3+", ignorable=True)
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker, "0+")
    cluster_id: str | None = string("2+", nullable="2+", default=None, ignorable=True)  # KIP-78
    controller_id: int = int32("1+", default=-1, ignorable=True)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic, "0+")
    cluster_authorized_operations: int = int32("8-10", default=-(2**31))  # KIP-430, 700
    error_code: int = int16("13+", ignorable=True)


class MetadataRequestTopic(Struct):
    """A topic by name, or by id with a null name."""

    topic_id: bytes = uuid("10+", ignorable=True)  # KIP-516
    name: str | None = string("0+", nullable="10+")


class MetadataRequest(Request[MetadataResponse], key=3, versions="0-13", flexible="9+"):
    """Describe some topics, or with null all of them."""

    # null: all; in v0 empty: all
    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, "0+", nullable="1+")
    allow_auto_topic_creation: bool = boolean("4+", default=True)
    include_cluster_authorized_operations: bool = boolean("8-10")  # KIP-430, 700
    include_topic_authorized_operations: bool = boolean("8+")  # KIP-430

    @override
    def for_version(self, version: int) -> Self:
        if version >= _FIRST_TO_TELL_NONE_FROM_ALL or self.topics:
            return self
        if self.topics is not None:
            raise UnsupportedVersionError(
                f"a Metadata v{version} request cannot ask for zero topics"
            )
        return type(self)(topics=[])

    @override
    def from_version(self, version: int) -> Self:
        if version < _FIRST_TO_TELL_NONE_FROM_ALL and not self.topics:
            self.topics = None
        return self


# --- ApiVersions (key 18) -------------------------------------------------------------------
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
    """In v0 if the broker lacks the version (KIP-511). Levels of features start at 0 in v4."""

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


# --- FindCoordinator (key 10) ---------------------------------------------------------------
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
