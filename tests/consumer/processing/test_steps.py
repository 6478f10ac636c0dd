"""The steps of a record of `run`, compiled: they do what those in plain Python do."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import Any, Final, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite.consumer.buffer.budget import ByteBudget
from aiokafka_lite.consumer.processing import _steps_py, steps
from aiokafka_lite.consumer.processing.allowance import Allowance
from aiokafka_lite.consumer.processing.attempts import Attempts
from aiokafka_lite.consumer.processing.handling import Handling, Retry
from aiokafka_lite.consumer.processing.job import Job
from aiokafka_lite.consumer.processing.lanes import Lanes, Order
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.support.states import State

A: Final = TopicPartition("t", 0)
HANDLING: Final = Handling(1, None, None, 1_000, Retry(), None, None)
COMPILED: Final = steps.Steps is not _steps_py.Steps
WAYS: Final = [_steps_py, steps] if COMPILED else [_steps_py]


def record(offset: int, key: object) -> ConsumerRecord[Any, Any]:
    return ConsumerRecord("t", 0, offset, 0, 0, key, b"", None, 0, 1, ())


RECORD: Final = record(3, b"k")


def new_job() -> Job:
    return Job(cast(Any, None), None, None, RECORD)


async def attempts_of(state: State) -> Attempts:
    """Return attempts of a loop, which a step does not ask."""
    rng, totals = random.Random(1), state.works.totals
    return Attempts(state.events, totals, HANDLING, rng, cast(Any, None))


def ignore(*_: object) -> None:
    pass


class Course:
    """Records of one partition on their way, and what there is to see of it."""

    def __init__(self, way: ModuleType, order: Order) -> None:
        self.state = State()
        self.state.assign_from_user([A])
        self.cursor = self.state.partition(A)
        self.state.start_at(self.cursor, 0)
        self.state.works.open_processing(cast(Any, self))
        self.way, self.lanes = way, Lanes(order)
        allowance = Allowance(self.state, self.state.works, ByteBudget(1 << 20, ignore), 1_000)
        attempts = asyncio.run(attempts_of(self.state))
        state = self.state
        self.steps = way.Steps(
            state.works,
            state.gate,
            self.lanes,
            attempts,
            allowance,
            ignore,
        )
        self.begun: list[Job] = []
        self.progressed = self.end = 0
        self.state.observers.on_next_progress(self.note_progress)

    def note_progress(self) -> None:
        self.progressed += 1
        self.state.observers.on_next_progress(self.note_progress)

    def put(self, keys: list[object], error: Exception | None = None) -> None:
        records = [record(self.end + number, key) for number, key in enumerate(keys)]
        new = partial(Job, self.cursor, self.lanes.of(A), error)
        jobs = self.state.works.hand_out_each(self.cursor, records, (), new)
        self.state.reads.hand_out(self.cursor, self.end, self.end + len(keys), ())
        self.end += len(keys)
        self.state.works.put_into_processing(self.cursor, is_enough=False)
        self.steps.put(jobs)

    def act(self, action: str, number: int) -> object:
        job = self.begun[number % len(self.begun)] if self.begun else None
        if action == "put":
            self.put([b"%d" % (each % 3) if each % 4 else None for each in range(number)])
        elif action == "put a dead one":
            self.put([b"1"], ValueError())
        elif action == "begin":
            if (found := self.steps.begin(float(number), number)) is not None:
                self.begun.append(found)
                return found.record.offset, found.began_at, found.success_count
        elif action == "pass" and self.lanes.ready:
            self.lanes.leave(self.lanes.ready.popleft())
        elif action == "finish" and job is not None:
            self.begun.remove(job)
            self.steps.finish(job)
        elif action == "fail" and job is not None:
            self.begun.remove(job)
            job.error = ValueError()
            self.lanes.ready.append(job)
        elif action == "pause":
            self.cursor.is_paused = number % 2 == 0
        elif action == "revoke":
            self.cursor.is_revoking = number % 2 == 0
        elif action == "commit" and self.cursor.progress is not None:
            self.cursor.progress.finish_before(number)
        return None

    def seen(self) -> object:
        return (
            [(job.record.offset, job.name, job.lane is None) for job in self.lanes.ready],
            [job.follower and job.follower.record.offset for job in self.begun],
            {name: job.record.offset for name, job in (self.lanes.of(A) or {}).items()},
            repr(self.cursor.progress),
            self.cursor.processed,
            self.cursor.worked_by is None,
            self.progressed,
        )


ACTIONS: Final = (
    *("put", "put a dead one", "pass", "fail", "commit", "pause", "revoke"),
    *("begin", "finish") * 4,
)


@pytest.mark.skipif(not COMPILED, reason="the extension is not built")
@given(
    st.sampled_from(["key", "partition", None]),
    st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 12)), max_size=60),
)
def test_both_do_the_same(order: Order, actions: list[tuple[str, int]]) -> None:
    plain, compiled = (Course(way, order) for way in WAYS)
    for action, number in actions:
        assert compiled.act(action, number) == plain.act(action, number)
        assert compiled.seen() == plain.seen()


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.skipif(not COMPILED, reason="the extension is not built")
@pytest.mark.usefixtures("no_collections")
def test_jobs_that_replace_others_begin_no_collection() -> None:
    def make_jobs() -> int:
        before = gc.get_count()[0]
        _ = [new_job() for _ in range(500)]
        return gc.get_count()[0] - before

    make_jobs()
    assert make_jobs() < 10


class Owner:
    job: Job


def test_jobs_in_a_cycle_are_collected() -> None:
    for _ in range(2):  # the second time in memory of the first
        owner = Owner()
        owner.job = new_job()
        owner.job.name = owner
        reference = weakref.ref(owner)
        del owner
        gc.collect()
        assert reference() is None


def test_a_long_lane_is_freed_without_recursion() -> None:
    first: Job | None = None
    for _ in range(50_000):
        job = new_job()
        job.follower, first = first, job
    chain = [first]
    del job, first
    usual = threading.stack_size(1 << 18)
    thread = threading.Thread(target=chain.clear)
    thread.start()
    threading.stack_size(usual)
    thread.join()
    assert not chain


@pytest.mark.parametrize("way", WAYS)
def test_a_record_that_is_taken_away_finishes_nothing(way: ModuleType) -> None:
    course = Course(way, "key")
    course.put([b"1", b"1"])
    course.act("begin", 0)
    (job,) = course.begun
    assert course.cursor.progress is not None
    course.cursor.progress.go_back_to(0)
    course.steps.finish(job)
    assert (course.cursor.processed, course.progressed) == (0, 0)
    assert [each.record.offset for each in course.lanes.ready] == [1]  # its lane goes on
    assert course.steps.begin(1.0, 1) is None  # neither is that one to be finished


def test_a_record_of_a_list_that_is_handled_again_alone_has_no_followers() -> None:
    course = Course(_steps_py, "partition")
    course.put([b"1"] * 3)
    first, second = course.lanes.chain(course.lanes.ready.popleft(), 2)
    course.lanes.leave(second)
    course.lanes.put_again([first])
    assert course.lanes.chain(first, 3) == [first]


@pytest.mark.parametrize("way", WAYS)
def test_keys_that_cannot_be_told_apart_are_refused(way: ModuleType) -> None:
    with pytest.raises(TypeError, match="let the key_deserializer return something"):
        Course(way, "key").put([["a", "list"]])
