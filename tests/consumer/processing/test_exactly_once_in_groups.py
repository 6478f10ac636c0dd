"""`run(transactions=producer)` in a group: members come and go, and connections are cut."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from typing import Final

import pytest
from confluent_kafka import Consumer

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.client.config import parse_address
from aiokafka_lite.errors import IllegalOperation, KafkaError
from aiokafka_lite.processing import Outputs
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.protocols import WAYS
from tests.support.proxy import Proxy, send_through
from tests.support.waiting import until

pytestmark = pytest.mark.real_if_long

Record = ConsumerRecord[bytes | None, bytes | None]

PARTITIONS: Final = 4
RECORDS: Final = 2_000
PATIENCE_S: Final = 80.0
# These rows of members that join and leave are in the short form.
JOINED_IN_SHORT: Final = (("consumer", True), ("eager", False))


def ways(in_short: str) -> pytest.MarkDecorator:
    """Return the mark for one row of each way, one of which is in the short form."""
    return pytest.mark.parametrize(
        "way",
        [
            pytest.param(way, marks=() if way == in_short else pytest.mark.slow)
            for way in sorted(WAYS)
        ],
    )


class Member:
    """A process that copies, and begins anew after each error."""

    def __init__(
        self,
        where: str,
        topics: tuple[str, str],
        group: str,
        settings: Mapping[str, object],
        longest_s: float = 0.02,
    ) -> None:
        self._where = where
        self._source, self._target = topics
        self._group = group
        self._settings = settings
        self._longest_s = longest_s
        self._rng = random.Random(group)
        self._id = unique("member")
        self.handled: Counter[int] = Counter()
        self.lives = 0
        self._consumer: AIOKafkaConsumer | None = None
        self._is_stopping = False
        self._task = asyncio.create_task(self._live())

    async def _handle(self, record: Record, outputs: Outputs) -> None:
        self.handled[int(record.value or b"")] += 1
        outputs.send(self._target, record.value, record.key)
        await asyncio.sleep(self._rng.random() * self._longest_s)

    async def _live(self) -> None:
        while not self._is_stopping:
            self.lives += 1
            try:
                await self._run()
            except (KafkaError, IllegalOperation):
                await asyncio.sleep(0.2)

    async def _run(self) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._where, transactional_id=self._id, transaction_timeout_ms=10_000
        )
        async with producer:
            consumer = AIOKafkaConsumer(
                self._source,
                bootstrap_servers=self._where,
                group_id=self._group,
                auto_offset_reset="earliest",
                heartbeat_interval_ms=100,
                session_timeout_ms=6_000,
                rebalance_timeout_ms=10_000,
                fetch_max_wait_ms=50,
                **self._settings,  # type: ignore[arg-type]
            )
            async with consumer:
                self._consumer = consumer
                if self._is_stopping:
                    return
                await consumer.run(self._handle, transactions=producer, concurrency=20)

    async def stop(self) -> None:
        self._is_stopping = True
        if self._consumer is not None:
            await self._consumer.stop()
        await self._task


def read_by_librdkafka(where: str, topic: str, count: int) -> Counter[int]:
    """What it finds of committed records, until there are so many and some seconds bring none."""
    consumer = Consumer(
        {
            "bootstrap.servers": where,
            "group.id": unique("reader"),
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe([topic])
    found: Counter[int] = Counter()
    quiet = 0
    while quiet < 20 and (found.total() < count or quiet < 2):
        message = consumer.poll(1.0)
        quiet = quiet + 1 if message is None else 0
        if message is not None and not message.error():
            found[int(message.value() or b"-1")] += 1
    consumer.close()
    return found


async def fill(kafka: KafkaHandle) -> tuple[str, str]:
    source, target = [await kafka.create_topic(partitions=PARTITIONS) for _ in range(2)]
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        for n in range(RECORDS):
            await producer.send(source, b"%d" % n, key=b"%d" % (n % 50))
        await producer.flush()
    return source, target


async def until_committed(reader: AIOKafkaConsumer, source: str) -> None:
    tps = [TopicPartition(source, number) for number in range(PARTITIONS)]
    while sum([await reader.committed(tp) or 0 for tp in tps]) < RECORDS:  # noqa: ASYNC110
        await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("way", "auto_commit"),
    [
        pytest.param(
            way,
            auto_commit,
            marks=() if (way, auto_commit) in JOINED_IN_SHORT else pytest.mark.slow,
        )
        for way in sorted(WAYS)
        for auto_commit in (True, False)
    ],
)
async def test_members_join_and_leave_and_each_record_is_copied_once(
    kafka: KafkaHandle, way: str, *, auto_commit: bool
) -> None:
    topics, group = await fill(kafka), unique("group")
    settings = {**WAYS[way], "enable_auto_commit": auto_commit}
    where = kafka.bootstrap_servers
    async with (
        timeout(PATIENCE_S),
        AIOKafkaConsumer(
            bootstrap_servers=where, group_id=group, enable_auto_commit=False
        ) as reader,
    ):
        members = [Member(where, topics, group, settings)]
        try:
            for share in (0.2, 0.5, 0.8):
                await until(
                    lambda: sum(m.handled.total() for m in members) > share * RECORDS  # noqa: B023
                )
                members.append(Member(where, topics, group, settings))
                await asyncio.sleep(0.3)
                if share == 0.5:
                    await members[0].stop()
            await until_committed(reader, topics[0])
        finally:
            await asyncio.gather(*(member.stop() for member in members))
        assert [member.lives for member in members] == [1] * len(members)
        assert sum((member.handled for member in members), Counter()) == Counter(range(RECORDS))
        found = await asyncio.to_thread(read_by_librdkafka, where, topics[1], RECORDS)
    assert found == Counter(range(RECORDS))


@ways("cooperative")
async def test_a_rebalance_waits_for_transactions_and_no_record_is_handled_twice(way: str) -> None:
    async with timeout(PATIENCE_S), Broker(group_consumer_heartbeat_interval_ms=100) as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        topics, group = await fill(kafka), unique("group")
        where = kafka.bootstrap_servers
        with broker.on("EndTxn").hold() as held:
            members = [Member(where, topics, group, WAYS[way])]
            await held.reached()
            await until(lambda: members[0].handled.total() == RECORDS)
            members.append(Member(where, topics, group, WAYS[way]))
            await asyncio.sleep(1)
            assert not members[1].handled
        async with AIOKafkaConsumer(
            bootstrap_servers=where, group_id=group, enable_auto_commit=False
        ) as reader:
            await until_committed(reader, topics[0])
        await asyncio.gather(*(member.stop() for member in members))
        assert members[0].handled + members[1].handled == Counter(range(RECORDS))
        found = await asyncio.to_thread(read_by_librdkafka, where, topics[1], RECORDS)
    assert found == Counter(range(RECORDS))


@ways("consumer")
async def test_connections_are_cut_and_each_record_is_copied_once(
    kafka: KafkaHandle, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics, group = await fill(kafka), unique("group")
    where = kafka.bootstrap_servers
    async with (
        timeout(PATIENCE_S),
        Proxy(parse_address(where)) as proxy,
        AIOKafkaConsumer(
            bootstrap_servers=where, group_id=group, enable_auto_commit=False
        ) as reader,
    ):
        send_through(monkeypatch, proxy)
        members = [Member(where, topics, group, WAYS[way], 0.1) for _ in range(2)]
        try:
            await until(lambda: sum(m.handled.total() for m in members) > 200)
            proxy.lifetime_s, proxy.resets = (0.05, 0.5), True
            proxy.end_all()
            await until(lambda: sum(m.handled.total() for m in members) > 0.9 * RECORDS)
            assert len(proxy.accepted_at) > 15
            proxy.lifetime_s = None
            await until_committed(reader, topics[0])
        finally:
            proxy.lifetime_s = None
            await asyncio.gather(*(member.stop() for member in members))
        found = await asyncio.to_thread(read_by_librdkafka, where, topics[1], RECORDS)
    assert found == Counter(range(RECORDS))
