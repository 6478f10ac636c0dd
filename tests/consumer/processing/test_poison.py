"""A record that always fails, and a database that is down, told apart in virtual time."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

from aiokafka_lite._compat import override, timeout
from aiokafka_lite.consumer.buffer.deserialising import AnyDeserializer
from aiokafka_lite.consumer.processing.handling import DeadRecord
from aiokafka_lite.consumer.processing.lanes import Order
from aiokafka_lite.deserializers import Deserializer, Serialized
from aiokafka_lite.errors import DeserializationError
from aiokafka_lite.events import CircuitClosed, CircuitOpened, RecordDead
from aiokafka_lite.processing import CircuitBreaker, Retry
from aiokafka_lite.structs import TopicPartition
from tests.consumer.processing.acking import Record
from tests.consumer.processing.shaping import BareRun, now
from tests.support.buffers import A, B, batch
from tests.support.events import events_so_far
from tests.support.waiting import until

pytestmark = pytest.mark.virtual_time

GIVE_UP_S = CircuitBreaker().give_up_ms / 1000
# It varies by a fifth.
LONGEST_PAUSE_S = 1.2 * CircuitBreaker().max_pause_ms / 1000


class Case(BareRun):
    """A run over partitions of some records each, with dead letters that only count.

    Args:
        handler: What handles a record.
        counts: How many records each partition has.
        is_keeping: Whether there are dead letters at all.
        dead: The errors of bad records.
        stop: The errors that end the run.
        key_deserializer: Of the records' keys, which are their offsets.
    """

    def __init__(
        self,
        handler: Callable[[Record], Awaitable[object]],
        counts: dict[TopicPartition, int],
        *,
        order: Order = "partition",
        attempts: int | None = 3,
        batch_size: int | None = None,
        is_keeping: bool = True,
        dead: tuple[type[Exception], ...] = (),
        stop: tuple[type[Exception], ...] = (),
        key_deserializer: AnyDeserializer | None = None,
        **settings: Any,
    ) -> None:
        self.count = sum(counts.values())
        self.calls: list[tuple[float, int]] = []  # when, and of how many records
        self.done: list[tuple[int, int]] = []
        self.dead: list[DeadRecord] = []
        self.dead_at: list[float] = []
        self.refusals = 0  # of dead letters
        self._moved = asyncio.Event()
        self._handler = handler
        super().__init__(
            *counts,
            key_deserializer=key_deserializer,
            order=order,
            batch_size=batch_size,
            retry=Retry(attempts=attempts, first_delay_ms=100, dead=dead, stop=stop),
            dead_letter=self._bury if is_keeping else None,
            breaker=CircuitBreaker(**settings),
        )
        for number, (tp, count) in enumerate(counts.items()):
            self.buffers.put({tp: batch(0, count)}, node_id=number)

    @property
    def is_over(self) -> bool:
        return len(self.done) + len(self.dead) == self.count

    async def _bury(self, record: DeadRecord) -> None:
        if self.refusals:
            self.refusals -= 1
            raise ConnectionError("the topic is away")
        self.dead.append(record)
        self.dead_at.append(now())
        self._moved.set()

    @override
    async def handle(self, given: Record | list[Record], _: object = None) -> None:
        records = given if isinstance(given, list) else [given]
        self.calls.append((now(), len(records)))
        for record in records:
            await self._handler(record)
        self.done += [(record.partition, record.offset) for record in records]
        self._moved.set()

    async def patiently(self, limit_s: float) -> None:
        """Wait until all records are done or dead, so long at most."""
        self._moved.clear()
        with suppress(asyncio.TimeoutError):
            async with timeout(limit_s):
                while not self.is_over:
                    await self._moved.wait()
                    self._moved.clear()


def bad(*places: tuple[int, int]) -> Callable[[Record], Awaitable[None]]:
    """A handler that always fails for some records."""

    async def handle(record: Record) -> None:
        if (record.partition, record.offset) in places:
            raise ConnectionError("it looks as if something were down")

    return handle


@pytest.mark.parametrize("order", ["partition", "key"])
async def test_a_poison_pill_that_is_alone_is_dead_after_some_probes(order: Order) -> None:
    # With order="key" it is the only record of the topic.
    count = 100 if order == "partition" else 1
    case = Case(bad((0, 0)), {A: count}, order=order)
    async with case.running():
        await case.patiently(60)
    assert [each.record.offset for each in case.dead] == [0]
    assert case.dead[0].attempts == 3 + CircuitBreaker().probes
    assert len(case.done) == count - 1
    assert case.dead_at[0] < 20


@pytest.mark.few_rows(11)
@pytest.mark.parametrize("count", [1, 2, 6, 60])
@pytest.mark.parametrize("attempts", [1, 5])
@pytest.mark.parametrize(
    ("order", "batch_size"), [("key", None), ("partition", None), (None, None), ("key", 10)]
)
async def test_bad_records_without_others_are_all_dead_within_the_limit(
    order: Order, batch_size: int | None, attempts: int, count: int
) -> None:
    bad_ones = bad(*((0, offset) for offset in range(count)))
    case = Case(bad_ones, {A: count}, order=order, attempts=attempts, batch_size=batch_size)
    async with case.running():
        await case.patiently(7200)
    assert sorted(each.record.offset for each in case.dead) == list(range(count))
    assert max(case.dead_at) < (20 if count == 1 else GIVE_UP_S + (count + 3) * LONGEST_PAUSE_S)


# One is shorter than any pause.
@pytest.mark.parametrize("give_up_s", [0.5, 20])
async def test_a_limit_of_its_own_ends_the_pause(give_up_s: float) -> None:
    places = ((0, offset) for offset in range(6))
    case = Case(bad(*places), {A: 6}, order="key", give_up_ms=give_up_s * 1000)
    async with case.running():
        await case.patiently(7200)
    assert len(case.dead) == 6
    assert give_up_s < min(case.dead_at) <= max(case.dead_at) < give_up_s + 2 * 16 * 1.2


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("order", ["key", None])
async def test_bad_records_are_dead_within_seconds_if_good_ones_came_between(
    order: Order, attempts: int
) -> None:
    places = [(0, offset) for offset in range(9, 60, 10)]  # the last record is one of them
    case = Case(bad(*places), {A: 60}, order=order, attempts=attempts)
    async with case.running():
        await case.patiently(7200)
    assert sorted((0, each.record.offset) for each in case.dead) == places
    assert case.dead_at[-2] < 5
    assert case.dead_at[-1] < 20


async def test_poison_pills_at_the_head_of_every_partition_all_end() -> None:
    case = Case(bad((0, 0), (1, 0)), {A: 50, B: 50})
    async with case.running():
        await case.patiently(7200)
    assert sorted((each.record.partition, each.record.offset) for each in case.dead) == [
        (0, 0),
        (1, 0),
    ]
    assert GIVE_UP_S < min(case.dead_at) <= max(case.dead_at) < GIVE_UP_S + 2 * LONGEST_PAUSE_S
    assert len(case.done) == 98


async def test_the_limit_counts_no_time_without_records() -> None:
    is_down = True

    async def handle(record: Record) -> None:
        if is_down:
            raise ConnectionError("the database is down")

    case = Case(handle, {A: 1}, order="key")
    async with case.running():
        await case.patiently(60)
        await asyncio.sleep(3 * GIVE_UP_S)
        case.buffers.put({A: batch(1, 5)}, node_id=0)
        case.count += 5
        await asyncio.sleep(600)
        is_down = False
        await case.patiently(60)
    assert [each.record.offset for each in case.dead] == [0]
    assert len(case.done) == 5


async def test_records_that_have_succeeded_since_give_a_poison_pill_no_more_tries() -> None:
    failed: set[int] = set()

    async def handle(record: Record) -> None:
        if record.offset == 5 or record.offset not in failed:
            failed.add(record.offset)
            raise ConnectionError("it looks as if something were down")

    case = Case(handle, {A: 6})
    async with case.running():
        await case.patiently(3600)
    assert len(case.done) == 5
    assert [each.attempts for each in case.dead] == [3 + CircuitBreaker().probes]


async def test_without_dead_letters_a_poison_pill_ends_run_by_its_error() -> None:
    case = Case(bad((0, 0)), {A: 5}, is_keeping=False)
    async with case.running(fails=True) as task:
        with pytest.raises(ConnectionError, match="as if something"):
            await task


@pytest.mark.parametrize("what_fails", ["everything for some seconds", "one record"])
async def test_a_pause_of_handling_and_its_end_are_events(what_fails: str) -> None:
    is_down = what_fails != "one record"

    async def handle(record: Record) -> None:
        if now() < 110 if is_down else record.offset == 0:
            raise ConnectionError("the database is down")

    await asyncio.sleep(100)
    case = Case(handle, {A: 10})
    with case.buffers.state.events.subscribe() as events:
        async with case.running():
            await case.patiently(600)
        opened, closed, *dead = [
            event
            for event in events_so_far(events)
            if isinstance(event, CircuitOpened | CircuitClosed | RecordDead)
        ]
    assert isinstance(opened, CircuitOpened)
    assert "the database is down" in opened.reason
    assert isinstance(closed, CircuitClosed)
    assert 5 < closed.open_s < 30
    assert [type(event) for event in dead] == ([] if is_down else [RecordDead])
    assert len(case.done) == (10 if is_down else 9)


def down_until(until: float) -> Callable[[Record], Awaitable[None]]:
    """A handler that fails for every record before a time."""

    async def handle(record: Record) -> None:
        if now() < until:
            raise ConnectionError("the database is down")

    return handle


@pytest.mark.parametrize("attempts", [1, 5])
@pytest.mark.parametrize(
    ("order", "batch_size"), [("key", None), ("partition", None), (None, None), ("key", 10)]
)
async def test_a_database_that_is_down_for_ten_minutes_with_traffic_kills_nothing(
    order: Order, batch_size: int | None, attempts: int
) -> None:
    case = Case(
        down_until(600), {A: 500, B: 500}, order=order, attempts=attempts, batch_size=batch_size
    )
    async with case.running():
        await case.patiently(700)
    assert not case.dead
    assert len(case.done) == 1000


async def test_a_database_that_is_down_for_hours_kills_nothing_while_new_records_come() -> None:
    case = Case(down_until(4 * 3600), {A: 1000}, order="key", attempts=1)
    async with case.running():
        await asyncio.sleep(4 * 3600)
        await case.patiently(100)
    assert not case.dead
    assert len(case.done) == 1000


async def test_where_one_record_can_be_tried_ten_minutes_of_no_database_cost_one_letter() -> None:
    case = Case(down_until(600), {A: 100}, order="partition")
    async with case.running():
        await case.patiently(1500)
    assert [each.record.offset for each in case.dead] == [0]
    assert len(case.done) == 99


async def test_after_the_limit_one_record_dies_in_each_pause_if_one_is_tried() -> None:
    case = Case(down_until(3600), {A: 5000}, order="partition")
    async with case.running():
        await case.patiently(3700)
    assert 10 < len(case.dead) < (3600 - GIVE_UP_S) / (0.8 * 30)
    assert case.is_over


async def test_without_dead_letters_records_that_all_fail_end_run_within_the_limit() -> None:
    places = ((0, offset) for offset in range(60))
    case = Case(bad(*places), {A: 60}, order="key", attempts=5, is_keeping=False)
    async with case.running(fails=True) as task:
        with pytest.raises(ConnectionError, match="as if something"):
            await task
        assert now() < GIVE_UP_S + 60 * LONGEST_PAUSE_S


async def test_a_pause_that_ended_makes_a_later_one_no_longer() -> None:
    async def handle(record: Record) -> None:
        if now() < 300 or record.offset == 999:
            raise ConnectionError("the database is down")

    case = Case(handle, {A: 50}, order="key", attempts=1)
    async with case.running():
        await case.patiently(400)
        began_at = now()
        case.buffers.put({A: batch(999, 1)}, node_id=0)
        case.count += 1
        await case.patiently(60)
    assert [each.attempts for each in case.dead] == [1 + CircuitBreaker().probes]
    assert case.dead_at[0] - began_at < 20


async def test_while_a_database_gets_worse_and_is_down_one_record_is_tried_in_a_pause() -> None:
    async def handle(record: Record) -> None:
        await asyncio.sleep(0.01)
        if now() < 300 and (now() > 0.015 or record.offset % 3):
            raise ConnectionError("the database is down")

    case = Case(handle, {A: 200}, order=None, attempts=5)
    async with case.running():
        await case.patiently(400)
    assert not case.dead
    assert len(case.done) == 200
    assert len([at for at, _ in case.calls if 1 < at < 299]) < 20


async def test_while_handling_pauses_lists_have_one_record() -> None:
    async def handle(record: Record) -> None:
        if 1 < now() < 300:
            raise ConnectionError("the database is down")

    case = Case(handle, {A: 1, B: 1}, batch_size=10)
    async with case.running():
        for tp in (A, B):
            await asyncio.sleep(5)
            case.buffers.put({tp: batch(1, 30)}, node_id=tp.partition)
            case.count += 30
        await case.patiently(400)
    assert len(case.done) == 62
    assert {size for at, size in case.calls if 6 < at < 299} == {1}
    assert max(size for at, size in case.calls if at > 300) > 1


async def test_a_dead_letter_is_written_while_handling_pauses() -> None:
    async def handle(record: Record) -> None:
        if record.offset == 0 or (record.offset > 1 and now() < 300):
            raise ConnectionError("the database is down")

    case = Case(handle, {A: 2}, order="key", attempts=1)
    case.refusals = 3
    async with case.running():
        await until(lambda: case.refusals == 2)
        case.buffers.put({A: batch(2, 30)}, node_id=0)
        case.count += 30
        await case.patiently(400)
    assert [each.record.offset for each in case.dead] == [0]
    assert case.dead_at[0] < 5


async def test_a_call_from_before_the_pause_that_fails_after_the_limit_ends_it_not() -> None:
    tries: list[int] = []

    async def handle(record: Record) -> None:
        tries.append(record.offset)
        if record.offset == 0 and tries.count(0) == 2:
            await asyncio.sleep(GIVE_UP_S + 30)
        elif record.offset > 0:
            await asyncio.sleep(0.5)
        if now() < 2 * GIVE_UP_S:
            raise ConnectionError("the database is down")

    case = Case(handle, {A: 15}, order="key", attempts=2)
    async with case.running():
        await until(lambda: tries.count(0) == 2)
        case.buffers.put({A: batch(15, 185)}, node_id=0)
        case.count += 185
        await asyncio.sleep(2 * GIVE_UP_S)
        assert not case.dead
        await case.patiently(100)
    assert len(case.done) == 200


async def test_without_an_end_of_attempts_nothing_is_ever_dead() -> None:
    case = Case(bad((0, 0)), {A: 3}, attempts=None)
    async with case.running():
        await case.patiently(3600)
    assert not case.dead
    assert not case.done


async def test_a_third_of_bad_records_holds_up_no_others() -> None:
    places = {(0, offset) for offset in range(0, 600, 3)}

    async def handle(record: Record) -> None:
        await asyncio.sleep(0.1)
        await bad(*places)(record)

    case = Case(handle, {A: 700}, order=None)
    async with case.running():
        await case.patiently(120)
    assert {(each.record.partition, each.record.offset) for each in case.dead} == places
    assert len(case.done) == 500


async def test_a_record_that_has_not_failed_is_tried_before_those_that_have() -> None:
    case = Case(bad(*((0, offset) for offset in range(15))), {A: 15}, order=None, min_calls=10)
    async with case.running():
        await asyncio.sleep(60)
        case.buffers.put({A: batch(15, 5)}, node_id=0)
        # The longest pause before a record is tried, and a fifth of it.
        await asyncio.sleep(LONGEST_PAUSE_S + 0.1)
    assert sorted(case.done) == [(0, offset) for offset in range(15, 20)]


async def test_pauses_after_refused_dead_letters_grow_until_one_is_written() -> None:
    case = Case(bad((0, 0), (0, 50)), {A: 50}, order=None)
    case.refusals = 6
    async with case.running():
        await until(lambda: len(case.dead) == 1)
        assert 5 < case.dead_at[0] < 8  # 0.1 + 0.2 + ... + 3.2 s, and a fifth less or more
        case.refusals = 1
        case.buffers.put({A: batch(50, 50)}, node_id=0)
        await until(lambda: not case.refusals)
        refused_at = now()
        await until(lambda: len(case.dead) == 2)
    assert case.dead_at[1] - refused_at < 0.13


# --- What is counted, and who is woken ----------------------------------------------------------
@pytest.mark.parametrize("others", ["succeed", "are bad"])
async def test_calls_that_succeed_and_bad_records_count_against_failures(others: str) -> None:
    async def handle(record: Record) -> None:
        if 1 <= record.offset <= 5:
            if others == "are bad":
                raise ValueError("a bad record")
        elif now() < 10:
            raise ConnectionError("the database is down")

    case = Case(handle, {A: 10}, order="key", dead=(ValueError,), min_calls=10)
    with case.buffers.state.events.subscribe() as events:
        async with case.running():
            await case.patiently(60)
        found = events_so_far(events)
    reasons = [each.reason for each in found if isinstance(each, CircuitOpened)]
    assert len(reasons) == 1
    assert reasons[0].startswith("5 of 10 handler calls failed")
    totals = case.buffers.state.works.totals
    assert totals["failed_total"] == len(case.calls) - len(case.done)
    assert totals["finished_total"] == len(case.done)
    assert totals["dead_total"] == len(case.dead) == (5 if others == "are bad" else 0)


async def test_a_probe_that_fails_by_its_record_ends_the_pause() -> None:
    async def handle(record: Record) -> None:
        raise ConnectionError("the database is down") if now() < 5 else ValueError("a bad record")

    case = Case(handle, {A: 30}, order="key", dead=(ValueError,), min_calls=10)
    with case.buffers.state.events.subscribe() as events:
        async with case.running():
            await case.patiently(60)
        kinds = [type(each) for each in events_so_far(events)]
    assert kinds.count(CircuitOpened) == kinds.count(CircuitClosed) == 1
    assert len(case.dead) == 30
    assert 5 <= max(case.dead_at) < 20


@pytest.mark.parametrize("what_fails", ["everything for some seconds", "every record"])
async def test_when_a_pause_ends_as_many_handlers_begin_as_there_may_be(what_fails: str) -> None:
    at_once = 0
    most: dict[float, int] = {}

    async def handle(record: Record) -> None:
        nonlocal at_once
        at_once += 1
        most[now()] = at_once
        is_down = now() < 10 or what_fails == "every record"
        await asyncio.sleep(1)
        at_once -= 1
        if is_down:
            raise ConnectionError("the database is down")

    case = Case(handle, {A: 60}, order="key", attempts=1, min_calls=10, give_up_ms=60_000)
    async with case.running():
        await case.patiently(7200)
    assert case.is_over
    ended_at = min(case.dead_at) if what_fails == "every record" else 10
    assert max(count for at, count in most.items() if at > ended_at) == 10


async def test_a_pause_is_reported_with_its_times_and_so_are_refused_letters() -> None:
    case = Case(down_until(103), {A: 10}, order="key", min_calls=10)
    await asyncio.sleep(100)
    async with case.running():
        await until(lambda: case.run.is_paused)
        began_at = now()
        explained = case.run.explain(case.buffers.partition(A), began_at)
        assert "is tried again in 0.1 s (attempt 1, ConnectionError" in explained
        assert case.run.counts()["waiting_for_retry"] == 10
        await asyncio.sleep(0.5)
        (trouble,) = case.run.troubles(now())
        found = re.search(r"for ([\d.]+) s, because.* tried in ([\d.]+) s\..* in (\d+) s", trouble)
        assert found is not None
        paused_s, probe_s, left_s = map(float, found.groups())
        assert paused_s == pytest.approx(now() - began_at, abs=0.1)
        assert 0.2 <= probe_s <= 0.8
        assert left_s == pytest.approx(GIVE_UP_S, abs=1)
        await case.patiently(60)
        assert not case.run.is_paused
        assert not list(case.run.troubles(now()))
    assert len(case.done) == 10


async def test_a_record_that_cannot_be_deserialised_is_dead_and_in_no_list() -> None:
    def key_of(key: bytes) -> int:
        if key == b"3":
            raise ValueError("no key")
        return int(key)

    case = Case(bad(), {A: 10}, batch_size=10, key_deserializer=key_of)
    case.refusals = 1
    async with case.running():
        await until(lambda: not case.refusals)
        cursor = case.buffers.partition(A)
        assert case.buffers.state.finished.processed_offsets()[A].offset == 3
        assert "waits for its dead letter" in case.run.explain(cursor, now())
        budget = case.buffers.budget
        assert budget.limit_bytes - budget.room_bytes == len(b"3xxx")
        assert "dead letters cannot be written" in "".join(case.run.troubles(now()))
        case.buffers.put({A: batch(4, 6)}, node_id=0)  # it is fetched anew behind the record
        await case.patiently(60)
        assert not list(case.run.troubles(now()))
    assert [each.record.offset for each in case.dead] == [3]
    assert case.dead[0].attempts == 0
    assert case.done == [(0, offset) for offset in range(10) if offset != 3]
    assert case.buffers.state.finished.processed_offsets()[A].offset == 10


# --- Handlers at the same time, and the end -----------------------------------------------------
async def test_as_many_handlers_begin_as_there_are_records_and_places() -> None:
    async def handle(record: Record) -> None:
        await asyncio.sleep(1)

    case = Case(handle, {A: 10}, order=None)
    async with case.running():
        await case.patiently(10)
        case.buffers.put({A: batch(10, 15)}, node_id=0)
        case.count += 15
        await case.patiently(10)
    begun_at = Counter(at for at, _ in case.calls)
    assert list(begun_at.values()) == [10, 10, 5]


async def test_a_list_that_fails_is_halved_until_the_bad_record_is_alone() -> None:
    case = Case(bad((0, 3)), {A: 10}, attempts=1, batch_size=10)
    async with case.running():
        await case.patiently(60)
    counts = [count for _, count in case.calls]
    assert counts[:5] == [10, 5, 3, 2, 1]
    # Handling then pauses, and the other records are tried alone.
    others = counts[5:]
    assert set(others) == {1, 5}
    assert case.buffers.state.works.totals["failed_total"] == 3 + counts.count(1) - 1
    assert case.buffers.state.works.totals["finished_total"] == 9
    assert [each.record.offset for each in case.dead] == [3]


async def test_halves_of_a_list_that_failed_are_tried_by_all_handlers() -> None:
    async def handle(record: Record) -> None:
        await asyncio.sleep(1)
        if len(case.calls) == 1:
            raise ConnectionError("once")

    case = Case(handle, {A: 10}, order=None, batch_size=10)
    async with case.running():
        await case.patiently(60)
    assert case.calls == [(0, 10)] + [(1, 5)] * 2


@pytest.mark.parametrize("order", ["partition", None])
async def test_a_list_that_fails_by_an_error_that_stops_ends_run_at_its_first_record(
    order: Order, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(record: Record) -> None:
        raise MemoryError

    case = Case(handle, {A: 3}, order=order, batch_size=10, stop=(MemoryError,))
    async with case.running(fails=True) as task:
        with pytest.raises(MemoryError):
            await task
    assert case.calls == [(0, 3)]
    assert "offset 0: the handler failed, so run() ends" in caplog.text


async def test_without_dead_letters_what_cannot_be_deserialised_ends_run() -> None:
    def key_of(key: bytes) -> int:
        if key == b"3":
            raise ValueError("no key")
        return int(key)

    case = Case(bad(), {A: 5}, order=None, is_keeping=False, key_deserializer=key_of)
    async with case.running(fails=True) as task:
        with pytest.raises(DeserializationError, match="offset 3"):
            await task
    assert sorted(case.done) == [(0, 0), (0, 1), (0, 2)]


async def test_a_deserializer_that_is_away_is_asked_again_after_the_pause_of_a_first_failure() -> (
    None
):
    asked_at: list[float] = []

    class Away(Deserializer[int]):
        def deserialize(self, item: Serialized) -> int:
            asked_at.append(now())
            if len(asked_at) < 3:
                raise ConnectionResetError("the registry is away")
            return int(item.payload)

    case = Case(bad(), {A: 1}, key_deserializer=Away())
    async with case.running():
        await case.patiently(60)
    assert case.done == [(0, 0)]
    pauses = [after - before for before, after in pairwise(asked_at)]
    assert pauses == [pytest.approx(0.1, rel=0.21)] * 2


async def test_handlers_that_are_cancelled_may_take_a_moment_to_end() -> None:
    ended: list[float] = []

    async def handle(record: Record) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(0.5)
            ended.append(now())

    case = Case(handle, {A: 1})
    async with case.running():
        await asyncio.sleep(1)
        await case.run.end(now() + 1)
        assert ended == [2.5]
        assert now() == 2.5


@pytest.mark.parametrize("batch_size", [None, 1])
async def test_an_error_that_stops_ends_run_and_handlers_at_work_have_their_time(
    batch_size: int | None,
) -> None:
    async def handle(record: Record) -> None:
        if record.partition == 0:
            await asyncio.sleep(1)
            raise MemoryError
        await asyncio.sleep(4 if record.offset == 0 else 100)

    case = Case(handle, {A: 1, B: 1}, order=None, stop=(MemoryError,), batch_size=batch_size)
    async with case.running(fails=True) as task:
        await asyncio.sleep(0.1)
        case.buffers.put({B: batch(1, 1)}, node_id=1)
        await asyncio.sleep(2)
        case.buffers.put({B: batch(2, 5)}, node_id=1)
        await asyncio.sleep(1)
        assert case.run.counts()["uncommitted"] == 3
        with pytest.raises(MemoryError):
            await task
    assert case.done == [(1, 0)]
    assert len(case.calls) == 3
    assert now() == pytest.approx(6, abs=0.01)
