"""CreateTopics (key 19).

v4 -1 for the cluster's default partitions and replicas (KIP-464); v5 is flexible and returns the
topic's configuration (KIP-525); v6 quotas (KIP-599); v7 the topic's id (KIP-516).
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    string,
    uuid,
)


class CreatableTopicConfigs(Struct):
    """A setting as the topic got it (KIP-525)."""

    name: str = string("5+")
    value: str | None = string("5+", nullable="5+")
    read_only: bool = boolean("5+")
    config_source: int = int8("5+", default=-1, ignorable=True)
    is_sensitive: bool = boolean("5+")


class CreatableTopicResult(Struct):
    """A topic that was created, or why not."""

    name: str = string("0+")
    topic_id: bytes = uuid("7+", ignorable=True)  # KIP-516
    error_code: int = int16("0+")
    error_message: str | None = string("1+", nullable="0+", ignorable=True)
    topic_config_error_code: int = int16("5+", tag=0, ignorable=True)  # KIP-525
    num_partitions: int = int32("5+", default=-1, ignorable=True)  # KIP-525
    replication_factor: int = int16("5+", default=-1, ignorable=True)  # KIP-525
    # KIP-525
    configs: list[CreatableTopicConfigs] | None = array(
        CreatableTopicConfigs, "5+", nullable="5+", ignorable=True
    )


class CreateTopicsResponse(Response):
    """The outcome by topic."""

    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[CreatableTopicResult] = array(CreatableTopicResult, "0+")


class CreatableReplicaAssignment(Struct):
    """Replicas of one partition, chosen by hand."""

    partition_index: int = int32("0+")
    broker_ids: list[int] = array(int32, "0+")


class CreatableTopicConfig(Struct):
    """A setting of the topic."""

    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")


class CreatableTopic(Struct):
    """A topic to create."""

    name: str = string("0+")
    num_partitions: int = int32("0+")  # -1: the default (KIP-464)
    replication_factor: int = int16("0+")  # -1: the default (KIP-464)
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment, "0+")
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig, "0+")


class CreateTopicsRequest(Request[CreateTopicsResponse], key=19, versions="2-7", flexible="5+"):
    """Create topics."""

    topics: list[CreatableTopic] = array(CreatableTopic, "0+")
    timeout_ms: int = int32("0+", default=60000)
    validate_only: bool = boolean("1+")
