"""DescribeTopicPartitions answers page by page."""

from __future__ import annotations

from aiokafka_lite.broker import Broker
from aiokafka_lite.protocol.messages.cluster import (
    Cursor,
    DescribeTopicPartitionsRequest,
)
from tests.support.wire import RawClient


async def test_pages_end_where_the_next_ones_begin() -> None:
    request = DescribeTopicPartitionsRequest(response_partition_limit=2)
    seen, cursors = [], []
    async with Broker() as broker, RawClient(broker.bootstrap_servers) as client:
        for name, partitions in (("b", 3), ("a", 2), ("c", 1)):
            broker.create_topic(name, partitions)
        while True:
            answer = await client.request(request)
            seen += [
                (topic.name, partition.partition_index)
                for topic in answer.topics
                for partition in topic.partitions
            ]
            if answer.next_cursor is None:
                break
            cursors.append(answer.next_cursor)
            request.cursor = answer.next_cursor
    assert broker.failure is None
    assert seen == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]
    assert cursors == [
        Cursor(topic_name="b", partition_index=0), Cursor(topic_name="b", partition_index=2),
    ]  # fmt: skip
