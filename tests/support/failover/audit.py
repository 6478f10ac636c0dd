"""What is in the log in the end: the truth that every reader is held against.

A record may be there twice, idempotent producer or not: in one of several courses 13 were, at other
offsets than those acknowledged, and three clients handed them out alike. What a reader owes is the
log.
"""

from __future__ import annotations

import time
import uuid
from typing import Final, TypeAlias

import confluent_kafka

from tests.support.failover.writer import VALUE

READ_S: Final = 60.0
ASK_S: Final = 10.0

Log: TypeAlias = dict[tuple[int, int], int]
"""By partition and offset: the number that the record carries."""


def read_log(bootstrap_servers: str, topic: str, partitions: int) -> Log:
    """Read a topic from its beginning to its present end.

    Raises:
        TimeoutError: That took too long.
    """
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
        }
    )
    log: Log = {}
    try:
        beginnings = [
            confluent_kafka.TopicPartition(topic, index, confluent_kafka.OFFSET_BEGINNING)
            for index in range(partitions)
        ]
        ends = sum(consumer.get_watermark_offsets(each, timeout=ASK_S)[1] for each in beginnings)
        consumer.assign(beginnings)
        deadline = time.monotonic() + READ_S
        while len(log) < ends:
            if time.monotonic() > deadline:
                raise TimeoutError(f"only {len(log)} of {ends} records could be read")
            for message in consumer.consume(10_000, timeout=0.2):
                partition, offset, value = message.partition(), message.offset(), message.value()
                if partition is None or offset is None or not isinstance(value, bytes):
                    continue  # an error that passes
                log[partition, offset], _ = VALUE.unpack(value)
    finally:
        consumer.close()
    return log
