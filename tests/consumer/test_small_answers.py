"""Small answers in one go, compiled: what comes of them is what comes of them step by step."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from aiokafka_lite._compat import override
from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.deserializers import Deserializer, Serialized
from aiokafka_lite.protocol.messages.fetch import AbortedTransaction, PartitionData
from tests.support import crafted
from tests.support.iterations import ITERATIONS
from tests.support.rounds import LONG
from tests.support.scripted_sources import answer
from tests.support.small_answers import Reading, tp
from tests.support.virtual_time import VirtualTimeLoop

pytestmark = [
    pytest.mark.asyncio(loop_scope="function"),
    pytest.mark.virtual_time,
    pytest.mark.skipif("compiled" not in ITERATIONS, reason="the extensions are not built"),
]


Step = Callable[[Reading], Any]


class Twins:
    """The same consumer both ways; what is done is done to both, and they are compared."""

    def __init__(self, *twins: Reading) -> None:
        self.twins = twins
        self.log: list[str] = []

    @property
    def compiled(self) -> Reading:
        return self.twins[0]

    async def do(self, what: str, step: Callable[[Reading], Any]) -> None:
        self.log.append(what)
        for twin in self.twins:
            result = step(twin)
            if asyncio.iscoroutine(result):
                await asyncio.wait_for(result, 100.0)
        for twin in self.twins:
            await twin.settle()
        self.compare()

    def compare(self) -> None:
        told, expected = (twin.state_of_all() for twin in self.twins)
        for name, value in expected.items():
            if told[name] != value:  # in full, which an assertion does not tell
                print(f"compiled {name}: {told[name]}\nstep by step: {value}")
            assert told[name] == value, (name, self.log[-12:])


@pytest_asyncio.fixture(loop_scope="function")
async def twins(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Twins]:
    made = await make_twins(monkeypatch)
    yield made
    for twin in made.twins:
        await twin.close()


async def make_twins(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Twins:
    """Twins that have opened a session, and of which a task reads."""
    made = Twins(
        *(
            Reading(monkeypatch, is_compiled=is_compiled, **settings)
            for is_compiled in (True, False)
        )
    )
    await made.do("assign", lambda twin: twin.assign(0, 1, 2, 3))
    await made.do("open a session", lambda twin: twin.answer())
    await made.do("read", lambda twin: twin.read())
    assert [twin.waits_without_coroutine for twin in made.twins] == [True, False]
    return made


def answering(*partitions: PartitionData) -> Step:
    """Let the broker answer both with these."""
    return lambda twin: twin.answer(*partitions)


def nothing() -> None:
    """What an application does with a record that is of no interest."""


# --- Plain ------------------------------------------------------------------------------------
async def test_a_record_that_comes_alone_is_handed_out_and_the_next_is_asked_for(
    twins: Twins,
) -> None:
    for offset in range(5):
        one = answer(1, crafted.batch(1, base_offset=offset))
        await twins.do("answer", answering(one))
    assert [offset for _, offset, _ in twins.compiled.got] == [0, 1, 2, 3, 4]
    assert [twin.taken_count for twin in twins.twins] == [5, 0]
    last = twins.compiled.asked()[-1]
    (partition,) = last.topics[0].partitions
    assert (partition.partition, partition.fetch_offset) == (1, 5)


async def test_an_answer_may_bring_several_partitions_and_batches(twins: Twins) -> None:
    two = crafted.batch(2, leader_epoch=4) + crafted.batch(3, base_offset=2, leader_epoch=4)
    await twins.do("answer", lambda twin: twin.answer(answer(3, two), answer(0, two), answer(1)))
    assert len(twins.compiled.got) == 10
    assert twins.compiled.taken_count == 1
    await twins.do("answer", lambda twin: twin.answer(answer(2, crafted.batch(1))))
    # What the application has been handed out last is not done yet.
    cursor = twins.compiled.state.partition(tp(3))
    assert (cursor.position, cursor.processed, cursor.leader_epoch) == (5, 5, 4)


async def test_batches_of_two_leader_epochs_are_taken_step_by_step(twins: Twins) -> None:
    two = crafted.batch(2, leader_epoch=3) + crafted.batch(3, base_offset=2, leader_epoch=4)
    await twins.do("answer", lambda twin: twin.answer(answer(3, two)))
    assert len(twins.compiled.got) == 5
    assert twins.compiled.taken_count == 0
    cursor = twins.compiled.state.partition(tp(3))
    assert [cursor.epoch_before(offset) for offset in (2, 3)] == [3, 4]


@pytest.mark.parametrize("version", range(13, 19))
async def test_requests_are_those_of_the_template_in_every_version(
    monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    twins = await make_twins(
        monkeypatch, version=version, fetch_min_bytes=7, isolation_level="read_committed"
    )
    for offset in range(3):
        brought = [answer(n, crafted.batch(1, base_offset=offset)) for n in (2, 0)]
        await twins.do("answer", answering(*brought))
    assert twins.compiled.taken_count == 3
    for twin in twins.twins:
        await twin.close()


async def test_an_answer_in_an_older_version_is_left_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    twins = await make_twins(monkeypatch, version=12)
    await twins.do("answer", lambda twin: twin.answer(answer(0, crafted.batch(1))))
    assert twins.compiled.taken_count == 0
    assert len(twins.compiled.got) == 1
    for twin in twins.twins:
        await twin.close()


async def test_what_is_decoded_at_once_keeps_nothing_of_the_answer_reserved(twins: Twins) -> None:
    reserved = twins.compiled.budget.used_bytes
    await twins.do("answer", lambda twin: twin.answer(answer(0, crafted.batch(3))))
    assert twins.compiled.taken_count == 1
    assert twins.compiled.budget.used_bytes == twins.compiled.budget.pending_bytes == reserved


async def test_the_task_that_reads_goes_on_before_the_loop_turns(twins: Twins) -> None:
    twin = twins.compiled
    frame = twin.frame(answer(0, crafted.batch(1)))
    assert frame is not None
    counts: list[int] = []

    def receive() -> None:
        twin.receive(frame)
        counts.append(len(twin.got))

    asyncio.get_running_loop().call_soon(receive)
    await twin.settle()
    assert counts == [1]


async def test_every_get_that_waits_is_woken(twins: Twins) -> None:
    twin = twins.compiled
    twin.may_go_on.clear()  # the task that reads takes one record, and keeps it
    second = asyncio.ensure_future(anext(twin.reader))
    await twin.settle()
    assert twin.buffer.waiting_count == 2
    await twin.answer_in_a_callback(answer(0, crafted.batch(2)))
    assert [offset for _, offset, _ in twin.got] == [0]
    assert twin.taken_count == 1
    assert second.done()
    assert second.result().offset == 1


async def test_the_last_epoch_of_a_session_is_followed_by_the_first(twins: Twins) -> None:
    await twins.do("last epoch", lambda twin: twin.come_to_the_last_epoch())
    for epoch in (1, 2):
        await twins.do("answer", lambda twin: twin.answer(answer(0, batch_of(twin, 0))))
        assert twins.compiled.asked()[-1].session_epoch == epoch
    assert twins.compiled.taken_count == 2


async def record_by_record(twin: Reading, *acts: Callable[[], object]) -> list[int]:
    """Let one record come for each act; return how many requests had been written at each."""
    counts: list[int] = []
    for act in acts:
        transport = twin.pool.transport

        def note(act: Callable[[], object] = act, written: list[bytes] = transport.written) -> None:
            counts.append(len(written))
            act()

        twin.on_record = note
        await twin.answer_in_a_callback(answer(0, batch_of(twin, 0)))
    return counts


async def test_the_application_has_the_records_before_the_next_request_is_written(
    twins: Twins,
) -> None:
    twin = twins.compiled
    before = len(twin.pool.transport.written)
    counts = await record_by_record(twin, nothing, nothing, nothing)
    # The first shows how long it takes.
    assert counts == [before + 1, before + 1, before + 2]
    assert len(twin.pool.transport.written) == before + 3


async def test_an_application_that_takes_long_does_not_hold_the_next_request_up(
    twins: Twins,
) -> None:
    twin = twins.compiled
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    before = len(twin.pool.transport.written)
    take_long = partial(loop.pass_time, 0.001)
    counts = await record_by_record(twin, nothing, take_long, take_long, nothing, nothing)
    # It is known of the records before.
    assert counts == [before + 1, before + 1, before + 3, before + 4, before + 4]
    assert len(twin.pool.transport.written) == before + 5


async def test_a_request_that_is_written_late_has_all_its_time(twins: Twins) -> None:
    twin = twins.compiled
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    written = len(twin.pool.transport.written)
    await record_by_record(twin, nothing, partial(loop.pass_time, 12.0))
    assert len(twin.pool.transport.written) == written + 2
    (pending,) = twin.pool.connection.wire.in_flight.values()
    assert pending.deadline == loop.time() + pending.timeout_s
    assert twin.source is not None
    assert twin.source.in_flight_since == loop.time()


async def test_a_connection_that_the_application_outlives_is_not_written_to(twins: Twins) -> None:
    twin = twins.compiled
    transport, connection = twin.pool.transport, twin.pool.connection
    await record_by_record(twin, nothing)
    written = len(transport.written)
    await record_by_record(twin, lambda: connection.connection_lost(None))
    assert len(transport.written) == written
    await asyncio.sleep(2.0)
    assert twin.pool.transport is not transport
    assert [offset for _, offset, _ in twin.got] == [0, 1]
    assert not twin.errors


async def test_the_next_request_is_written_though_the_application_ends_the_process(
    twins: Twins,
) -> None:
    twin = twins.compiled
    await record_by_record(twin, nothing)
    written = twin.pool.transport.written
    count = len(written)
    twin.on_record = sys.exit
    frame = twin.frame(answer(0, batch_of(twin, 0)))
    assert frame is not None
    left: list[BaseException] = []

    def receive() -> None:
        try:
            twin.receive(frame)
        except SystemExit as error:
            left.append(error)

    asyncio.get_running_loop().call_soon(receive)
    await twin.settle()
    assert len(written) == count + 1
    assert twin.task is not None
    assert [twin.task.exception()] == left


async def test_where_a_task_is_running_the_loop_lets_the_reading_one_go_on(twins: Twins) -> None:
    twin = twins.compiled
    frame = twin.frame(answer(0, crafted.batch(1)))
    assert frame is not None
    twin.receive(frame)
    assert not twin.got
    await twin.settle()
    assert len(twin.got) == 1


async def test_where_a_request_needs_more_all_goes_step_by_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading = Reading(monkeypatch, is_compiled=True, client_rack="a")
    reading.assign(0)
    await reading.settle()
    assert reading.takes_the_long_way
    await reading.close()


async def test_a_bug_on_the_way_is_raised_by_every_get(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_compiled in (True, False):
        reading = Reading(monkeypatch, is_compiled=is_compiled)
        reading.assign(0)
        await reading.answer()
        reading.read()
        await reading.settle()
        reading.plant_a_bug()
        await reading.answer(answer(0, crafted.batch(1)))
        assert reading.taken_count == 0
        reading.read()
        await reading.settle()
        assert reading.errors, is_compiled
        assert reading.errors[-1].startswith("TypeError")
        await reading.close()


# --- Not plain --------------------------------------------------------------------------------
def next_offset(twin: Reading, number: int) -> int:
    cursor = twin.state.assignment.get(tp(number))
    return 0 if cursor is None else max(0, cursor.fetched)


def batch_of(twin: Reading, number: int, count: int = 1, **more: Any) -> bytes:
    """A batch that goes on where a partition is fetched."""
    return crafted.batch(count, base_offset=next_offset(twin, number), **more)


NOT_PLAIN: dict[str, Step] = {
    "compressed": lambda twin: twin.answer(answer(0, batch_of(twin, 0, codec="gzip"))),
    "a broken checksum": lambda twin: twin.answer(answer(0, crafted.corrupted(batch_of(twin, 0)))),
    "cut short": lambda twin: twin.answer(answer(0, batch_of(twin, 0) + batch_of(twin, 0)[:-3])),
    "an error": lambda twin: twin.answer(answer(0, error_code=6)),
    "one error of two": lambda twin: twin.answer(
        answer(1, batch_of(twin, 1)), answer(0, error_code=74)
    ),
    "the leader is elsewhere": lambda twin: twin.answer(
        answer(0, error_code=6, leader_hint=(2, 9))
    ),
    "another replica": lambda twin: twin.answer(answer(0, preferred=2)),
    "throttled": lambda twin: twin.answer(answer(0, batch_of(twin, 0)), throttle_time_ms=20),
    "the session is lost": lambda twin: twin.answer(error_code=70, session_id=0),
    "no session": lambda twin: twin.answer(answer(0, batch_of(twin, 0)), session_id=0),
    "another session": lambda twin: twin.answer(answer(0, batch_of(twin, 0)), session_id=78),
    "another topic": lambda twin: twin.answer(answer(0, batch_of(twin, 0)), topic_id=bytes(16)),
    "a partition that was not asked for": lambda twin: twin.answer(answer(9, b"")),
    "named twice": lambda twin: twin.answer(
        answer(0, batch_of(twin, 0)), answer(0, batch_of(twin, 0))
    ),
    "aborted transactions": lambda twin: twin.answer(
        PartitionData(
            partition_index=0,
            high_watermark=9,
            aborted_transactions=[AbortedTransaction(producer_id=1, first_offset=0)],
            records=memoryview(batch_of(twin, 0)),
        )
    ),
    "no records in batches": lambda twin: twin.answer(
        answer(0, crafted.committed(1, next_offset(twin, 0)))
    ),
    "only older records": lambda twin: twin.answer(answer(0, crafted.batch(1, base_offset=0))),
    "large": lambda twin: twin.answer(answer(0, batch_of(twin, 0, 3000))),
}
PLAIN: dict[str, Step] = {
    "nothing new": lambda twin: twin.answer(),
    "a high watermark": lambda twin: twin.answer(answer(0, high_watermark=12)),
    "old offsets first": lambda twin: twin.answer(
        answer(0, crafted.batch(next_offset(twin, 0) + 2, base_offset=0), high_watermark=1 << 40)
    ),
    "in transactions": lambda twin: twin.answer(
        answer(0, batch_of(twin, 0, producer_id=1, is_transactional=True))
    ),
}


@pytest.mark.parametrize("name", [*NOT_PLAIN, *PLAIN])
async def test_whatever_an_answer_says_comes_to_the_same(twins: Twins, name: str) -> None:
    await twins.do("begin", lambda twin: twin.answer(answer(0, batch_of(twin, 0))))
    assert twins.compiled.taken_count == 1
    await twins.do(name, (NOT_PLAIN | PLAIN)[name])
    assert twins.compiled.taken_count == 1 + (name in PLAIN)
    await asyncio.sleep(2.0)
    for twin in twins.twins:
        await twin.settle()
    twins.compare()


async def test_small_answers_are_taken_in_one_go_again_after_a_throttle(twins: Twins) -> None:
    await twins.do("throttled", NOT_PLAIN["throttled"])
    await asyncio.sleep(0.1)
    for taken_count in (0, 1):  # the first answer without a throttle ends it
        await twins.do("go on", lambda twin: twin.answer(answer(0, batch_of(twin, 0))))
        assert twins.compiled.taken_count == taken_count
        assert twins.compiled.source is not None
        assert not twins.compiled.source.is_throttled


# --- Whatever happens -------------------------------------------------------------------------
class Course:
    """A random course of things that happen to both."""

    def __init__(self, twins: Twins, seed: int) -> None:
        self.twins = twins
        self.rng = random.Random(seed)
        self.steps: dict[str, tuple[int, Callable[[], Step | None]]] = {
            "records": (40, self.some_records),
            "acted upon": (10, self.acted_upon),
            "not plain": (10, self.anything),
            "mutated": (2, self.mutated),
            "in pieces": (2, self.in_pieces),
            "seek": (3, self.seek),
            "pause": (2, self.pause),
            "resume": (3, self.resume),
            "busy": (3, lambda: lambda twin: twin.may_go_on.clear()),
            "free": (6, lambda: lambda twin: twin.may_go_on.set()),
            "hold": (1, lambda: lambda twin: twin.state.gate.hold(Hold.LISTENER)),
            "release": (3, lambda: lambda twin: twin.state.gate.release(Hold.LISTENER)),
            "another get": (3, lambda: lambda twin: twin.get_once([], None)),
            "get of one": (2, self.get_of_one),
            "cancel": (2, lambda: lambda twin: twin.stop_reading()),
            "read": (6, lambda: lambda twin: twin.read()),
            "assign": (1, self.assign),
            "lost": (1, lambda: lambda twin: twin.pool.connection.connection_lost(None)),
            "broken": (1, self.broken),
        }

    async def run(self, count: int) -> None:
        names = list(self.steps)
        weights = [self.steps[name][0] for name in names]
        for name in self.rng.choices(names, weights, k=count):
            step = self.steps[name][1]()
            if step is not None:
                await self.twins.do(name, step)
            if self.rng.random() < 0.2:
                await asyncio.sleep(self.rng.choice((0.001, 0.02, 0.3, 1.5)))
                await self.twins.do("time", lambda twin: twin.settle())

    @property
    def numbers(self) -> list[int]:
        return [each.partition for each in self.twins.compiled.state.assignment]

    def some_records(self) -> Step | None:
        twin = self.twins.compiled
        if twin.in_flight is None:
            return None
        chosen = self.rng.sample(self.numbers, min(len(self.numbers), self.rng.choice((1, 1, 2))))
        brought = []
        for number in chosen:
            count = self.rng.choice((1, 1, 1, 2, 5))
            epoch = self.rng.choice((-1, 0, 1))
            brought.append(answer(number, batch_of(twin, number, count, leader_epoch=epoch)))
        return lambda twin: twin.answer(*brought)

    def acted_upon(self) -> Step | None:
        """A record comes, and the application does something before it asks for the next."""
        twin = self.twins.compiled
        # On a connection that is going to break, one way finds that before the act, one after it.
        is_broken = twin.pool.transport.error is not None
        if twin.in_flight is None or not twin.waits_without_coroutine or is_broken:
            return None
        number = self.rng.choice(self.numbers)
        names = ("seek", "pause", "assign", "lost", "hold", "busy")
        act = self.steps[self.rng.choice(names)][1]()
        assert act is not None
        brought = answer(number, batch_of(twin, number, self.rng.choice((1, 2))))

        async def step(twin: Reading) -> None:
            twin.on_record = lambda: act(twin)
            await twin.answer_in_a_callback(brought)
            twin.on_record = None

        return step

    def anything(self) -> Step | None:
        if self.twins.compiled.in_flight is None:
            return None
        return self.rng.choice(list((NOT_PLAIN | PLAIN).values()))

    def one_frame(self) -> bytearray | None:
        twin = self.twins.compiled
        number = self.rng.choice(self.numbers)
        frame = twin.frame(answer(number, batch_of(twin, number, 2)))
        return None if frame is None else bytearray(frame)

    def mutated(self) -> Step | None:
        frame = self.one_frame()
        if frame is None:
            return None
        at = self.rng.randrange(8, len(frame))
        frame[at] = self.rng.choice((0, 1, frame[at] ^ 0x80, 0xFF, self.rng.randrange(256)))
        return lambda twin: twin.receive(bytes(frame))

    def in_pieces(self) -> Step | None:
        frame = self.one_frame()
        if frame is None:
            return None
        at = self.rng.randrange(1, len(frame))

        async def step(twin: Reading) -> None:
            twin.receive(bytes(frame[:at]))
            await twin.settle()
            twin.receive(bytes(frame[at:]))

        return step

    def seek(self) -> Step:
        number, offset = self.rng.choice(self.numbers), self.rng.randrange(9)
        return lambda twin: twin.seek(number, offset)

    def pause(self) -> Step:
        number = self.rng.choice(self.numbers)
        return lambda twin: twin.state.pause(twin.state.partition(tp(number)))

    def resume(self) -> Step:
        number = self.rng.choice(self.numbers)
        return lambda twin: twin.state.resume(twin.state.partition(tp(number)))

    def get_of_one(self) -> Step:
        number = self.rng.choice(self.numbers)
        return lambda twin: twin.get_once([tp(number)], 1)

    def assign(self) -> Step:
        chosen = self.rng.sample(range(4), self.rng.choice((1, 2, 4)))
        return lambda twin: twin.assign(*chosen, offset=self.rng.randrange(1))

    def broken(self) -> Step:
        def step(twin: Reading) -> None:
            twin.pool.transport.error = OSError("broken pipe")

        return step


class Reversed(Deserializer[bytes]):
    """Reverses a value; every fifth record is bad."""

    @override
    def deserialize(self, item: Serialized) -> bytes:
        if item.offset % 5 == 4:
            raise ValueError("bad")
        return item.payload[::-1] + b"%d" % item.offset


COURSES = 600 if LONG else 20


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"isolation_level": "read_uncommitted"}, id="read_uncommitted"),
        pytest.param({"isolation_level": "read_committed"}, id="read_committed"),
        pytest.param(
            {"value_deserializer": Reversed(), "on_bad_record": "skip"}, id="deserialised"
        ),
    ],
)
async def test_whatever_happens_comes_to_the_same(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, object]
) -> None:
    taken_count = answered_count = 0
    for seed in range(COURSES // 2):
        twins = await make_twins(monkeypatch, **settings)
        try:
            await Course(twins, seed).run(60)
        except BaseException:
            print("seed", seed, "steps", twins.log)
            raise
        finally:
            for twin in twins.twins:
                await twin.close()
        taken_count += twins.compiled.taken_count
        answered_count += twins.log.count("records")
    assert taken_count > answered_count / 4, "too few were taken for this to say anything"
