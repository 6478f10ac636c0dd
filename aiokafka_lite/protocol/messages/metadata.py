"""Metadata (key 3): brokers, topics, partitions and their leaders."""

from __future__ import annotations

from typing import Final

from aiokafka_lite._compat import Self, override
from aiokafka_lite.errors import UnsupportedVersionError
from aiokafka_lite.protocol.fields import array, boolean, int16, int32, string, uuid
from aiokafka_lite.protocol.schema import Request, Response, Struct

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
