"""Dead letters in virtual time: a process that is killed, and a downstream that is away."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Final

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite.broker import Broker
from aiokafka_lite.processing import DeadLetters, Retry
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.model.handling import committed_records
from tests.model.world import Actor, VirtualWorld
from tests.support.cluster import KafkaHandle
from tests.support.rounds import LONG
from tests.support.waiting import until

KILLS: Final = 1_000
# Turns of the member's loop after its first handler has failed: requests go out, are answered.
MOST_TURNS: Final = 80
# Then time passes, until the commit is there.
MOST_S: Final = 0.3
RECORDS: Final = 6


class Course:
    """What happens, and when a member is killed: one of `KILLS`, all of them different."""

    def __init__(self, number: int) -> None:
        kind, moment = number % 10, number // 10
        self.dead = ({1}, {1, 3}, {0, 1, 2}, {5}, {2, 4})[kind % 5]
        # A record whose handler takes its time: the commit stays before it.
        self.slow = kind // 5
        self.concurrency = (1, 4)[self.slow]
        share = (moment - MOST_TURNS) / (KILLS // 10 - MOST_TURNS)
        self.kill_after_s = max(0.0, share) * MOST_S
        self.kill_after_turns = min(moment, MOST_TURNS)


class Outcome:
    """What became of one kill."""

    def __init__(self) -> None:
        self.letters: Counter[int] = Counter()
        self.handled: Counter[int] = Counter()
        self.was_killed = False


def kill(course: Course, *, in_transactions: bool) -> Outcome:
    """Kill a member some time after a handler of its has failed, and let another go on."""
    world = VirtualWorld()
    outcome = Outcome()
    actors: list[Actor] = []

    def crash(turns_left: int) -> None:
        loop = actors[0].loop
        if turns_left:
            loop.call_soon(crash, turns_left - 1)
        else:
            outcome.was_killed = True
            loop.crash()

    async def live(kafka: KafkaHandle, topic: str, dead: str, number: int) -> None:
        is_armed = number == 0

        async def handle(record: ConsumerRecord[bytes | None, bytes | None]) -> None:
            nonlocal is_armed
            outcome.handled[record.offset] += 1
            if record.offset == 0 and course.slow:
                await asyncio.sleep(0.5)
            if record.offset in course.dead:
                if is_armed:
                    is_armed = False
                    loop = asyncio.get_running_loop()
                    loop.call_later(course.kill_after_s, crash, course.kill_after_turns)
                raise ValueError("bad")

        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=kafka.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
            session_timeout_ms=6000,
            fetch_max_wait_ms=50,
        )
        transactional_id = f"m{number}" if in_transactions else None
        async with consumer:
            running = asyncio.ensure_future(
                consumer.run(
                    handle,
                    concurrency=course.concurrency,
                    retry=Retry(dead=ValueError),
                    dead_letter=DeadLetters(dead, transactional_id=transactional_id),
                )
            )
            tps = consumer.assignment()
            while not tps or await consumer.committed(*tps) != RECORDS:
                tps = consumer.assignment()
                await asyncio.sleep(0.01)
            await consumer.stop()
            await running

    async def conduct() -> None:
        async with Broker(
            group_min_session_timeout_ms=100, group_consumer_session_timeout_ms=6000
        ) as broker:
            kafka = KafkaHandle("embedded", broker.bootstrap_servers)
            topic, dead = [await kafka.create_topic() for _ in range(2)]
            await kafka.produce(topic, 0, [(None, b"%d" % n) for n in range(RECORDS)])
            for number in range(2):
                actor = world.start(f"m{number}", partial(live, kafka, topic, dead, number))
                actors.append(actor)
                await until(lambda a=actor: a.is_done or a.is_killed)  # type: ignore[misc]
                world.kill(actor)
                if actor.failure is not None and not actor.is_killed:
                    raise actor.failure
                if not outcome.was_killed:
                    break
            letters = await committed_records(kafka, TopicPartition(dead, 0))
            outcome.letters.update(int(letter.value or b"") for letter in letters)

    world.run(conduct)
    return outcome


def check(number: int, *, in_transactions: bool) -> None:
    course = Course(number)
    outcome = kill(course, in_transactions=in_transactions)
    assert outcome.letters.keys() == course.dead, number
    most = 1 if in_transactions else 1 + outcome.was_killed
    assert max(outcome.letters.values()) <= most, (number, outcome.letters)


@pytest.mark.few_rows(2)
@pytest.mark.parametrize("number", range(7, KILLS, 83))
def test_a_kill_loses_no_record_and_repeats_each_letter_once_at_most(number: int) -> None:
    check(number, in_transactions=False)


@pytest.mark.few_rows(2)
@pytest.mark.parametrize("number", range(21, KILLS, 83))
def test_with_transactions_a_kill_repeats_no_letter(number: int) -> None:
    check(number, in_transactions=True)


@pytest.mark.parametrize("concurrency", [pytest.param(1, marks=pytest.mark.slow), 50])
def test_ten_minutes_without_a_downstream_make_no_dead_letter(concurrency: int) -> None:
    world = VirtualWorld()
    count = 450 if LONG else 340  # one every two seconds: the downstream is back after 330
    calls: list[float] = []
    done: set[int] = set()
    said: list[str] = []

    async def conduct() -> None:
        async with Broker(
            group_min_session_timeout_ms=100, group_consumer_session_timeout_ms=6000
        ) as broker:
            kafka = KafkaHandle("embedded", broker.bootstrap_servers)
            topic, dead = [await kafka.create_topic() for _ in range(2)]

            async def handle(record: ConsumerRecord[bytes | None, bytes | None]) -> None:
                now = world.now() - began_at
                calls.append(now)
                if 60 <= now < 660:
                    raise ConnectionError("the database is down")
                done.add(record.offset)

            consumer = AIOKafkaConsumer(
                topic,
                bootstrap_servers=kafka.bootstrap_servers,
                group_id="g",
                auto_offset_reset="earliest",
                max_poll_interval_ms=20_000,
            )
            async with consumer:
                began_at = world.now()
                events = consumer.events()
                running = asyncio.ensure_future(
                    consumer.run(
                        handle,
                        concurrency=concurrency,
                        retry=Retry(attempts=3),
                        dead_letter=DeadLetters(dead),
                    )
                )
                for number in range(count):
                    await kafka.produce(topic, 0, [(b"%d" % (number % 7), b"")])
                    await asyncio.sleep(2.0)
                    if number == 300:
                        said.extend(consumer.health().reasons)
                await until(lambda: len(done) == count)
                await consumer.stop()
                await running
                names = [event.name async for event in events]
                assert "revoked" not in names
                assert names.count("circuit_opened") == names.count("circuit_closed") == 1
            assert not broker.records(dead)

    world.run(conduct)
    assert any("the database is down" in each for each in said)
    tried = [at for at in calls if 60 <= at < 660]
    assert 20 <= len(tried) <= 60  # with pauses that grow to half a minute
