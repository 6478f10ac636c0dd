"""kill -9 under load: what was acknowledged is there after it.

The process is killed, not the machine: what it has written is in the page cache. Idempotent
producers, a consumer group that commits and new topics are under way; segments are rolled and
compacted every few milliseconds.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as Asked
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from aiokafka_lite import AIOKafkaConsumer, TopicPartition
from tests.broker.log.killing import (
    Acknowledged,
    BrokerProcess,
    Destination,
    GroupReader,
    producing,
)

PARTITIONS = 3
KEYS = 40
RECORDS_PER_TOPIC = 60
CLEANED_WITHIN_S = 10

Contents = Mapping[tuple[str, int], list[tuple[int, bytes | None, int]]]


def set_up(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    rolling = {"segment.ms": "20"}
    compacting = {
        **rolling, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1",
    }  # fmt: skip
    created = admin.create_topics(
        [
            NewTopic("orders", PARTITIONS, 1, config=rolling),
            NewTopic("kept", 1, 1, config=compacting),
        ]
    )
    for future in created.values():
        future.result()
    admin.list_consumer_groups().result()
    reader = GroupReader(address, "orders").consumer()  # makes the topic of offsets
    reader.committed([], timeout=30)
    reader.close()
    resource = ConfigResource(
        ResourceType.TOPIC,
        "__consumer_offsets",
        incremental_configs=[
            ConfigEntry("segment.ms", "50", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry(
                "min.cleanable.dirty.ratio", "0.1", incremental_operation=AlterConfigOpType.SET
            ),
        ],
    )
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()


async def read_everything(address: str) -> Contents:
    """Read all partitions of all topics from start to end."""
    found: dict[tuple[str, int], list[tuple[int, bytes | None, int]]] = {}
    async with AIOKafkaConsumer(bootstrap_servers=address) as consumer:
        topics = AdminClient({"bootstrap.servers": address}).list_topics(timeout=30).topics
        tps = [
            TopicPartition(name, index)
            for name, topic in topics.items()
            if not name.startswith("__")
            for index in topic.partitions
        ]
        consumer.assign(tps)
        await consumer.seek_to_beginning(*tps)
        ends = await consumer.end_offsets(tps)
        for tp in tps:
            found[tp.topic, tp.partition] = []
        while any([await consumer.position(tp) < end for tp, end in ends.items()]):
            for tp, records in (await consumer.poll(timeout_ms=1_000)).items():
                found[tp.topic, tp.partition] += [
                    (record.offset, record.key, int(record.value or b"")) for record in records
                ]
    return found


def check_orders(acknowledged: Acknowledged, contents: Contents, reader: GroupReader) -> None:
    """Every record is there, where it was said to be, in order and once."""
    for (topic, partition), told in acknowledged.records.items():
        if topic == "kept":
            continue
        values = {offset: value for offset, _, value in contents[topic, partition]}
        lost = [each for each in told if values.get(each[0]) != each[1]]
        assert not lost, f"{topic}-{partition} lost {lost[:5]} of {len(told)}"
        in_order = list(values.values())
        assert in_order == sorted(set(in_order)), f"{topic}-{partition} is out of order"
    for (partition, offset), value in reader.seen.items():
        found, _, stored = contents["orders", partition][offset]  # nothing is missing there
        assert (found, stored) == (offset, value)


def check_kept(acknowledged: Acknowledged, contents: Contents) -> None:
    """Every record is there, or one of the same key behind it."""
    newest: dict[int, int] = {}
    values: dict[int, int] = {}
    for offset, key, value in contents["kept", 0]:
        assert key is not None
        assert value > newest.get(int(key), -1), f"key {key!r} went back at offset {offset}"
        newest[int(key)] = values[offset] = value
    for offset, value in acknowledged.records["kept", 0]:
        assert values.get(offset, value) == value
        assert newest[value % KEYS] >= value, f"offset {offset} of key {value % KEYS} is lost"
    assert is_compacted(acknowledged, contents), "nothing was compacted"


def is_compacted(acknowledged: Acknowledged, contents: Contents) -> bool:
    return len(contents["kept", 0]) < len(acknowledged.records["kept", 0]) / 2


def check_committed(reader: GroupReader) -> None:
    consumer = reader.consumer()
    stored = consumer.committed([Asked("orders", n) for n in range(PARTITIONS)], timeout=60)
    consumer.close()
    for tp in stored:
        assert tp.offset >= reader.committed.get(tp.partition, -1001)


@pytest.mark.parametrize(
    ("kills", "seed"),
    [(3, 1), pytest.param(50, None, marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
)
def test_nothing_acknowledged_is_lost(tmp_path: Path, kills: int, seed: int | None) -> None:
    seed = random.randrange(2**32) if seed is None else seed
    print(f"seed {seed}")  # shown when it fails
    with BrokerProcess(tmp_path / "data") as broker:
        check(broker, kills, random.Random(seed))


def to_orders(number: int) -> Destination:
    return Destination("orders", number % PARTITIONS)


def to_kept(number: int) -> Destination:
    return Destination("kept", 0, b"%d" % (number % KEYS))


def to_new(number: int) -> Destination:
    """Send some records to a topic that this creates, then to the next."""
    return Destination(f"new-{number // RECORDS_PER_TOPIC}")


def check(broker: BrokerProcess, kills: int, rng: random.Random) -> None:
    address = broker.address
    set_up(address)
    acknowledged = Acknowledged()
    reader = GroupReader(address, "orders")
    complaints = []
    with ExitStack() as clients:
        for client in (
            producing(address, acknowledged, to_orders),
            producing(address, acknowledged, to_kept),
            producing(address, acknowledged, to_new),
            reader,
        ):
            clients.enter_context(acknowledged.while_running(client))
        assert reader.has_committed.wait(60), "nothing was committed"
        for _ in range(kills):
            acknowledged.wait_for_more(rng.randrange(1, 1_000), "orders", "kept")
            complaints.append(broker.kill())
            broker.start()
        acknowledged.wait_for_more(200, "orders", "kept")
    give_up_at = time.monotonic() + CLEANED_WITHIN_S
    contents = asyncio.run(read_everything(address))
    while not is_compacted(acknowledged, contents) and time.monotonic() < give_up_at:
        contents = asyncio.run(read_everything(address))  # its cleaner has just been started again
    check_orders(acknowledged, contents, reader)
    check_kept(acknowledged, contents)
    check_committed(reader)
    assert not [text for text in complaints if "Traceback" in text or "lacks" in text], complaints
