"""Produce (key 0): append record batches."""

from __future__ import annotations

from typing import Final

from aiokafka_lite._compat import override
from aiokafka_lite.protocol.fields import (
    array,
    int16,
    int32,
    int64,
    nested,
    record_set,
    string,
    uuid,
)
from aiokafka_lite.protocol.messages.fetch import LeaderIdAndEpoch, NodeEndpoint
from aiokafka_lite.protocol.schema import ZERO_UUID, Records, Request, Response, Struct

_FIRST_TO_ADD_PARTITIONS: Final = 12  # to the transaction, in transactions of version 2 (KIP-890)
_FIRST_WITHOUT_NAMES: Final = 13


class BatchIndexAndErrorMessage(Struct):
    """A record that made its batch fail (KIP-467)."""

    batch_index: int = int32("8+")
    batch_index_error_message: str | None = string("8+", nullable="8+", default=None)


class PartitionProduceResponse(Struct):
    index: int = int32("0+")
    error_code: int = int16("0+")
    base_offset: int = int64("0+")
    log_append_time_ms: int = int64("2+", default=-1, ignorable=True)  # KIP-32
    log_start_offset: int = int64("5+", default=-1, ignorable=True)
    # KIP-467
    record_errors: list[BatchIndexAndErrorMessage] = array(
        BatchIndexAndErrorMessage, "8+", ignorable=True
    )
    error_message: str | None = string("8+", nullable="8+", default=None, ignorable=True)  # KIP-467
    current_leader: LeaderIdAndEpoch = nested(LeaderIdAndEpoch, "10+", tag=0)  # KIP-951


class TopicProduceResponse(Struct):
    name: str = string("0-12", ignorable=True)
    topic_id: bytes = uuid("13+", ignorable=True)  # KIP-516
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse, "0+")


class ProduceResponse(Response):
    responses: list[TopicProduceResponse] = array(TopicProduceResponse, "0+")
    throttle_time_ms: int = int32("1+", ignorable=True)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "10+", tag=0)  # KIP-951


class PartitionProduceData(Struct):
    index: int = int32("0+")
    records: Records | None = record_set("0+", nullable="0+")


class TopicProduceData(Struct):
    name: str = string("0-12", ignorable=True)
    topic_id: bytes = uuid("13+", ignorable=True)  # KIP-516
    partition_data: list[PartitionProduceData] = array(PartitionProduceData, "0+")


class ProduceRequest(Request[ProduceResponse], key=0, versions="3-13", flexible="9+"):
    """With acks=0, brokers send no response. v7 allows zstd (KIP-110)."""

    transactional_id: str | None = string("3+", nullable="3+", default=None)  # KIP-98
    acks: int = int16("0+")  # 0, 1, or -1: all in-sync replicas
    timeout_ms: int = int32("0+")
    topic_data: list[TopicProduceData] = array(TopicProduceData, "0+")

    @property
    @override
    def usable_max_version(self) -> int:
        if self.transactional_id is not None:
            return _FIRST_TO_ADD_PARTITIONS - 1
        if any(topic.topic_id == ZERO_UUID for topic in self.topic_data):
            return _FIRST_WITHOUT_NAMES - 1
        return self.max_version

    @property
    @override
    def expects_response(self) -> bool:
        return self.acks != 0
