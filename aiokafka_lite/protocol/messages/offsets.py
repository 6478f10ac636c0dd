"""Look up offsets in logs, and the committed offsets of groups."""

from __future__ import annotations

from copy import copy
from typing import Final

from aiokafka_lite._compat import Self, override
from aiokafka_lite.protocol.fields import array, boolean, int8, int16, int32, int64, string, uuid
from aiokafka_lite.protocol.schema import ZERO_UUID, Request, Response, Several, Struct
from aiokafka_lite.protocol.source import ELEMENTS_PER_STEP, Steps, run_to_end


# --- ListOffsets (key 2) ----------------------------------------------------------------------
class ListOffsetsPartitionResponse(Struct):
    """The offset is -1 if there is none."""

    partition_index: int = int32("0+")
    error_code: int = int16("0+")
    timestamp: int = int64("1+", default=-1)
    offset: int = int64("1+", default=-1)
    leader_epoch: int = int32("4+", default=-1)  # KIP-320


class ListOffsetsTopicResponse(Struct):
    name: str = string("0+")
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse, "0+")


class ListOffsetsResponse(Response):
    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse, "0+")


class ListOffsetsPartition(Struct):
    partition_index: int = int32("0+")
    current_leader_epoch: int = int32("4+", default=-1, ignorable=True)  # KIP-320
    timestamp: int = int64("0+")


class ListOffsetsTopic(Struct):
    name: str = string("0+")
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition, "0+")


class ListOffsetsRequest(Request[ListOffsetsResponse], key=2, versions="1-11", flexible="6+"):
    """Look up offsets by timestamp.

    Special timestamps: -1 the end, -2 the start, from v7 on -3 the largest timestamp (KIP-734),
    v8 -4 the start of the local log (KIP-405), v9 -5 the last tiered offset (KIP-1005), v11 -6 the
    earliest offset that waits for its upload (KIP-1023).
    """

    replica_id: int = int32("0+")  # -1 for consumers
    isolation_level: int = int8("2+")  # KIP-98
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic, "0+")
    timeout_ms: int = int32("10+", ignorable=True)  # KIP-1075


# --- OffsetForLeaderEpoch (key 23) ------------------------------------------------------------
class EpochEndOffset(Struct):
    error_code: int = int16("0+")
    partition: int = int32("0+")
    leader_epoch: int = int32("1+", default=-1, ignorable=True)  # KIP-320
    end_offset: int = int64("0+", default=-1)


class OffsetForLeaderTopicResult(Struct):
    topic: str = string("0+")
    partitions: list[EpochEndOffset] = array(EpochEndOffset, "0+")


class OffsetForLeaderEpochResponse(Response):
    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult, "0+")


class OffsetForLeaderPartition(Struct):
    partition: int = int32("0+")
    current_leader_epoch: int = int32("2+", default=-1, ignorable=True)  # KIP-320
    leader_epoch: int = int32("0+")  # KIP-320


class OffsetForLeaderTopic(Struct):
    topic: str = string("0+")
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition, "0+")


class OffsetForLeaderEpochRequest(
    Request[OffsetForLeaderEpochResponse], key=23, versions="2-4", flexible="4+", used_from=3
):
    """Return the offsets at which leader epochs end, to detect truncation (KIP-320).

    Before v3, it requires ClusterAction. Java's client does not use it then either (OffsetFetcher).
    """

    replica_id: int = int32("3+", default=-2, ignorable=True)  # KIP-392; -2 debug, -1 consumer
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic, "0+")


# --- OffsetCommit (key 8) ---------------------------------------------------------------------
_FIRST_WITHOUT_NAMES: Final = 10


class PartitionErrorCode(Struct):
    partition_index: int = int32("0+")
    error_code: int = int16("0+")


class OffsetCommitResponseTopic(Struct):
    name: str = string("0-9", ignorable=True)
    topic_id: bytes = uuid("10+", ignorable=True)  # KIP-516
    partitions: list[PartitionErrorCode] = array(PartitionErrorCode, "0+")


class OffsetCommitResponse(Response):
    throttle_time_ms: int = int32("3+", ignorable=True)
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic, "0+")


class OffsetCommitRequestPartition(Struct):
    partition_index: int = int32("0+")
    committed_offset: int = int64("0+")
    committed_leader_epoch: int = int32("6+", default=-1, ignorable=True)  # KIP-320
    committed_metadata: str | None = string("0+", nullable="0+")


class OffsetCommitRequestTopic(Struct):
    name: str = string("0-9", ignorable=True)
    topic_id: bytes = uuid("10+", ignorable=True)  # KIP-516
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition, "0+")


class OffsetCommitRequest(Request[OffsetCommitResponse], key=8, versions="2-10", flexible="8+"):
    """Store positions, if the member is of this generation or epoch. Members of KIP-848 need v9."""

    group_id: str = string("0+")
    generation_id_or_member_epoch: int = int32("1+", default=-1, ignorable=True)
    member_id: str = string("1+", ignorable=True)
    group_instance_id: str | None = string("7+", nullable="7+", default=None)  # KIP-345
    retention_time_ms: int = int64("2-4", default=-1, ignorable=True)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic, "0+")

    @property
    @override
    def usable_max_version(self) -> int:
        if any(topic.topic_id == ZERO_UUID for topic in self.topics):
            return _FIRST_WITHOUT_NAMES - 1
        return self.max_version


# --- OffsetFetch (key 9) ----------------------------------------------------------------------
_FIRST_WITH_REQUIRE_STABLE: Final = 7
_FIRST_WITH_GROUP_ERROR: Final = 2


class OffsetFetchResponsePartitions(Struct):
    """The offset is -1 if none is committed."""

    partition_index: int = int32("0+")
    committed_offset: int = int64("0+")
    committed_leader_epoch: int = int32("5+", default=-1, ignorable=True)  # KIP-320
    metadata: str | None = string("0+", nullable="0+")
    error_code: int = int16("0+")


class OffsetFetchResponseTopics(Struct):
    name: str = string("0-9", ignorable=True)
    topic_id: bytes = uuid("10+", ignorable=True)  # KIP-516
    partitions: list[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions, "0+")


class OffsetFetchResponseGroup(Struct):
    group_id: str = string("8+")
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics, "8+")
    error_code: int = int16("8+")


class OffsetFetchResponse(Several, Response):
    several = "groups"

    throttle_time_ms: int = int32("3+", ignorable=True)
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics, "0-7")
    error_code: int = int16("2-7", ignorable=True)
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, "8+")  # KIP-709

    @override
    def for_version(self, version: int) -> Self:
        return run_to_end(self.for_version_in_steps(version))

    @override
    def for_version_in_steps(self, version: int) -> Steps[Self]:
        """Copy the group's error into each partition if the version has no error of a group."""
        response = super().for_version(version)
        if version >= _FIRST_WITH_GROUP_ERROR or not response.error_code:
            return response
        topics, response.topics = response.topics, []
        for topic in topics:
            failed: list[OffsetFetchResponsePartitions] = []
            response.topics.append(OffsetFetchResponseTopics(name=topic.name, partitions=failed))
            if not len(response.topics) % ELEMENTS_PER_STEP:
                yield
            for partition in topic.partitions:
                failed.append(copy(partition))
                failed[-1].error_code = response.error_code
                if not len(failed) % ELEMENTS_PER_STEP:
                    yield
        return response


class OffsetFetchRequestTopics(Struct):
    name: str = string("0-9", ignorable=True)
    topic_id: bytes = uuid("10+", ignorable=True)  # KIP-516
    partition_indexes: list[int] = array(int32, "0+")


class OffsetFetchRequestGroup(Struct):
    group_id: str = string("8+")
    member_id: str | None = string("9+", nullable="9+", default=None, ignorable=True)  # KIP-848
    member_epoch: int = int32("9+", default=-1, ignorable=True)  # KIP-848
    topics: list[OffsetFetchRequestTopics] | None = array(
        OffsetFetchRequestTopics, "8+", nullable="8+"
    )


class OffsetFetchRequest(
    Request[OffsetFetchResponse], Several, key=9, versions="1-10", flexible="6+"
):
    """Read committed offsets. Null topics mean all. v7 can require stable offsets (KIP-447)."""

    several = "groups"

    group_id: str = string("0-7")
    topics: list[OffsetFetchRequestTopics] | None = array(
        OffsetFetchRequestTopics, "0-7", nullable="2-7"
    )
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, "8+")  # KIP-709
    require_stable: bool = boolean("7+")  # KIP-447

    @override
    def for_version(self, version: int) -> Self:
        request = super().for_version(version)
        if request is not self and version < _FIRST_WITH_REQUIRE_STABLE:
            request.require_stable = False  # older brokers have no pending transactional offsets
        return request

    @property
    @override
    def usable_max_version(self) -> int:
        topics = (topic for group in self.groups for topic in group.topics or ())
        if any(topic.topic_id == ZERO_UUID for topic in topics):
            return _FIRST_WITHOUT_NAMES - 1
        return self.max_version


# --- OffsetDelete (key 47) --------------------------------------------------------------------
class OffsetDeleteResponseTopic(Struct):
    name: str = string("0+")
    partitions: list[PartitionErrorCode] = array(PartitionErrorCode, "0+")


class OffsetDeleteResponse(Response):
    error_code: int = int16("0+")
    throttle_time_ms: int = int32("0+", ignorable=True)
    topics: list[OffsetDeleteResponseTopic] = array(OffsetDeleteResponseTopic, "0+")


class OffsetDeleteRequestPartition(Struct):
    partition_index: int = int32("0+")


class OffsetDeleteRequestTopic(Struct):
    name: str = string("0+")
    partitions: list[OffsetDeleteRequestPartition] = array(OffsetDeleteRequestPartition, "0+")


class OffsetDeleteRequest(Request[OffsetDeleteResponse], key=47, versions="0"):
    """Delete offsets of topics to which no member of the group subscribes (KIP-496)."""

    group_id: str = string("0+")
    topics: list[OffsetDeleteRequestTopic] = array(OffsetDeleteRequestTopic, "0+")
