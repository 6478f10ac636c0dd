"""A topic with a thousand records, and how it is read."""

from __future__ import annotations

from aiokafka_lite.broker.direct import NewRecord
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from aiokafka_lite.spark import worker
from aiokafka_lite.spark.options import SourceOptions
from aiokafka_lite.spark.ranges import KafkaOffsetRange
from aiokafka_lite.structs import TopicPartition
from tests.spark.reading.conftest import Row, options_for
from tests.support.real_kafka import RealKafka

COUNT = 1000
TOPIC = "flights"


TP = TopicPartition(TOPIC, 0)


def fill(broker: BrokerThread) -> None:
    for first in range(0, COUNT, 50):
        numbers = range(first, first + 50)
        broker.produce_all(TOPIC, [NewRecord(b"%d" % n, partition=0) for n in numbers])


def several_fetches(broker: BrokerThread | RealKafka, **more: str) -> SourceOptions:
    """Options by which reading all takes several requests."""
    more.setdefault("kafka__max__partition__fetch__bytes", "1500")
    return options_for(broker.bootstrap_servers, kafka__retry__backoff__ms="1", **more)


def assert_all(rows: list[Row]) -> None:
    assert [(offset, value) for _, offset, _, value in rows] == [
        (n, b"%d" % n) for n in range(COUNT)
    ]


def planned(broker: BrokerThread, start: int = 0, end: int = COUNT) -> KafkaOffsetRange:
    """A range as the planner makes it: with the topic's id, its leader and epoch."""
    options = options_for(broker.bootstrap_servers)
    with worker.borrowed_cluster(options) as cluster:
        view = cluster.refresh([TOPIC])
    leader = view.leader(TP)
    assert leader is not None
    topic_id = view.topics[TOPIC].topic_id
    node = view.nodes[leader.leader]
    return KafkaOffsetRange(TOPIC, 0, start, end, topic_id, node, leader.leader_epoch)


def empty_answer(
    broker: BrokerThread, high_watermark: int, preferred_read_replica: int = -1
) -> FetchResponse:
    """An answer that has no records."""
    wanted = planned(broker)
    nothing = PartitionData(
        partition_index=0,
        error_code=0,
        high_watermark=high_watermark,
        last_stable_offset=high_watermark,
        aborted_transactions=None,
        preferred_read_replica=preferred_read_replica,
        records=None,
    )
    topic = FetchableTopicResponse(topic=TOPIC, topic_id=wanted.topic_id, partitions=[nothing])
    return FetchResponse(session_id=0, responses=[topic])
