"""Create, extend and delete topics, and delete records."""

from __future__ import annotations

from typing import Final

from aiokafka_lite._compat import Self, override
from aiokafka_lite.errors import UnsupportedVersionError
from aiokafka_lite.protocol.fields import array, boolean, int8, int16, int32, int64, string, uuid
from aiokafka_lite.protocol.schema import Request, Response, Struct
from aiokafka_lite.protocol.source import ELEMENTS_PER_STEP, Steps, run_to_end


# --- CreateTopics (key 19) --------------------------------------------------------------------
class CreatableTopicConfigs(Struct):
    name: str = string("5+")
    value: str | None = string("5+", nullable="5+")
    read_only: bool = boolean("5+")
    config_source: int = int8("5+", default=-1, ignorable=True)
    is_sensitive: bool = boolean("5+")


class CreatableTopicResult(Struct):
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
    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[CreatableTopicResult] = array(CreatableTopicResult, "0+")


class CreatableReplicaAssignment(Struct):
    partition_index: int = int32("0+")
    broker_ids: list[int] = array(int32, "0+")


class CreatableTopicConfig(Struct):
    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")


class CreatableTopic(Struct):
    name: str = string("0+")
    num_partitions: int = int32("0+")  # -1: the default (KIP-464)
    replication_factor: int = int16("0+")  # -1: the default (KIP-464)
    assignments: list[CreatableReplicaAssignment] = array(CreatableReplicaAssignment, "0+")
    configs: list[CreatableTopicConfig] = array(CreatableTopicConfig, "0+")


class CreateTopicsRequest(Request[CreateTopicsResponse], key=19, versions="2-7", flexible="5+"):
    """Create topics. v6 has quotas (KIP-599)."""

    topics: list[CreatableTopic] = array(CreatableTopic, "0+")
    timeout_ms: int = int32("0+", default=60000)
    validate_only: bool = boolean("1+")


# --- CreatePartitions (key 37) ----------------------------------------------------------------
class CreatePartitionsTopicResult(Struct):
    name: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)


class CreatePartitionsResponse(Response):
    throttle_time_ms: int = int32("0+")
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult, "0+")


class CreatePartitionsAssignment(Struct):
    broker_ids: list[int] = array(int32, "0+")


class CreatePartitionsTopic(Struct):
    name: str = string("0+")
    count: int = int32("0+")
    assignments: list[CreatePartitionsAssignment] | None = array(
        CreatePartitionsAssignment, "0+", nullable="0+"
    )


class CreatePartitionsRequest(
    Request[CreatePartitionsResponse], key=37, versions="0-3", flexible="2+"
):
    """Raise the number of partitions of topics to `count` (KIP-195). v3 has quotas (KIP-599)."""

    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic, "0+")
    timeout_ms: int = int32("0+")
    validate_only: bool = boolean("0+")


# --- DeleteTopics (key 20) --------------------------------------------------------------------
_FIRST_WITH_IDS: Final = 6


class DeletableTopicResult(Struct):
    name: str | None = string("0+", nullable="6+")
    topic_id: bytes = uuid("6+", ignorable=True)  # KIP-516
    error_code: int = int16("0+")
    error_message: str | None = string("5+", nullable="5+", default=None, ignorable=True)  # KIP-599


class DeleteTopicsResponse(Response):
    throttle_time_ms: int = int32("1+", ignorable=True)
    responses: list[DeletableTopicResult] = array(DeletableTopicResult, "0+")


class DeleteTopicState(Struct):
    """A topic by name, or by id with a null name."""

    name: str | None = string("6+", nullable="6+", default=None)
    topic_id: bytes = uuid("6+")  # KIP-516


class DeleteTopicsRequest(Request[DeleteTopicsResponse], key=20, versions="1-6", flexible="4+"):
    topics: list[DeleteTopicState] = array(DeleteTopicState, "6+")  # KIP-516
    topic_names: list[str] = array(string, "0-5", ignorable=True)
    timeout_ms: int = int32("0+")

    @override
    def for_version(self, version: int) -> Self:
        if version >= _FIRST_WITH_IDS or not self.topics:
            return self
        names = [topic.name for topic in self.topics if topic.name is not None]
        if len(names) < len(self.topics):
            raise UnsupportedVersionError(
                f"a DeleteTopics v{version} request must contain topic names instead of topic ids"
            )
        return type(self)(topic_names=names, timeout_ms=self.timeout_ms)

    @override
    def from_version(self, version: int) -> Self:
        return run_to_end(self.from_version_in_steps(version))

    @override
    def from_version_in_steps(self, version: int) -> Steps[Self]:
        if version >= _FIRST_WITH_IDS:
            return self
        topics: list[DeleteTopicState] = []
        for name in self.topic_names:
            topics.append(DeleteTopicState(name=name))
            if not len(topics) % ELEMENTS_PER_STEP:
                yield
        return type(self)(topics=topics, timeout_ms=self.timeout_ms)


# --- DeleteRecords (key 21) -------------------------------------------------------------------
class DeleteRecordsPartitionResult(Struct):
    partition_index: int = int32("0+")
    low_watermark: int = int64("0+")
    error_code: int = int16("0+")


class DeleteRecordsTopicResult(Struct):
    name: str = string("0+")
    partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult, "0+")


class DeleteRecordsResponse(Response):
    throttle_time_ms: int = int32("0+")
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult, "0+")


class DeleteRecordsPartition(Struct):
    partition_index: int = int32("0+")
    offset: int = int64("0+")


class DeleteRecordsTopic(Struct):
    name: str = string("0+")
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition, "0+")


class DeleteRecordsRequest(Request[DeleteRecordsResponse], key=21, versions="0-2", flexible="2+"):
    """Delete records before an offset. -1 is the high watermark (KIP-107)."""

    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic, "0+")
    timeout_ms: int = int32("0+")
