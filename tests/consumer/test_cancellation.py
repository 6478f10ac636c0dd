"""Whatever is cancelled, at any await: no record is lost or comes twice, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from typing import Any

import pyarrow as pa
import pytest

from aiokafka_lite import _compat
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.structs import OffsetAndTimestamp, TopicPartition
from tests.support import inside
from tests.support.cluster import KafkaHandle, unique
from tests.support.interruptions import How, Interrupted, Stepped, interrupted
from tests.support.iterations import ITERATIONS
from tests.support.leftovers import nothing_left
from tests.support.protocols import in_both_protocols
from tests.support.reading import reading
from tests.support.rounds import LONG
from tests.support.rows import rows

PATIENCE_S = 30.0
COUNT = 60
BATCH = 3

Place = tuple[int, int]
Get = Callable[[AIOKafkaConsumer], Awaitable[object]]


def places(found: object) -> list[Place]:
    """Return partition and offset of what a get brought, in its order."""
    if isinstance(found, dict):
        return [place for batch in found.values() for record in batch for place in places(record)]
    if isinstance(found, pa.RecordBatch):
        columns = found.column("partition").to_pylist(), found.column("offset").to_pylist()
        return list(zip(*columns, strict=True))
    return [(found.partition, found.offset)]  # type: ignore[attr-defined]


GETS: dict[str, Get] = {
    "poll": lambda c: c.poll(),
    "poll with limits": lambda c: c.poll(timeout_ms=20, max_records=2),
    "getone": lambda c: c.getone(),
    "getmany": lambda c: c.getmany(timeout_ms=20),
    "async for": lambda c: c.__anext__(),
    "poll_arrow": lambda c: c.poll_arrow(),
}


async def produce(kafka: KafkaHandle, topic: str) -> None:
    """Write COUNT records to each of two partitions, a few at a time."""
    for first in range(0, COUNT, BATCH):
        for partition in range(2):
            await kafka.produce(topic, partition, rows(first, BATCH))


def assert_each_once(seen: Iterable[Place], count: int = COUNT) -> None:
    """All records have come, each once, in the order of their partition."""
    by_partition: dict[int, list[int]] = {0: [], 1: []}
    for partition, offset in seen:
        by_partition[partition].append(offset)
    assert by_partition == {0: list(range(count)), 1: list(range(count))}


def assert_idle(consumer: AIOKafkaConsumer) -> None:
    """No get is in progress: time counts towards max_poll_interval_ms again."""
    assert inside.is_idle(consumer)


def thinned(names: Iterable[str]) -> list[Any]:
    """Every name with every way; in the short form each name once, and each way in turn."""
    ways = list(How)
    return [
        pytest.param(name, how, marks=() if ways[turn % len(ways)] is how else pytest.mark.slow)
        for turn, name in enumerate(names)
        for how in ways
    ]


# --- Gets ----------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "how"), thinned(GETS))
async def test_a_get_cancelled_at_any_await_loses_no_record(
    kafka: KafkaHandle, name: str, how: How
) -> None:
    topic, group = await kafka.create_topic(partitions=2), unique("group")
    seen: list[Place] = []
    cut_off = 0
    async with nothing_left():
        producing = asyncio.ensure_future(produce(kafka, topic))
        async with reading(
            kafka, topic, group_id=group, auto_commit_interval_ms=20, fetch_max_wait_ms=20
        ) as consumer:
            steps = itertools.cycle([1, 2, 1, 3, 1, 5])
            async with _compat.timeout(PATIENCE_S):
                while len(seen) < 2 * COUNT:
                    step = next(steps)
                    getting = Stepped(GETS[name](consumer), lambda k, at=step: k == at, how)  # type: ignore[misc]
                    try:
                        seen += places(await getting.run())
                    except Interrupted:
                        cut_off += 1
                    assert_idle(consumer)
            await producing
            assert await consumer.getmany(timeout_ms=30) == {}
        assert_each_once(seen)
        assert cut_off  # how often depends on how much each get finds there
        async with reading(kafka, group_id=group) as successor:
            ends = [await successor.committed(TopicPartition(topic, p)) for p in range(2)]
        assert ends == [COUNT, COUNT]


@pytest.mark.few_rows(5)
@pytest.mark.real_if_long
@pytest.mark.parametrize("how", [How.AT_ONCE, How.ON_WAKING])
@pytest.mark.parametrize("path", ITERATIONS)
@pytest.mark.parametrize("group", ["no group", "auto-commit", "commits by hand"])
async def test_a_loop_cancelled_at_any_await_is_gone_on_with(
    kafka: KafkaHandle, path: str, how: How, group: str
) -> None:
    """The body awaits as well: it is cancelled there and in between."""
    topic = await kafka.create_topic(partitions=2)
    seen: list[Place] = []

    async def read(consumer: AIOKafkaConsumer) -> None:
        async for record in consumer:
            seen.append((record.partition, record.offset))
            if len(seen) == 2 * COUNT:
                break
            await asyncio.sleep(0)
            if group == "commits by hand" and record.offset % 10 == 0:
                await consumer.commit()

    async with nothing_left():
        producing = asyncio.ensure_future(produce(kafka, topic))
        async with reading(
            kafka,
            topic,
            consumer_class=ITERATIONS[path].consumer,
            group_id=None if group == "no group" else unique("group"),
            enable_auto_commit=group == "auto-commit",
            auto_commit_interval_ms=10,
            fetch_max_wait_ms=20,
        ) as consumer:
            steps = itertools.cycle(range(1, 12))
            async with _compat.timeout(PATIENCE_S):
                while len(seen) < 2 * COUNT:
                    await interrupted(read(consumer), next(steps), how)
                    assert_idle(consumer)
            await producing
    assert_each_once(seen)


@pytest.mark.real_if_long
async def test_batches_cancelled_at_any_await_give_each_row_once(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic(partitions=2)
    seen: list[Place] = []
    async with nothing_left():
        producing = asyncio.ensure_future(produce(kafka, topic))
        async with reading(kafka, topic, fetch_max_wait_ms=20) as consumer:
            batches = consumer.batches(max_rows=4)
            ways = itertools.cycle(itertools.product((1, 2, 3), (How.AT_ONCE, How.ON_WAKING)))
            async with _compat.timeout(PATIENCE_S):
                while len(seen) < 2 * COUNT:
                    step, how = next(ways)
                    next_batch = batches.__anext__()
                    getting = Stepped(next_batch, lambda k, at=step: k == at, how)  # type: ignore[misc]
                    try:
                        seen += places(await getting.run())
                    except Interrupted:
                        assert_idle(consumer)
            await producing
    assert_each_once(seen)


@pytest.mark.real_if_long
@pytest.mark.parametrize("seed", range(5 if LONG else 1))
async def test_a_storm_of_timeouts_loses_nothing(kafka: KafkaHandle, seed: int) -> None:
    topic = await kafka.create_topic(partitions=2)
    rng = random.Random(seed)
    timeouts, enough = 0, 1_000 if LONG else 200
    seen: list[Place] = []
    written = 0
    is_over = False

    async def feed() -> None:
        nonlocal written
        while not is_over:
            for partition in range(2):
                await kafka.produce(topic, partition, rows(written, BATCH))
            written += BATCH
            await asyncio.sleep(0.002)

    async with (
        nothing_left(),
        reading(kafka, topic, group_id=unique("group"), auto_commit_interval_ms=10) as consumer,
    ):
        feeding = asyncio.ensure_future(feed())
        gets = [GETS[name] for name in ("poll", "getone", "getmany", "async for", "poll_arrow")]
        async with _compat.timeout(4 * PATIENCE_S):
            while timeouts < enough:
                get = rng.choice(gets)
                try:
                    if rng.random() < 0.5:
                        async with _compat.timeout(rng.random() * 0.003):
                            found = await get(consumer)
                            seen += places(found)
                    else:
                        found = await asyncio.wait_for(get(consumer), rng.random() * 0.003)
                        seen += places(found)
                except asyncio.TimeoutError:
                    timeouts += 1
            is_over = True
            await feeding
            while len(seen) < 2 * written:
                seen += places(await consumer.getmany(timeout_ms=1_000))
        assert_idle(consumer)
    assert_each_once(seen, written)


# --- Calls that ask brokers ------------------------------------------------------------------
Call = Callable[[AIOKafkaConsumer, TopicPartition], Coroutine[Any, Any, object]]
CALLS: dict[str, tuple[Call, object]] = {
    "committed": (lambda c, tp: c.committed(tp), 2),
    "seek_to_committed": (lambda c, tp: c.seek_to_committed(tp), {0: 2}),
    "seek_to_end": (lambda c, tp: c.seek_to_end(tp), True),
    "seek_to_beginning": (lambda c, tp: c.seek_to_beginning(), True),
    "position": (lambda c, tp: c.position(tp), 2),
    "end_offsets": (lambda c, tp: c.end_offsets([tp]), {0: 9}),
    "beginning_offsets": (lambda c, tp: c.beginning_offsets([tp]), {0: 0}),
    "offsets_for_times": (
        lambda c, tp: c.offsets_for_times({tp: 5}),
        {0: OffsetAndTimestamp(0, 1_000)},
    ),
    "topics": (lambda c, tp: c.topics(), None),
}


@pytest.mark.real_if_long
@pytest.mark.parametrize(("name", "how"), thinned(CALLS))
async def test_a_call_cancelled_at_any_await_changes_nothing_else(
    kafka: KafkaHandle, name: str, how: How
) -> None:
    topic = await kafka.create_topic()
    tp = TopicPartition(topic, 0)
    await kafka.produce(topic, 0, rows(0, 9), timestamp_ms=1_000)
    call, expected = CALLS[name]
    async with (
        nothing_left(),
        reading(kafka, group_id=unique("group"), enable_auto_commit=False) as consumer,
    ):
        consumer.assign([tp])
        await consumer.commit({tp: 2})
        step = 1
        while True:
            consumer.seek(tp, 5)
            if name == "position":  # which waits while it is looked up
                inside.request_reset(consumer, tp)
            if not await interrupted(call(consumer, tp), step, how):
                break
            step += 1
        assert step > 1
        if name == "position":
            consumer.seek(tp, 2)
        found = await call(consumer, tp)
        if isinstance(found, dict):
            found = {partition.partition: value for partition, value in found.items()}
        assert found == expected or (expected is None and topic in found)  # type: ignore[operator]
        consumer.seek(tp, 4)
        assert (await consumer.getone()).offset == 4
        assert await consumer.committed(tp) == 2


@pytest.mark.parametrize("how", How)
async def test_a_commit_cancelled_at_any_await_was_done_or_not(
    kafka: KafkaHandle, how: How
) -> None:
    topic = await kafka.create_topic(partitions=2)
    group = unique("group")
    tp = TopicPartition(topic, 0)
    async with (
        nothing_left(),
        reading(kafka, topic, group_id=group, enable_auto_commit=False) as consumer,
    ):
        generation = inside.generation(consumer)
        before, step = 0, 1
        await consumer.commit({tp: before})
        while True:
            was_cut_off = await interrupted(consumer.commit({tp: step}), step, how)
            now = await consumer.committed(tp)
            assert now in (before, step)
            if not was_cut_off:
                assert now == step
                break
            await consumer.commit({tp: step})
            assert await consumer.committed(tp) == step
            before, step = step, step + 1
        assert step > 1
        # Nobody else has noticed.
        assert inside.generation(consumer) == generation


# --- While a rebalance is pending -------------------------------------------------------------
@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker with COUNT records in each partition of "t"."""
    async with Broker() as broker:
        broker.create_topic("t", 2)
        for number in range(COUNT):
            for partition in range(2):
                broker.produce("t", b"%d" % number, partition=partition)
        yield broker


PENDING: dict[str, Get] = {
    **GETS,
    "commit": lambda c: c.commit(),
    "committed": lambda c: c.committed(TopicPartition("t", 0)),
    "position": lambda c: c.position(TopicPartition("t", 0)),
}


@pytest.mark.few_rows(9)
@pytest.mark.every_loop
@pytest.mark.parametrize(("name", "how"), thinned(PENDING))
async def test_cancelled_while_a_rebalance_is_pending_nothing_is_lost(
    broker: Broker, name: str, how: How
) -> None:
    seen: list[Place] = []
    async with nothing_left():
        handle = KafkaHandle("embedded", broker.bootstrap_servers)
        async with reading(
            handle,
            "t",
            group_id="g",
            group_protocol="classic",  # whose gets wait for the end of a rebalance
            heartbeat_interval_ms=20,
            enable_auto_commit=False,
        ) as consumer:
            for _ in range(7):
                seen += places(await consumer.getone())
            await consumer.commit()
            with broker.on("JoinGroup").hold() as rule:
                consumer.subscribe(["t", "new"])
                await rule.reached()
                for step in range(1, 4):
                    # What waits for the end of the rebalance has no second suspension.
                    with contextlib.suppress(asyncio.TimeoutError):
                        async with _compat.timeout(0.02):
                            await interrupted(PENDING[name](consumer), step, how)
                    assert_idle(consumer)
            async with _compat.timeout(PATIENCE_S):
                while len(seen) < 2 * COUNT:
                    seen += places(await consumer.getmany(timeout_ms=1_000))
                await consumer.commit()
        assert_each_once(seen)
        assert {broker.committed("g")[TopicPartition("t", p)] for p in range(2)} == {COUNT}


@pytest.mark.every_loop
@in_both_protocols
async def test_a_get_cancelled_in_the_middle_of_any_rebalance_loses_nothing(
    broker: Broker, protocol: str
) -> None:
    handle = KafkaHandle("embedded", broker.bootstrap_servers)
    settings = {"group_id": "g", "group_protocol": protocol, "heartbeat_interval_ms": 20}
    seen: list[Place] = []
    async with (
        nothing_left(),
        reading(handle, "t", **settings) as consumer,  # type: ignore[arg-type]
        _compat.timeout(PATIENCE_S),
    ):
        for turns in range(1, 40, 1 if LONG else 4):
            consumer.subscribe(["t", f"new{turns % 2}"])
            getting = asyncio.ensure_future(consumer.getmany(timeout_ms=5_000, max_records=2))
            for _ in range(turns):
                await asyncio.sleep(0)
            getting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                seen += places(await getting)
            assert_idle(consumer)
        while len(set(seen)) < 2 * COUNT:
            seen += places(await consumer.getmany(timeout_ms=1_000))
    # What was handed out shortly before a rebalance comes again, and nothing is left out.
    for partition in range(2):
        offsets = [offset for number, offset in seen if number == partition]
        assert all(after <= before + 1 for before, after in itertools.pairwise(offsets))
        assert offsets[0] == 0


# --- Memory ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "how_many",
    [10_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
)
async def test_gets_that_time_out_leave_memory_as_it_was(how_many: int) -> None:
    loop = asyncio.get_running_loop()
    async with Broker(request_log_size=0) as broker:
        broker.create_topic("t")
        handle = KafkaHandle("embedded", broker.bootstrap_servers)
        async with reading(handle, "t", fetch_max_wait_ms=100) as consumer:

            async def time_out(times: int) -> None:
                for turn in range(times):
                    # Every tenth waits, for as short as the loop's timers are.
                    timeout_ms = 0 if turn % 10 else 0.01
                    assert await consumer.getmany(timeout_ms=timeout_ms) == {}

            await time_out(2_000)
            before = sys.getallocatedblocks()
            await time_out(how_many)
            # One timer serves all gets, and a get takes its waiter with it.
            assert sys.getallocatedblocks() - before < 1_000
            assert_idle(consumer)
            assert len(getattr(loop, "_scheduled", [])) < 100
