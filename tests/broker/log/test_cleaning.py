"""A broker that compacts its logs, as its clients see it."""

from __future__ import annotations

from pathlib import Path

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.groups.offsets import Committer, OffsetCommitEntry
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.structs import TopicPartition
from tests.broker.log.keyed import DAY_MS, keyed
from tests.broker.logs import Clock
from tests.broker.wire import eventually

KEPT = TopicPartition("kept", 0)


async def compacted(broker: Broker, records: int) -> None:
    """Write two records of each key, and roll the log so that they may be compacted."""
    broker.create_topic(
        "kept",
        configs={
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "segment.ms": "1000",
        },
    )
    now_ms = broker.clock()
    partition = broker.partition("kept", 0)
    for number in range(records):
        batch = keyed((b"%d" % (number % (records // 2)), b"%d" % number), timestamp=now_ms - 9_000)
        partition.append(batch)
    partition.append(keyed((b"last", b""), timestamp=now_ms))


@pytest.mark.parametrize("is_on_disk", [False, True])
async def test_consumer_gets_the_newest_record_of_each_key(
    tmp_path: Path, is_on_disk: bool
) -> None:
    async with Broker(data_dir=tmp_path if is_on_disk else None) as broker:
        await compacted(broker, 1000)
        await broker.clean_logs()
        async with AIOKafkaConsumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
            consumer.assign([KEPT])
            for start in (0, 100, 499, 500, 777, 1000):
                consumer.seek(KEPT, start)
                record = await consumer.getone()
                assert record.offset == max(start, 500)
            await consumer.seek_to_beginning(KEPT)
            offsets: list[int] = []
            while len(offsets) < 501:
                for records in (await consumer.poll()).values():
                    offsets += [record.offset for record in records]
            assert offsets == [*range(500, 1001)]


async def test_logs_are_compacted_by_themselves() -> None:
    async with Broker(log_cleaner_backoff_ms=1) as broker:
        await compacted(broker, 10)
        await eventually(lambda: broker.partition("kept", 0).log.clean_end == 10)


async def test_damaged_log_is_left_alone_and_the_others_are_compacted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Broker() as broker:
        config = {"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0"}
        broker.create_topic("damaged", configs=config)
        damaged = broker.partition("damaged", 0)
        broken = bytearray(keyed((b"a", b"x"), (b"a", b"y")))
        broken[-8] ^= 0x55
        for batch in (bytes(broken), keyed((b"b", b""), timestamp=broker.clock())):
            damaged.append(batch)
        await compacted(broker, 10)
        for _ in range(2):
            await broker.clean_logs()
        assert broker.partition("kept", 0).log.clean_end == 10
        assert damaged.log.clean_end == 0
        assert [record.message for record in caplog.records if "damaged-0" in record.message]
        assert len([r for r in caplog.records if "damaged-0 failed" in r.message]) == 1


@pytest.mark.parametrize("is_on_disk", [False, True])
async def test_committed_offsets_are_compacted_and_still_known(
    tmp_path: Path, is_on_disk: bool
) -> None:
    group, tp = "readers", TopicPartition("topic", 0)
    data_dir = tmp_path if is_on_disk else None
    clock = Clock()
    async with Broker(data_dir=data_dir, offsets_topic_partitions=1, clock=clock) as broker:
        broker.create_topic("topic", 3)
        await broker.open_internal_topic("__consumer_offsets")
        groups = broker.node.groups
        log = broker.partition("__consumer_offsets", 0).log
        for number in range(3000):
            clock.now_ms += 8 * DAY_MS if number == 2000 else 0  # the segment's time is over
            offset = OffsetCommitEntry(
                TopicPartition("topic", number % 3), ZERO_UUID, number, -1, "x" * 100
            )
            groups.commit(group, [offset], Committer())
        before, size = groups.offsets.fetch(group, tp, ZERO_UUID), log.size
        await broker.clean_logs()
        assert log.size < 0.4 * size
        assert groups.offsets.fetch(group, tp, ZERO_UUID) == before
    if data_dir is not None:
        async with Broker(data_dir=data_dir, clock=clock) as broker:
            await broker.node.groups.until_loaded()
            assert broker.node.groups.offsets.fetch(group, tp, ZERO_UUID) == before
