"""A service that was written for aiokafka: it answers each order with an invoice, exactly once.

    python orders_program.py SERVERS ORDERS INVOICES GROUP

It knows of no other package. What it prints at its end is the same whoever's consumer runs.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.consumer.subscription_state import SubscriptionType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import IllegalStateError, KafkaConnectionError, KafkaError, for_code
from aiokafka.structs import ConsumerRecord, OffsetAndMetadata, RecordMetadata

COUNT = 40
LAST = 2  # records, which a service that came back reads


def decoded(value: bytes) -> Any:
    return json.loads(value)


class Watching(ConsumerRebalanceListener):  # type: ignore[misc]  # untyped
    def __init__(self) -> None:
        self.assigned: set[TopicPartition] = set()

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        self.assigned -= revoked

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.assigned |= assigned


async def order(servers: str, orders: str) -> RecordMetadata:
    """Send the orders, and return where the last one is."""
    async with AIOKafkaProducer(
        bootstrap_servers=servers, value_serializer=lambda value: json.dumps(value).encode()
    ) as producer:
        for number in range(COUNT):
            sent = await producer.send_and_wait(
                orders, {"amount": number}, key=b"%d" % number, partition=number % 2,
                headers=[("trace", b"a%d" % number)], timestamp_ms=1_700_000_000_000 + number,
            )  # fmt: skip
    assert isinstance(sent, RecordMetadata)
    return sent


async def invoice(servers: str, orders: str, invoices: str, group: str) -> tuple[Any, ...]:
    """Answer all orders, each batch in a transaction; return what was seen of them."""
    watching = Watching()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=servers, group_id=group, auto_offset_reset="earliest",
        enable_auto_commit=False, value_deserializer=decoded, isolation_level="read_committed",
        partition_assignment_strategy=[RangePartitionAssignor],
    )  # fmt: skip
    consumer.subscribe([orders], listener=watching)
    seen: list[tuple[int, int, int]] = []
    producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id=group)
    async with consumer, producer:
        while len(seen) < COUNT:
            for tp, records in (await consumer.getmany(timeout_ms=1_000, max_records=7)).items():
                async with producer.transaction():
                    for record in records:
                        assert isinstance(record, ConsumerRecord)
                        text = b"invoice of %d" % record.value["amount"]
                        await producer.send(
                            invoices, text, key=record.key, headers=[*record.headers]
                        )
                    done = {tp: OffsetAndMetadata(records[-1].offset + 1, "by the service")}
                    await producer.send_offsets_to_transaction(done, group)
                seen += [(tp.partition, each.offset, each.value["amount"]) for each in records]
        committed: dict[int, int] = {}
        for tp in watching.assigned:  # a transaction's offsets are there a moment after its end
            while committed.get(tp.partition) != COUNT // 2:
                committed[tp.partition] = await consumer.committed(tp)
        return sorted(seen), committed, consumer.subscription() == {orders}


async def look_back(servers: str, tp: TopicPartition) -> tuple[Any, ...]:
    """Read the latest orders, by seeking, and what offsets and times say."""
    consumer = AIOKafkaConsumer(bootstrap_servers=servers)
    consumer.assign([tp])
    found = []
    async with consumer:
        ends = await consumer.end_offsets([tp])
        times = await consumer.offsets_for_times({tp: 1_700_000_000_000 + COUNT - 4})
        consumer.seek(tp, ends[tp] - LAST)
        async for record in consumer:
            found.append((record.key.decode(), json.loads(record.value), record.headers[0][1]))
            if len(found) == LAST:
                break
        try:
            consumer.seek(TopicPartition(tp.topic, 7), 0)
        except IllegalStateError as error:
            refused = isinstance(error, KafkaError)
        position = await consumer.position(tp)
    return [str(each) for each in found], ends[tp], times[tp].offset, position, refused


async def main(servers: str, orders: str, invoices: str, group: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    await admin.create_topics([NewTopic(orders, 2, 1), NewTopic(invoices, 1, 1)])
    await admin.close()
    last = await order(servers, orders)
    seen, committed, subscribed = await invoice(servers, orders, invoices, group)
    found = await look_back(servers, last.topic_partition)
    nobody = AIOKafkaProducer(bootstrap_servers="127.0.0.1:1", request_timeout_ms=500)
    try:
        await nobody.start()
    except KafkaConnectionError as error:
        lost = isinstance(error, KafkaError)
    finally:
        await nobody.stop()
    result = {
        "seen": seen, "committed": committed, "subscribed": subscribed, "found": found,
        "last": last.offset, "lost": lost, "error": for_code(3).__name__,
        "kinds": [kind.name for kind in SubscriptionType], "version": aiokafka.__version__,
    }  # fmt: skip
    print(json.dumps(result, sort_keys=True))
    print("consumer of", AIOKafkaConsumer.__module__, file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(asyncio.wait_for(main(*sys.argv[1:]), 60))
