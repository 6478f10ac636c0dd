"""The records that a broker has in its log of groups."""

from __future__ import annotations

from collections.abc import Sequence

from aiokafka_lite.broker.groups.coordinator_log import CoordinatorRecord, decode_record
from aiokafka_lite.broker.topics import GROUP_METADATA_TOPIC, partition_for
from aiokafka_lite.protocol.messages.coordinator_records import VALUE_OF
from aiokafka_lite.records import RecordSet
from tests.broker.wire import fetch, fetch_partition, topic_metadata
from tests.support.cluster import KafkaHandle


async def written_about(kafka: KafkaHandle, group_id: str) -> list[tuple[bytes, bytes | None]]:
    """Return keys and values of a group's records, in order."""
    found: list[tuple[bytes, bytes | None]] = []
    offset = 0
    async with kafka.raw() as client:
        count = len((await topic_metadata(client, GROUP_METADATA_TOPIC)).partitions)
        partition = partition_for(group_id, count)
        while True:
            part = fetch_partition(partition, offset)
            answer = await fetch(client, GROUP_METADATA_TOPIC, part)
            if not answer.records:
                break
            records = RecordSet(
                GROUP_METADATA_TOPIC, partition, memoryview(answer.records), fetch_offset=offset
            )
            while taken := records.take(1_000):
                for record in taken:
                    assert record.key is not None
                    decoded = decode_record(record.key, record.value)
                    if decoded is not None and group_id.encode() in record.key:
                        found.append((record.key, record.value))
            offset = records.next_offset
    return found


def decoded(written: Sequence[tuple[bytes, bytes | None]]) -> list[CoordinatorRecord]:
    records = [decode_record(key, value) for key, value in written]
    return [record for record in records if record is not None and type(record.key) in VALUE_OF]
