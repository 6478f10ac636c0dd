"""`timeout_s` of `run`: calls that take too long are cancelled, and their records fail."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from aiokafka_lite import AIOKafkaProducer
from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker, NewRecord
from aiokafka_lite.consumer.processing.time_limit import LONG_PART
from aiokafka_lite.processing import CircuitBreaker, DeadRecord, Outputs, Retry
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.consumer.processing.running import member, running
from tests.support.cluster import KafkaHandle, unique
from tests.support.waiting import until

pytestmark = pytest.mark.virtual_time_if_embedded

Record = ConsumerRecord[bytes | None, bytes | None]
LIMIT_S: Final = 1.5
PATIENCE_S: Final = 60.0


async def hang(record: Record) -> None:
    await asyncio.sleep(1_000)


async def swallow(record: Record) -> None:
    try:
        await asyncio.sleep(1_000)
    except asyncio.CancelledError:
        return


async def undo(record: Record) -> None:
    """Continue as after a cancellation of its own, whose request it takes back."""
    try:
        await asyncio.sleep(1_000)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if sys.version_info >= (3, 11) and task is not None:
            task.uncancel()
        await asyncio.sleep(0)  # its end is not that of the cancellation


async def raise_another(record: Record) -> None:
    try:
        await asyncio.sleep(1_000)
    except asyncio.CancelledError as error:
        raise ValueError("lost its connection") from error


class HeldTwice:
    """A handler that ends at the second cancellation."""

    def __init__(self) -> None:
        self.cancellations = 0

    async def __call__(self, record: Record) -> None:
        while self.cancellations % 2 == 0:
            await swallow(record)
            self.cancellations += 1
        await asyncio.sleep(1_000)


class Dead:
    """The dead letters of a run, and when each was written."""

    def __init__(self) -> None:
        self.letters: list[DeadRecord] = []
        self.written_at: list[float] = []

    async def __call__(self, dead: DeadRecord) -> None:
        self.letters.append(dead)
        self.written_at.append(asyncio.get_running_loop().time())


async def filled(kafka: KafkaHandle, values: list[bytes]) -> str:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, [(None, value) for value in values])
    return topic


@pytest.mark.real_if_long
@pytest.mark.parametrize("ending", [hang, swallow, undo, raise_another, HeldTwice()])
async def test_a_call_that_takes_too_long_fails_however_it_ends(
    kafka: KafkaHandle, ending: Callable[[Record], Awaitable[None]]
) -> None:
    topic = await filled(kafka, [b"good", b"slow", b"good"] * 2)
    consumer = member(kafka, topic, unique("limit"))
    handled: list[int] = []
    dead = Dead()

    async def handle(record: Record) -> None:
        if record.value == b"slow":
            await ending(record)
        else:
            await asyncio.sleep(0)
            handled.append(record.offset)

    async with (
        timeout(PATIENCE_S),
        running(consumer, handle, concurrency=1, timeout_s=LIMIT_S, retry=2, dead_letter=dead),
    ):
        await until(lambda: consumer.metrics()["processing_finished_total"] == 4)
        await until(lambda: len(dead.letters) == 2)
        assert handled == [0, 2, 3, 5]
        for letter in dead.letters:
            assert type(letter.error) is TimeoutError
            assert "timeout_s=1.5" in str(letter.error)
            assert letter.attempts == 2
        tp = TopicPartition(topic, 0)
        await consumer.commit()
        assert await consumer.committed(tp) == 6


async def test_each_call_has_its_own_time_and_attempts_begin_anew() -> None:
    """Calls begin at different times, and none is cancelled before its own limit."""
    async with timeout(PATIENCE_S), Broker() as broker:
        broker.create_topic("t", 1)
        broker.produce_all("t", [NewRecord(b"x")] * 30)
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        loop = asyncio.get_running_loop()
        took: list[tuple[int, float]] = []
        begun = 0

        async def handle(record: Record) -> None:
            nonlocal begun
            begun += 1
            began_at = loop.time()
            try:
                # Short calls of different lengths, so that long ones begin at different times.
                await asyncio.sleep(100 if record.offset % 3 == 0 else 0.1 + 0.02 * record.offset)
            except asyncio.CancelledError:
                took.append((record.offset, loop.time() - began_at))
                raise

        consumer = member(kafka, "t", "g")
        dead = Dead()
        async with running(
            consumer, handle, concurrency=4, timeout_s=1, retry=2, dead_letter=dead, breaker=None
        ):
            await until(lambda: len(dead.letters) == 10)
            assert consumer.metrics()["processing_finished_total"] == 20
        assert begun == 20 + 2 * 10
        assert [took_s for _, took_s in took] == pytest.approx([1.0] * 20, abs=0.1)


@pytest.mark.real_if_long
async def test_a_list_that_takes_too_long_is_tried_record_by_record(kafka: KafkaHandle) -> None:
    topic = await filled(kafka, [b"good", b"slow", b"good"])
    consumer = member(kafka, topic, unique("limit"))
    lists: list[int] = []
    dead = Dead()

    async def handle(records: list[Record]) -> None:
        lists.append(len(records))
        for record in records:
            if record.value == b"slow":
                await swallow(record)

    async with (
        timeout(PATIENCE_S),
        running(consumer, handle, batch_size=10, timeout_s=LIMIT_S, dead_letter=dead, breaker=None),
    ):
        await until(lambda: len(dead.letters) == 1)
        await until(lambda: consumer.metrics()["processing_finished_total"] == 2)
    assert (lists[0], type(dead.letters[0].error)) == (3, TimeoutError)


async def test_the_outputs_of_a_late_call_are_discarded(kafka: KafkaHandle) -> None:
    topic = await filled(kafka, [b"good", b"slow"])
    outputs_topic, letters = await kafka.create_topic(), await kafka.create_topic()
    consumer = member(kafka, topic, unique("limit"))

    async def handle(record: Record, outputs: Outputs) -> None:
        outputs.send(outputs_topic, record.value)
        if record.value == b"slow":
            await swallow(record)

    async with (
        timeout(PATIENCE_S),
        AIOKafkaProducer(
            bootstrap_servers=kafka.bootstrap_servers, transactional_id=unique("limit")
        ) as producer,
    ):
        async with running(
            consumer,
            handle,
            timeout_s=LIMIT_S,
            transactions=producer,
            dead_letter=letters,
            breaker=None,
        ):
            await until(lambda: consumer.metrics()["processing_dead_total"] == 1)
        reader = member(kafka, outputs_topic, unique("r"), isolation_level="read_committed")
        async with reader:
            assert [(await reader.getone()).value] == [b"good"]
            assert not await reader.getmany(timeout_ms=500)


@pytest.mark.real_if_long
async def test_late_calls_open_the_breaker_and_stop_a_run_without_dead_letters(
    kafka: KafkaHandle,
) -> None:
    topic = await filled(kafka, [b"slow"] * 4)
    consumer = member(kafka, topic, unique("limit"))
    async with (
        timeout(PATIENCE_S),
        running(consumer, hang, timeout_s=0.5, retry=50, breaker=CircuitBreaker(min_calls=2)),
    ):
        await until(lambda: consumer.metrics()["processing_paused"] == 1)
        assert "TimeoutError" in str(consumer.health().reasons)
    again = member(kafka, topic, unique("limit"))
    async with timeout(PATIENCE_S), again:
        with pytest.raises(TimeoutError, match=r"timeout_s=0\.5"):
            await again.run(hang, timeout_s=0.5, retry=Retry(stop=TimeoutError))


@pytest.mark.virtual_time
async def test_health_and_explain_name_a_call_before_it_is_late_and_while_it_does_not_end() -> None:
    is_to_end = asyncio.Event()
    async with timeout(PATIENCE_S), Broker() as broker:
        broker.create_topic("t", 1)
        broker.produce_all("t", [NewRecord(b"x")] * 3)
        consumer = member(KafkaHandle("embedded", broker.bootstrap_servers), "t", "g")
        tp = TopicPartition("t", 0)
        cancelled = 0

        async def stay(record: Record) -> None:
            nonlocal cancelled
            while not is_to_end.is_set():
                try:
                    await is_to_end.wait()
                except asyncio.CancelledError:
                    cancelled += 1

        def named() -> list[str]:
            return [each for each in consumer.health().reasons if "handler of t/0" in each]

        async with running(
            consumer, stay, timeout_s=5, concurrency=2, dead_letter=Dead(), breaker=None
        ):
            try:
                await until(lambda: consumer.metrics()["processing_at_work"] == 2)
                await asyncio.sleep(5 * LONG_PART - 0.5)
                assert not named()
                assert "is cancelled after 5 s (timeout_s)" in consumer.explain(tp)
                await asyncio.sleep(1)
                (text,) = named()
                assert "offset 0" in text
                assert "1 other" in text
                assert "is cancelled after 5 s" in text
                assert cancelled == 0
                await asyncio.sleep(2)
                assert cancelled == 2
                assert "was cancelled after 5 s (timeout_s), and has not ended" in named()[0]
                assert "has not ended" in consumer.explain(tp)
                await asyncio.sleep(2)
                assert cancelled == 2
                await asyncio.sleep(2)
                assert cancelled == 4
            finally:
                is_to_end.set()
            await until(lambda: consumer.metrics()["processing_dead_total"] == 2)
            assert not named()


@pytest.mark.virtual_time
@pytest.mark.parametrize("hold_ms", [1_000, 30_000])
async def test_a_rebalance_and_a_limit_are_told_apart(hold_ms: int) -> None:
    """A call that a rebalance cancels has no failed attempt; one that is late before it has."""
    async with timeout(PATIENCE_S), Broker() as broker:
        broker.create_topic("t", 2)
        for partition in range(2):
            broker.produce_all("t", [NewRecord(b"x", partition=partition)])
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        consumer, other = (member(kafka, "t", "g", rebalance_hold_ms=hold_ms) for _ in range(2))
        dead, tried = Dead(), []

        async def handle(record: Record) -> None:
            tried.append(record.partition)
            await hang(record)

        async with running(consumer, handle, timeout_s=6, dead_letter=dead, breaker=None):
            await until(lambda: len(tried) == 2)
            async with other:
                await asyncio.sleep(9)
                (moved,) = other.assignment()
                letters = sorted(each.record.partition for each in dead.letters)
                assert (moved.partition in letters) is (hold_ms == 30_000)
