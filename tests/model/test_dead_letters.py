"""Dead letters in virtual time: a process that is killed, and a downstream that is away."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite.broker import Broker
from aiokafka_lite.processing import DeadLetters, Retry
from aiokafka_lite.structs import ConsumerRecord
from tests.model.world import Actor, VirtualWorld
from tests.support.cluster import KafkaHandle
from tests.support.waiting import until

# Turns of the member's loop after the handler has failed: requests go out and are answered.
MOST_TURNS: Final = 700
# Then time passes, until the commit is there.
MOST_S: Final = 0.3
KILLS: Final = 1_000
RECORDS: Final = 3


class Outcome:
    """What became of one kill."""

    def __init__(self) -> None:
        self.letters: list[ConsumerRecord[bytes | None, bytes | None]] = []
        self.handled = 0
        self.was_killed = False


def kill_at(moment: int) -> Outcome:
    """Kill a member at one of `KILLS` moments after its handler failed, and let another go on."""
    world = VirtualWorld()
    outcome = Outcome()
    actors: list[Actor] = []
    done = [asyncio.Event(), asyncio.Event()]

    def crash(turns_left: int) -> None:
        loop = actors[0].loop
        if turns_left:
            loop.call_soon(crash, turns_left - 1)
        else:
            outcome.was_killed = True
            loop.crash()

    def schedule() -> None:
        if moment < MOST_TURNS:
            crash(moment)
        else:
            share = (moment - MOST_TURNS) / (KILLS - MOST_TURNS)
            actors[0].loop.call_later(share * MOST_S, crash, 0)

    async def live(kafka: KafkaHandle, topic: str, dead: str, number: int) -> None:
        async def handle(record: ConsumerRecord[bytes | None, bytes | None]) -> None:
            outcome.handled += 1
            if record.offset == 1:
                if number == 0:
                    schedule()
                raise ValueError("bad")

        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=kafka.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
            session_timeout_ms=6000,
            fetch_max_wait_ms=50,
        )
        async with consumer:
            running = asyncio.ensure_future(
                consumer.run(
                    handle,
                    concurrency=1,
                    retry=Retry(dead=ValueError),
                    dead_letter=DeadLetters(dead),
                )
            )
            tps = consumer.assignment()
            while not tps or await consumer.committed(*tps) != RECORDS:
                tps = consumer.assignment()
                await asyncio.sleep(0.01)
            done[number].set()
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
            outcome.letters += broker.records(dead)

    world.run(conduct)
    return outcome


def check(moment: int) -> None:
    outcome = kill_at(moment)
    values = [letter.value for letter in outcome.letters]
    assert set(values) == {b"1"}, (moment, values)
    assert len(values) <= 1 + outcome.was_killed, (moment, values)


@pytest.mark.parametrize("moment", range(7, KILLS, 40))
def test_a_kill_loses_no_record_and_repeats_one_letter_at_most(moment: int) -> None:
    check(moment)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_kill_at_any_of_a_thousand_moments() -> None:
    for moment in range(KILLS):
        check(moment)


@pytest.mark.parametrize("concurrency", [1, 50])
def test_ten_minutes_without_a_downstream_make_no_dead_letter(concurrency: int) -> None:
    world = VirtualWorld()
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
                for number in range(900):
                    await kafka.produce(topic, 0, [(b"%d" % (number % 7), b"")])
                    await asyncio.sleep(1.0)
                    if number == 600:
                        said.extend(consumer.health().reasons)
                await until(lambda: len(done) == 900)
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
