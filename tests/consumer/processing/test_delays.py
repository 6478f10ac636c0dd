"""Delay topics: failed records wait in them, and are handled again when they are due."""

from __future__ import annotations

import asyncio
import math
import re
import time
from asyncio import _get_running_loop
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast

import pytest

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka_lite._compat import timeout
from aiokafka_lite._virtual import wall_ms
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.groups.kip848.assignors import ASSIGNORS
from aiokafka_lite.broker.handlers import groups
from aiokafka_lite.consumer.membership.kip848.heartbeat import (
    HeartbeatSchedule,
    SentHeartbeat,
    Subscription,
)
from aiokafka_lite.consumer.membership.kip848.member import Held
from aiokafka_lite.errors import IllegalStateError, UnknownTopicOrPartitionError
from aiokafka_lite.processing import DROP, DeadLetters, DeadRecord, Outputs, Retry
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.consumer.processing.running import member, running
from tests.support.cluster import KafkaHandle, unique
from tests.support.for_each import for_each
from tests.support.virtual_time import VirtualTimeLoop
from tests.support.waiting import until

pytestmark = pytest.mark.virtual_time_if_embedded

Record = ConsumerRecord[bytes | None, bytes | None]
PATIENCE_S: Final = 60.0


@pytest.fixture(autouse=True)
def time_of_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the time of day pass with virtual time."""
    real_ns, began_ns = time.time_ns, time.time_ns()

    def time_ns() -> int:
        loop = _get_running_loop()
        if isinstance(loop, VirtualTimeLoop):
            return began_ns + int(loop.time() * 1e9)
        return real_ns()

    monkeypatch.setattr(time, "time_ns", time_ns)
    monkeypatch.setattr(time, "time", lambda: time_ns() / 1e9)


@dataclass
class Tried:
    """One call of the handler."""

    at: float
    record: Record


@dataclass
class Job:
    """A topic with delay topics, and the calls of a handler that fails for some records."""

    kafka: KafkaHandle
    topic: str
    retry: Retry
    dead: str
    group: str = field(default_factory=lambda: unique("delays"))
    tried: list[Tried] = field(default_factory=list)
    #: How many attempts of a record fail, by its value.
    failures: dict[bytes | None, float] = field(default_factory=dict)

    @classmethod
    async def of(
        cls,
        kafka: KafkaHandle,
        delays: list[float],
        *,
        partitions: int = 1,
        configs: dict[str, str] | None = None,
        **settings: Any,
    ) -> Job:
        topic = await kafka.create_topic(partitions=partitions)
        retry = Retry(
            topic=f"{topic}.retry", delays=delays, **{"after": 2, "first_delay_ms": 10, **settings}
        )
        for name in dict.fromkeys(retry.delay_topics):
            await kafka.create_topic(name, partitions=partitions, configs=configs)
        return cls(kafka, topic, retry, await kafka.create_topic())

    async def handle(self, record: Record) -> None:
        self.tried.append(Tried(asyncio.get_running_loop().time(), record))
        count = sum(each.record.value == record.value for each in self.tried)
        if count <= self.failures.get(record.value, 0):
            raise ValueError(f"attempt {count}")

    def member(self, **settings: object) -> AIOKafkaConsumer:
        return member(self.kafka, self.topic, self.group, **settings)

    @asynccontextmanager
    async def running(
        self, consumer: AIOKafkaConsumer | None = None, **options: Any
    ) -> AsyncIterator[AIOKafkaConsumer]:
        consumer = self.member() if consumer is None else consumer
        arguments = {"retry": self.retry, "breaker": None, "dead_letter": self.dead, **options}
        async with running(consumer, arguments.pop("handler", self.handle), **arguments):
            yield consumer

    def times_of(self, value: bytes) -> list[float]:
        return [each.at for each in self.tried if each.record.value == value]

    async def committed(self, *topics: str) -> dict[str, int | None]:
        async with AIOKafkaConsumer(
            bootstrap_servers=self.kafka.bootstrap_servers,
            group_id=self.group,
            enable_auto_commit=False,
        ) as reader:
            return {topic: await reader.committed(TopicPartition(topic, 0)) for topic in topics}


def finished(consumer: AIOKafkaConsumer) -> int:
    return cast("int", consumer.metrics()["processing_finished_total"])


async def records_of(kafka: KafkaHandle, topic: str, count: int) -> list[Record]:
    reader = member(kafka, topic, unique("r"), isolation_level="read_committed")
    async with timeout(PATIENCE_S), reader:
        found = [await reader.getone() for _ in range(count)]
        assert not await reader.getmany(timeout_ms=300)
        return found


def texts(record: Record) -> Mapping[str, str]:
    return {
        name.removeprefix("__dlq.errors."): value.decode()
        for name, value in record.headers
        if name.startswith("__dlq.errors.")
    }


async def test_a_failed_record_is_handled_after_each_delay_and_returns_as_it_was(
    kafka: KafkaHandle,
) -> None:
    job = await Job.of(kafka, [1, 2])
    job.failures = {b"b": 3}
    sent_ms = wall_ms() - 90_000
    await kafka.produce(
        job.topic, 0, [(b"k", b"a"), (b"k", b"b"), (b"k", b"c")], timestamp_ms=sent_ms,
        headers=[("trace", b"7")],
    )  # fmt: skip
    async with timeout(PATIENCE_S), job.running() as consumer:
        await until(lambda: len(job.times_of(b"b")) == 3)
        # In place twice; then the later records of the key, while it waits.
        assert [each.record.value for each in job.tried][:4] == [b"a", b"b", b"b", b"c"]
        assert job.times_of(b"c")[0] < job.times_of(b"b")[2]
        await consumer.commit()
        assert await consumer.committed(TopicPartition(job.topic, 0)) == 3
        await until(lambda: consumer.metrics()["processing_delayed_total"] == 2)
        await until(lambda: consumer.metrics()["processing_finished_total"] == 3)
    first, second, third, fourth = job.times_of(b"b")
    assert second - first < 0.5
    assert 0.9 < third - second < 2
    assert 1.9 < fourth - third < 3
    seen = [each.record for each in job.tried if each.record.value == b"b"]
    for record in seen:
        assert (record.topic, record.partition, record.offset) == (job.topic, 0, 1)
        assert (record.timestamp, record.key) == (sent_ms, b"k")
        assert list(record.headers) == [("trace", b"7")]
    delay_topics = job.retry.delay_topics
    assert delay_topics == (f"{job.topic}.retry.1", f"{job.topic}.retry.2")
    assert await job.committed(*delay_topics) == dict.fromkeys(delay_topics, 1)
    assert consumer.metrics()["processing_dead_total"] == 0


@pytest.mark.real_if_long
async def test_after_the_last_delay_it_is_a_dead_letter_with_its_history(
    kafka: KafkaHandle,
) -> None:
    job = await Job.of(kafka, [0.5, 0.5], after=1)
    job.failures = {b"bad": math.inf}
    await kafka.produce(job.topic, 0, [(b"k", b"bad")], headers=[("trace", b"7")])
    async with timeout(PATIENCE_S), job.running() as consumer:
        await until(lambda: consumer.metrics()["processing_dead_total"] == 1)
    (letter,) = await records_of(kafka, job.dead, 1)
    assert (letter.key, letter.value, letter.headers[0]) == (b"k", b"bad", ("trace", b"7"))
    found = texts(letter)
    assert Counter(name for name, _ in letter.headers).most_common(1)[0][1] == 1
    assert (found["topic"], found["partition"], found["offset"]) == (job.topic, "0", "0")
    assert found["delivery.count"] == "3"
    assert found["delay.count"] == "2"
    assert "state" not in found
    assert (found["message"], found["first.message"]) == ("attempt 3", "attempt 1")
    assert found["exception"] == found["first.exception"] == "builtins.ValueError"
    assert abs(int(found["first.timestamp"]) - wall_ms()) < 60_000
    # A delay that is there twice has one topic.
    delayed = await records_of(kafka, f"{job.topic}.retry.0.5", 2)
    assert [texts(each)["delay.count"] for each in delayed] == ["1", "2"]
    assert [texts(each)["state"] for each in delayed] == ["delayed"] * 2


@for_each(["dead", "stop", "foreign"])
def test_errors_that_are_not_retried_are_not_delayed(kind: str) -> None:
    class Foreign(Exception): ...

    retry = Retry(topic="t", delays=[1], on=OSError, dead=ConnectionError)
    error = {"dead": ConnectionError(), "stop": ValueError(), "foreign": Foreign()}[kind]
    assert not retry.may_delay(error)
    assert retry.may_delay(TimeoutError())


@for_each(
    [
        ({"topic": "t"}, ValueError, "topic and delays need each other"),
        ({"delays": [1]}, ValueError, "topic and delays need each other"),
        ({"topic": "", "delays": [1]}, ValueError, "topic and delays"),
        ({"topic": "t", "delays": [0]}, ValueError, "must be positive and finite"),
        ({"topic": "t", "delays": [math.inf]}, ValueError, "must be positive and finite"),
        ({"topic": "t", "delays": ["1"]}, TypeError, "each of delays must be a number"),
        ({"topic": "t", "delays": "60"}, TypeError, "delays must be a list"),
        ({"topic": "t", "delays": 60}, TypeError, "delays must be a list"),
        ({"topic": 5, "delays": [1]}, TypeError, "topic must be a str"),
        ({"topic": "t", "delays": [1], "after": 0}, ValueError, "after must be at least 1"),
    ]
)
def test_wrong_delays_are_refused(given: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Retry(**given)


@pytest.mark.real_if_long
async def test_the_first_that_is_not_due_is_held_and_no_more_are_taken(kafka: KafkaHandle) -> None:
    """A thousand delayed records do not fill the run's memory, and it stays healthy."""
    job = await Job.of(kafka, [8], after=1)
    job.failures = {b"x": math.inf}
    await kafka.produce(job.topic, 0, [(None, b"x")] * 300)
    tp = TopicPartition(f"{job.topic}.retry.8", 0)
    async with timeout(PATIENCE_S), job.running(max_uncommitted=100) as consumer:
        await until(lambda: consumer.metrics()["processing_delayed_total"] == 300)
        await until(lambda: "was delayed" in consumer.explain(tp))
        assert "is tried again in" in consumer.explain(tp)
        await asyncio.sleep(1)
        assert consumer.metrics()["processing_waiting_for_retry"] in range(1, 20)
        assert await consumer.committed(TopicPartition(job.topic, 0)) == 300
        assert len(job.tried) == 300
        # Others are handled meanwhile.
        await kafka.produce(job.topic, 0, [(None, b"good")])
        await until(lambda: job.times_of(b"good"))
        await until(lambda: consumer.metrics()["processing_dead_total"] == 300)
        assert consumer.health().is_ok, consumer.health().reasons
    assert len(job.tried) == 601


@pytest.mark.virtual_time
async def test_a_partition_whose_records_are_not_due_is_healthy(kafka: KafkaHandle) -> None:
    job = await Job.of(kafka, [600], after=1)
    job.failures = {b"x": 1}
    await kafka.produce(job.topic, 0, [(None, b"x")])
    consumer = job.member(fetch_max_wait_ms=500, heartbeat_interval_ms=3_000)
    async with consumer:
        options: dict[str, Any] = {"breaker": None, "dead_letter": job.dead}
        task = asyncio.create_task(consumer.run(job.handle, retry=job.retry, **options))
        for _ in range(10):
            await asyncio.sleep(55)
            assert consumer.health().is_ok, consumer.health().reasons
        assert len(job.tried) == 1
        await asyncio.sleep(60)
        first, second = job.times_of(b"x")
        assert 599 < second - first < 602
        await consumer.stop()
        await task


@pytest.mark.parametrize("fair", [False, True], ids=["", "fair"])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_rebalance_and_a_kill_lose_no_delayed_record(
    kafka: KafkaHandle, protocol: str, fair: bool
) -> None:
    job = await Job.of(kafka, [3], partitions=2, after=1)
    job.failures = {b"%d" % n: 1 for n in range(40)}
    for partition in range(2):
        rows = [(None, b"%d" % n) for n in range(partition, 40, 2)]
        await kafka.produce(job.topic, partition, rows)
    settings: dict[str, object] = {"group_protocol": protocol}
    async with timeout(PATIENCE_S), job.running(job.member(**settings), fair=fair) as first:
        await until(lambda: first.metrics()["processing_delayed_total"] == 40)
        async with job.running(job.member(**settings), fair=fair) as second:
            await until(lambda: len(second.assignment()) == 2)
            await until(lambda: len(job.tried) == 80)
            both = (first, second)
            await until(lambda: sum(finished(each) for each in both) == 40)
    assert Counter(each.record.value for each in job.tried) == {b"%d" % n: 2 for n in range(40)}


@pytest.mark.real_if_long
async def test_a_stop_does_not_wait_and_the_next_run_continues(kafka: KafkaHandle) -> None:
    job = await Job.of(kafka, [4], after=1)
    job.failures = {b"x": 1}
    await kafka.produce(job.topic, 0, [(None, b"x")] * 1)
    loop = asyncio.get_running_loop()
    async with timeout(PATIENCE_S):
        async with job.running() as consumer:
            await until(lambda: consumer.metrics()["processing_waiting_for_retry"] == 1)
            began_at = loop.time()
        assert loop.time() - began_at < 2
        async with job.running():
            await until(lambda: len(job.tried) == 2)
    assert 3.9 < job.tried[1].at - job.tried[0].at < 8


@pytest.mark.parametrize("reset", ["latest", "none"])
async def test_delay_topics_are_read_from_their_beginning(kafka: KafkaHandle, reset: str) -> None:
    """Otherwise a record would be skipped that is written before the first position is found."""
    job = await Job.of(kafka, [1], after=1)
    job.failures = {b"x": 1}
    async with timeout(PATIENCE_S):
        async with job.member(auto_offset_reset=reset) as consumer:
            await until(consumer.assignment)
            await consumer.commit({TopicPartition(job.topic, 0): 0})
        # Written by a member that was killed before any other had the delay topic.
        await kafka.produce(job.topic, 0, [(None, b"x")])
        async with job.running(job.member(auto_offset_reset=reset)):
            await until(lambda: len(job.tried) == 2)


@pytest.mark.real_if_long
async def test_groups_that_share_delay_topics_handle_their_own_records(kafka: KafkaHandle) -> None:
    job = await Job.of(kafka, [1], after=1)
    other = Job(kafka, job.topic, job.retry, job.dead)
    job.failures, other.failures = {b"x": 1}, {b"y": 1}
    await kafka.produce(job.topic, 0, [(None, b"x"), (None, b"y")] * 3)
    async with timeout(PATIENCE_S), job.running(), other.running():
        await until(lambda: len(job.tried) >= 7)
        await until(lambda: len(other.tried) >= 7)
        await asyncio.sleep(2)
    assert Counter(each.record.value for each in job.tried) == {b"x": 4, b"y": 3}
    assert Counter(each.record.value for each in other.tried) == {b"x": 3, b"y": 4}
    topic = job.retry.delay_topics[0]
    assert await job.committed(topic) == await other.committed(topic) == {topic: 2}


@pytest.mark.real_if_long
@pytest.mark.parametrize("header", [None, b"7"])
async def test_records_of_others_in_a_delay_topic_are_handled_as_they_are(
    kafka: KafkaHandle, header: bytes | None
) -> None:
    job = await Job.of(kafka, [1], after=1)
    (topic,) = job.retry.delay_topics
    headers: Any = [("__dlq.errors.topic", header)]
    await kafka.produce(topic, 0, [(b"k", b"v")], headers=headers)
    async with timeout(PATIENCE_S), job.running():
        await until(lambda: job.tried)
    assert (job.tried[0].record.topic, job.tried[0].record.offset) == (topic, 0)


@pytest.mark.real_if_long
async def test_deserialised_records_are_delayed_with_their_bytes(kafka: KafkaHandle) -> None:
    job = await Job.of(kafka, [1], after=1)
    given: list[object] = []

    async def handle(record: ConsumerRecord[str, int]) -> None:
        given.append((record.key, record.value))
        if len(given) < 3:
            raise ValueError(record.value)

    def text(key: bytes) -> str:
        return key.decode()

    consumer = job.member(value_deserializer=int, key_deserializer=text)
    await kafka.produce(job.topic, 0, [(b"k", b"007")])
    async with timeout(PATIENCE_S), job.running(consumer, handler=handle):
        await until(lambda: consumer.metrics()["processing_dead_total"] == 1)
    assert given == [("k", 7)] * 2
    (letter,) = await records_of(kafka, job.dead, 1)
    assert (letter.key, letter.value) == (b"k", b"007")


@pytest.mark.real_if_long
async def test_lists_routers_and_functions_for_the_order_see_original_records(
    kafka: KafkaHandle,
) -> None:
    job = await Job.of(kafka, [1], after=1)
    await kafka.produce(job.topic, 0, [(None, b"a"), (None, b"b")])
    lists: list[list[tuple[str, bytes | None]]] = []
    ordered: set[str] = set()

    async def handle(records: list[Record]) -> None:
        lists.append([(record.topic, record.value) for record in records])
        if sum(map(len, lists)) < 6:
            raise ValueError("bad")

    def order(record: Record) -> bytes | None:
        ordered.add(record.topic)
        return record.value

    handlers = {job.topic: handle}
    async with (
        timeout(PATIENCE_S),
        job.running(handler=handlers, batch_size=10, order=order) as consumer,
    ):
        await until(lambda: consumer.metrics()["processing_finished_total"] == 2)
    assert {topic for each in lists for topic, _ in each} == ordered == {job.topic}
    # The subscription has the delay topics now, for which no handler is asked.
    async with timeout(PATIENCE_S), job.running(handler=handlers, batch_size=10):
        pass


@pytest.mark.parametrize("batch_by", [None, "partition", "key"])
@pytest.mark.parametrize("order", ["key", "partition"])
async def test_lists_of_delayed_records_have_those_of_one_handler(
    kafka: KafkaHandle, batch_by: str | None, order: str
) -> None:
    job = await Job.of(kafka, [1], after=1)
    other = await kafka.create_topic(partitions=1)
    for topic in (job.topic, other):
        await kafka.produce(topic, 0, [(b"%d" % (n % 2), b"%d" % n) for n in range(8)])
    given: dict[str, list[list[str]]] = {job.topic: [], other: []}

    def of(topic: str) -> Callable[[list[Record]], Awaitable[None]]:
        async def handle(records: list[Record]) -> None:
            given[topic].append([record.topic for record in records])
            if asyncio.get_running_loop().time() < began + 0.5:
                raise ValueError("bad")

        return handle

    handlers, began = {job.topic: of(job.topic), other: of(other)}, 0.0
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers, group_id=job.group, auto_offset_reset="earliest"
    )
    async with timeout(PATIENCE_S):
        began = asyncio.get_running_loop().time()
        async with job.running(
            consumer, handler=handlers, batch_size=10, batch_by=batch_by, order=order,
            fair=batch_by is None, priority={other: 3} if batch_by is None else None,
        ):  # fmt: skip
            await until(lambda: consumer.metrics()["processing_finished_total"] == 16)
    for topic, lists in given.items():
        assert {each for topics in lists for each in topics} == {topic}


@pytest.mark.parametrize("way", ["outputs", "letters"])
async def test_in_transactions_it_is_delayed_and_handled_exactly_once(
    kafka: KafkaHandle, way: str
) -> None:
    job = await Job.of(kafka, [1, 2], after=1)
    job.failures = {b"b": 1, b"c": math.inf}
    outputs_topic = await kafka.create_topic()
    await kafka.produce(job.topic, 0, [(b"k", b"a"), (b"k", b"b"), (b"k", b"c")])
    consumer = job.member(isolation_level="read_committed")
    options: dict[str, Any] = {}

    async def with_outputs(record: Record, outputs: Outputs) -> None:
        outputs.send(outputs_topic, record.value)
        await job.handle(record)

    async with (
        timeout(PATIENCE_S),
        AIOKafkaProducer(
            bootstrap_servers=kafka.bootstrap_servers, transactional_id=unique("delays")
        ) as producer,
    ):
        if way == "outputs":
            options = {"transactions": producer, "handler": with_outputs}
        else:
            letters = DeadLetters(job.dead, transactional_id=unique("letters"))
            options = {"dead_letter": {ValueError: letters, OSError: DROP}}
        async with job.running(consumer, **options):
            await until(lambda: consumer.metrics()["processing_dead_total"] == 1)
            await until(lambda: consumer.metrics()["processing_in_outbox"] == 0)
    assert [each.value for each in await records_of(kafka, job.dead, 1)] == [b"c"]
    for topic, values in zip(job.retry.delay_topics, ([b"b", b"c"], [b"c"]), strict=True):
        assert [each.value for each in await records_of(kafka, topic, len(values))] == values
    if way == "outputs":
        assert await job.committed(job.topic) == {job.topic: 3}
        found = await records_of(kafka, outputs_topic, 2)
        assert sorted(each.value or b"" for each in found) == [b"a", b"b"]


@pytest.mark.real_if_long
async def test_a_run_to_the_present_ends_leaves_later_delayed_records_to_the_next(
    kafka: KafkaHandle,
) -> None:
    """The end of a delay topic is that when it is assigned, a moment after the run begins."""
    job = await Job.of(kafka, [2], after=1)
    job.failures = {b"x": 1, b"y": 1}
    async with timeout(PATIENCE_S):
        for value in (b"x", b"y", b"z"):
            await kafka.produce(job.topic, 0, [(None, value)])
            async with job.member() as consumer:
                summary = await consumer.run(
                    job.handle, retry=job.retry, breaker=None, dead_letter=job.dead, until="end"
                )
                assert summary.is_complete
                assert job.times_of(value)
        # The third run waits for what the second one has delayed.
        assert Counter(each.record.value for each in job.tried) == {b"x": 2, b"y": 2, b"z": 1}


@pytest.mark.real_if_long
async def test_what_cannot_work_is_refused_when_run_begins(kafka: KafkaHandle) -> None:
    job = await Job.of(kafka, [1])
    letters = DeadLetters(job.dead, transactional_id=unique("letters"))
    missing = Retry(topic=unique("none"), delays=[1])
    async with timeout(PATIENCE_S), job.member() as consumer:
        with pytest.raises(IllegalStateError, match='isolation_level="read_committed"'):
            await consumer.run(job.handle, retry=job.retry, dead_letter=letters)
        with pytest.raises(UnknownTopicOrPartitionError, match="for delayed records"):
            await consumer.run(job.handle, retry=missing)
        assert consumer.subscription() == {job.topic}
        consumer.unsubscribe()
        consumer.assign([TopicPartition(job.topic, 0)])
        with pytest.raises(IllegalStateError, match="needs a group_id"):
            await consumer.run(job.handle, retry=job.retry)
        consumer.unsubscribe()
        consumer.subscribe(pattern=f"{re.escape(job.topic)}$")
        with pytest.raises(IllegalStateError, match="has to match the topics"):
            await consumer.run(job.handle, retry=job.retry)
        consumer.unsubscribe()
        consumer.subscribe(pattern=re.escape(job.topic))
        await kafka.produce(job.topic, 0, [(None, b"x")])
        job.failures = {b"x": 2}
        task = asyncio.create_task(consumer.run(job.handle, retry=job.retry, breaker=None))
        await until(lambda: len(job.tried) == 3)
        await consumer.stop()
        await task


@pytest.mark.real_if_long
async def test_after_a_seek_delayed_records_are_held_again(kafka: KafkaHandle) -> None:
    job = await Job.of(kafka, [4], after=1)
    job.failures = {b"x": 1, b"y": 1}
    await kafka.produce(job.topic, 0, [(None, b"x"), (None, b"y")])
    tp = TopicPartition(f"{job.topic}.retry.4", 0)
    async with timeout(PATIENCE_S), job.running() as consumer:
        await until(lambda: consumer.metrics()["processing_delayed_total"] == 2)
        await until(lambda: consumer.metrics()["processing_waiting_for_retry"] == 1)
        for _ in range(3):
            consumer.seek(tp, 0)
            await asyncio.sleep(0.2)
        assert len(job.tried) == 2
        await until(lambda: len(job.tried) == 4)
        await until(lambda: consumer.metrics()["processing_finished_total"] == 2)
        await asyncio.sleep(1)
    assert sorted(each.record.value or b"" for each in job.tried) == [b"x", b"x", b"y", b"y"]


@pytest.mark.real_if_long
@pytest.mark.parametrize("fair", [False, True], ids=["", "fair"])
async def test_seeks_skip_and_repeat_delayed_records(kafka: KafkaHandle, fair: bool) -> None:
    job = await Job.of(kafka, [4], after=1)
    values = [b"%d" % n for n in range(6)]
    job.failures = dict.fromkeys(values, 1)
    await kafka.produce(job.topic, 0, [(value, value) for value in values])
    own, delayed = TopicPartition(job.topic, 0), TopicPartition(f"{job.topic}.retry.4", 0)

    def tried() -> list[int]:
        counts = Counter(each.record.value for each in job.tried)
        return [counts[value] for value in values]

    async with timeout(PATIENCE_S), job.running(fair=fair) as consumer:
        await until(lambda: consumer.metrics()["processing_delayed_total"] == 6)
        await until(lambda: consumer.metrics()["processing_waiting_for_retry"] == 1)
        consumer.seek(delayed, 4)  # the first was read: it waits, and is handled
        await until(lambda: len(job.tried) == 9)
        assert sorted(tried()) == [1] * 3 + [2] * 3
        consumer.seek(delayed, 0)
        await until(lambda: len(job.tried) == 15)
        assert sorted(tried()) == [2] * 3 + [3] * 3
        consumer.seek(own, 3)  # they succeed, and are not delayed again
        await until(lambda: len(job.tried) == 18)
        await until(lambda: finished(consumer) == 12)
        assert consumer.metrics()["processing_delayed_total"] == 6
    committed = await job.committed(own.topic, delayed.topic)
    assert committed == {own.topic: 6, delayed.topic: 6}


@pytest.mark.real_if_long
async def test_a_dead_letter_function_receives_the_original_record(kafka: KafkaHandle) -> None:
    job = await Job.of(kafka, [1], after=1)
    job.failures = {b"x": math.inf}
    dead: list[DeadRecord] = []

    async def remember(letter: DeadRecord) -> None:
        dead.append(letter)

    await kafka.produce(job.topic, 0, [(b"k", b"x")])
    async with timeout(PATIENCE_S), job.running(dead_letter=remember):
        await until(lambda: dead)
    (letter,) = dead
    assert (letter.record.topic, letter.record.offset, letter.attempts) == (job.topic, 0, 2)
    assert dict(letter.history)["__dlq.errors.first.message"] == b"attempt 1"


async def test_run_raises_an_error_of_the_order_function_for_a_delayed_record(
    kafka: KafkaHandle,
) -> None:
    job, is_deployed = await Job.of(kafka, [2], after=1), False
    job.failures[b"bad"] = 1
    await kafka.produce(job.topic, 0, [(b"k", b"bad")])

    def order(record: Record) -> bytes | None:
        if is_deployed:
            raise KeyError("customer")
        return record.key

    async with timeout(PATIENCE_S), job.member() as consumer:
        run = asyncio.create_task(
            consumer.run(job.handle, order=order, retry=job.retry, breaker=None)
        )
        await until(lambda: consumer.metrics()["processing_delayed_total"] == 1)
        is_deployed = True
        with pytest.raises(KeyError, match="customer"):
            await run


@pytest.mark.real_if_long
async def test_a_record_too_large_for_its_delay_topic_is_a_dead_letter(
    kafka: KafkaHandle, caplog: pytest.LogCaptureFixture
) -> None:
    job = await Job.of(kafka, [1], after=1, configs={"max.message.bytes": "1000"})
    large = b"x" * 5_000
    job.failures = {large: math.inf, b"small": 1}
    await kafka.produce(job.topic, 0, [(b"k", large), (b"k", b"small")])
    async with timeout(PATIENCE_S), job.running() as consumer:
        await until(lambda: consumer.metrics()["processing_finished_total"] == 1)
    (letter,) = await records_of(kafka, job.dead, 1)
    assert (letter.value, texts(letter)["delivery.count"]) == (large, "1")
    assert f"{job.topic}/0 offset 0 cannot be delayed" in caplog.text


@pytest.mark.real_if_long
async def test_without_dead_letters_run_raises_the_error_of_a_record_too_large_to_be_delayed(
    kafka: KafkaHandle,
) -> None:
    job = await Job.of(kafka, [1], after=1, configs={"max.message.bytes": "1000"})
    job.failures = {b"x" * 5_000: math.inf}
    await kafka.produce(job.topic, 0, [(b"k", b"x" * 5_000)])
    async with timeout(PATIENCE_S), job.member() as consumer:
        with pytest.raises(ValueError, match="attempt 1"):
            await consumer.run(job.handle, retry=job.retry, breaker=None)


@pytest.mark.real_if_long
async def test_a_delayed_record_that_cannot_be_deserialised_keeps_its_attempts_and_place(
    kafka: KafkaHandle, caplog: pytest.LogCaptureFixture
) -> None:
    job = await Job.of(kafka, [1], after=2)
    job.failures = {b"x": math.inf}
    is_broken = False

    def deserialise(value: bytes) -> bytes:
        if is_broken:
            raise ValueError("deployed meanwhile")
        return value

    consumer = job.member(value_deserializer=deserialise)
    await kafka.produce(job.topic, 0, [(b"k", b"y"), (b"k", b"x")])
    async with timeout(PATIENCE_S), job.running(consumer):
        await until(lambda: consumer.metrics()["processing_delayed_total"] == 1)
        is_broken = True
        await until(lambda: consumer.metrics()["processing_dead_total"] == 1)
    (letter,) = await records_of(kafka, job.dead, 1)
    found = texts(letter)
    assert (found["topic"], found["offset"], found["delivery.count"]) == (job.topic, "1", "2")
    (delay_topic,) = job.retry.delay_topics
    place = f"{delay_topic}/0 offset 0 (delayed {job.topic}/0 offset 1)"
    assert f"{place} was written to the dead letters after 2 attempts" in caplog.text


@pytest.mark.real_if_long
async def test_delay_topics_are_subscribed_until_run_ends_whatever_else_is_subscribed(
    kafka: KafkaHandle,
) -> None:
    job = await Job.of(kafka, [1], after=1)
    other = await kafka.create_topic()
    job.failures = {b"x": 1}
    await kafka.produce(other, 0, [(None, b"x")])
    async with timeout(PATIENCE_S), job.member() as consumer:
        run = asyncio.create_task(consumer.run(job.handle, retry=job.retry, breaker=None))
        await until(lambda: consumer.subscription() == {job.topic, *job.retry.delay_topics})
        consumer.subscribe([other])
        assert consumer.subscription() == {other, *job.retry.delay_topics}
        await until(lambda: len(job.tried) == 2)
        run.cancel()
        await asyncio.wait([run])
        assert consumer.subscription() == {other}


@pytest.mark.real_if_long
async def test_records_from_the_future_wait_together(kafka: KafkaHandle) -> None:
    job = await Job.of(kafka, [2])
    (topic,) = job.retry.delay_topics
    future_ms = wall_ms() + 1_200_000
    await kafka.produce(topic, 0, [(b"k", b"%d" % n) for n in range(50)], timestamp_ms=future_ms)
    async with timeout(PATIENCE_S), job.running():
        await until(lambda: len(job.tried) == 50)
    assert job.tried[-1].at - job.tried[0].at < 1


@pytest.mark.real_if_long
async def test_few_failed_records_are_delayed_although_no_other_succeeds(
    kafka: KafkaHandle,
) -> None:
    job = await Job.of(kafka, [5])
    job.failures = {b"a": 3, b"b": 3}
    await kafka.produce(job.topic, 0, [(b"a", b"a"), (b"b", b"b")])
    async with timeout(PATIENCE_S), job.running(breaker="default") as consumer:
        await until(lambda: consumer.metrics()["processing_delayed_total"] == 2)
        assert not consumer.metrics()["processing_paused"]
        # After the last delay, they would be dead letters: perhaps everything fails.
        await until(lambda: consumer.metrics()["processing_paused"])


@pytest.mark.real_if_long
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_each_member_has_a_share_of_the_topic_and_of_its_delay_topic(
    kafka: KafkaHandle, protocol: str
) -> None:
    job = await Job.of(kafka, [60], partitions=4)
    members = [job.member(group_protocol=protocol) for _ in range(2)]

    def has_shares() -> bool:
        shares = [Counter(tp.topic for tp in each.assignment()) for each in members]
        return all(share == {job.topic: 2, job.retry.delay_topics[0]: 2} for share in shares)

    async with timeout(PATIENCE_S), job.running(members[0]), job.running(members[1]):
        await until(has_shares)


@pytest.mark.real_if_long
async def test_a_delayed_dead_letter_keeps_its_headers(kafka: KafkaHandle) -> None:
    job = await Job.of(kafka, [1, 2])
    headers: Any = [("__dlq.errors.topic", b"other"), ("own", b"1"), ("__dlq.errors.state", b"")]
    job.failures = {b"v": 3}
    await kafka.produce(job.topic, 0, [(b"k", b"v")], headers=headers)
    async with timeout(PATIENCE_S), job.running():
        await until(lambda: len(job.tried) == 4)
    for tried in job.tried:
        assert sorted(tried.record.headers) == sorted(headers)


async def test_the_assignor_for_delay_topics_is_the_default_again_after_the_run(
    kafka: KafkaHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await Job.of(kafka, [60])
    named: list[str | None] = []
    make = HeartbeatSchedule.next

    def note(self: HeartbeatSchedule, subscribed: Subscription, held: Held) -> SentHeartbeat:
        sent = make(self, subscribed, held)
        if sent.request.topic_partitions is not None:  # otherwise it is a brief one
            named.append(sent.request.server_assignor)
        return sent

    monkeypatch.setattr(HeartbeatSchedule, "next", note)
    async with timeout(PATIENCE_S), job.member(group_protocol="consumer") as consumer:
        task = asyncio.create_task(consumer.run(job.handle, retry=job.retry, dead_letter=job.dead))
        await until(lambda: named[-1] == "range")
        task.cancel()
        await asyncio.wait({task})
        await until(lambda: named[-1] == "uniform")
    assert named[0] is None


@pytest.mark.virtual_time
async def test_delay_topics_are_read_in_clusters_without_their_assignor(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(groups, "ASSIGNORS", {"uniform": ASSIGNORS["uniform"]})
    async with timeout(PATIENCE_S), Broker() as broker:
        job = await Job.of(KafkaHandle("embedded", broker.bootstrap_servers), [60])
        async with job.running(job.member(group_protocol="consumer")) as consumer:
            topics = {job.topic, *job.retry.delay_topics}
            await until(lambda: {tp.topic for tp in consumer.assignment()} == topics)
    (warning,) = [each for each in caplog.records if "ServerAssignor range" in each.getMessage()]
    assert warning.levelname == "WARNING"
