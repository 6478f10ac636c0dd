"""`run(transactions=producer)` in virtual time: members come, go and are killed, brokers fail.

Whatever happens, each record has one output that readers of committed records see, or one dead
letter, and the outputs of a key are in the order of its records.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter, defaultdict
from functools import partial
from typing import Final

import pytest

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailableError,
    IllegalOperation,
    InvalidTxnState,
    KafkaError,
    NotCoordinatorError,
)
from aiokafka_lite.processing import DeadLetters, Outputs, Retry
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.model.handling import committed_records
from tests.model.world import Actor, VirtualWorld
from tests.support.cluster import KafkaHandle
from tests.support.rounds import in_time, random_rounds

Record = ConsumerRecord[bytes | None, bytes | None]

PARTITIONS: Final = 3
RECORDS: Final = 90
KEYS: Final = 6
SHORT: Final = 8
MOST_S: Final = 300.0
# Of a transaction that a killed member has left open.
TRANSACTION_TIMEOUT_MS: Final = 8_000


class Round:
    """One course of events, drawn from a number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._rng = random.Random(number)
        rng = self._rng
        self.protocol = rng.choice(["classic", "consumer"])
        self.auto_commit = rng.random() < 0.5
        self.batch_size = rng.choice([None, None, 7])
        self.order = rng.choice(["key", "partition"])
        self.concurrency = rng.choice([2, 20])
        self.hold_ms = rng.choice([50, 3_000])
        self.bad = {n for n in range(RECORDS) if rng.random() < rng.choice([0.0, 0.1])}
        self.world = VirtualWorld()
        self.lives: Counter[str] = Counter()
        self.done = False
        self.letters: list[Record] = []
        self.outputs: list[Record] = []
        self.failures: list[str] = []

    # --- A member ---------------------------------------------------------------------------
    async def _live(self, name: str, kafka: KafkaHandle, topics: tuple[str, str, str]) -> None:
        """Run, and begin anew after each error, as a process would that was restarted."""
        source, target, dead = topics
        rng = random.Random(f"{self.number} {name} {self.lives[name]}")
        tried: Counter[int] = Counter()

        async def handle_one(record: Record, outputs: Outputs) -> None:
            number = int(record.value or b"")
            tried[number] += 1
            outputs.send(target, record.value, record.key, partition=record.partition)
            if rng.random() < 0.7:
                await asyncio.sleep(rng.random() ** 4)
            if rng.random() < 0.05:
                raise ConnectionError("passes")
            if number in self.bad:
                raise ValueError("bad")

        async def handle_list(records: list[Record], outputs: Outputs) -> None:
            for record in records:
                await handle_one(record, outputs)

        def new_consumer() -> AIOKafkaConsumer:
            return AIOKafkaConsumer(
                source,
                bootstrap_servers=kafka.bootstrap_servers,
                group_id="g",
                group_protocol=self.protocol,
                auto_offset_reset="earliest",
                enable_auto_commit=self.auto_commit,
                session_timeout_ms=6_000,
                heartbeat_interval_ms=500,
                rebalance_hold_ms=self.hold_ms,
                request_timeout_ms=5_000,
                fetch_max_wait_ms=100,
            )

        while not self.done:
            producer = AIOKafkaProducer(
                bootstrap_servers=kafka.bootstrap_servers,
                transactional_id=name,
                transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                request_timeout_ms=3_000,
                delivery_timeout_ms=6_000,
            )
            try:
                async with producer, new_consumer() as consumer:
                    if not self.done:
                        await consumer.run(
                            handle_list if self.batch_size else handle_one,  # type: ignore[call-overload]
                            transactions=producer,
                            batch_size=self.batch_size,
                            order=self.order,
                            concurrency=self.concurrency,
                            retry=Retry(attempts=None, first_delay_ms=10, dead=ValueError),
                            dead_letter=DeadLetters(dead),
                            breaker=None,
                        )
                        return  # it was stopped
            except (KafkaError, IllegalOperation):
                await asyncio.sleep(0.5)

    async def _stoppable(
        self, name: str, kafka: KafkaHandle, topics: tuple[str, str, str], stop_after_s: float
    ) -> None:
        living = asyncio.ensure_future(self._live(name, kafka, topics))
        await asyncio.wait([living], timeout=stop_after_s)
        living.cancel()
        await asyncio.wait([living])
        if not living.cancelled() and (error := living.exception()) is not None:
            self.failures.append(f"{name}: {error!r}")

    # --- What happens -----------------------------------------------------------------------
    async def _conduct(self) -> None:
        async with Broker(
            group_min_session_timeout_ms=100,
            group_consumer_session_timeout_ms=6_000,
            group_consumer_heartbeat_interval_ms=500,
        ) as broker:
            kafka = KafkaHandle("embedded", broker.bootstrap_servers)
            source, target, dead = [await kafka.create_topic(partitions=PARTITIONS) for _ in "std"]
            topics = source, target, dead
            for n in range(RECORDS):
                await kafka.produce(source, n % PARTITIONS, [(b"%d" % (n // 3 % KEYS), b"%d" % n)])
            rng, actors = self._rng, dict[str, Actor]()

            def start(name: str) -> None:
                self.lives[name] += 1
                stop_after_s = rng.choice([2.0, 6.0, MOST_S])
                main = partial(self._stoppable, name, kafka, topics, stop_after_s)
                actors[name] = self.world.start(f"{name}-{self.lives[name]}", main)

            names = ["a", "b", "c"]
            start("a")
            for _ in range(rng.randint(4, 16)):
                await asyncio.sleep(rng.random() * 1.5)
                name = rng.choice(names)
                actor = actors.get(name)
                if actor is None or actor.is_done or actor.is_killed:
                    start(name)
                elif rng.random() < 0.4:
                    self.world.kill(actor)
                else:
                    self._harm(broker, target)
            for name in names:
                actor = actors.get(name)
                if actor is not None and not (actor.is_done or actor.is_killed):
                    self.world.kill(actor)
            start_last = partial(self._stoppable, "last", kafka, topics, MOST_S)
            last = self.world.start("last", start_last)
            await self._until_committed(kafka, source)
            self.done = True
            self.world.kill(last)
            for topic, found in ((target, self.outputs), (dead, self.letters)):
                for number in range(PARTITIONS):
                    found += await committed_records(kafka, TopicPartition(topic, number))

    def _harm(self, broker: Broker, target: str) -> None:
        rng = self._rng
        api = rng.choice(["EndTxn", "TxnOffsetCommit", "Produce", "InitProducerId", "OffsetFetch"])
        rule = broker.on("Produce", topic=target) if api == "Produce" else broker.on(api)
        times = rng.choice([1, 1, 3])
        what = rng.random()
        if what < 0.4:
            rule.disconnect(handled=rng.random() < 0.5, times=times)
        elif what < 0.6:
            rule.delay(rng.choice([0.5, 4.0]), times=times)
        elif api in ("EndTxn", "TxnOffsetCommit", "InitProducerId"):
            error = rng.choice(
                [ConcurrentTransactions, CoordinatorNotAvailableError, NotCoordinatorError]
            )
            rule.fail(InvalidTxnState if what > 0.9 and api == "EndTxn" else error, times=times)

    async def _until_committed(self, kafka: KafkaHandle, source: str) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + MOST_S
        each = RECORDS // PARTITIONS
        tps = [TopicPartition(source, number) for number in range(PARTITIONS)]
        async with AIOKafkaConsumer(
            bootstrap_servers=kafka.bootstrap_servers, group_id="g", enable_auto_commit=False
        ) as reader:
            while loop.time() < until:
                try:
                    if [await reader.committed(tp) for tp in tps] == [each] * PARTITIONS:
                        return
                except KafkaError:
                    pass
                await asyncio.sleep(0.5)
            found = [await reader.committed(tp) for tp in tps]
            self.failures.append(f"committed {found} after {MOST_S} s")

    # --- What came of it --------------------------------------------------------------------
    def run(self) -> None:
        self.world.run(self._conduct)
        assert not self.failures, (self.number, self.failures)
        outputs = Counter(int(record.value or b"-1") for record in self.outputs)
        letters = Counter(int(record.value or b"-1") for record in self.letters)
        twice = {n: c for n, c in (outputs + letters).items() if c > 1}
        assert not twice, (self.number, "twice", twice)
        assert (outputs + letters).keys() == set(range(RECORDS)), (self.number, "lost")
        assert letters.keys() == self.bad, (self.number, "letters")
        by_key: dict[tuple[int, bytes | None], list[int]] = defaultdict(list)
        for record in self.outputs:
            by_key[record.partition, record.key].append(int(record.value or b""))
        assert all(each == sorted(each) for each in by_key.values()), (self.number, "order")


@pytest.mark.few_rows(1)
@pytest.mark.parametrize("number", range(SHORT))
def test_each_record_has_one_output_whatever_happens(number: int) -> None:
    Round(number).run()


@pytest.mark.slow
@random_rounds
def test_each_record_has_one_output_in_course_after_course() -> None:
    for number in in_time(itertools.count(SHORT)):
        Round(number).run()
