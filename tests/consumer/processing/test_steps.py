"""The steps of a record of `run`, and its job and lane."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from aiokafka_lite.consumer.buffer.budget import ByteBudget
from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.consumer.processing import steps
from aiokafka_lite.consumer.processing.allowance import Allowance
from aiokafka_lite.consumer.processing.attempts import Attempts
from aiokafka_lite.consumer.processing.handling import DROP, Handling, Retry
from aiokafka_lite.consumer.processing.job import DEAD, Job
from aiokafka_lite.consumer.processing.lanes import Lanes, Order
from aiokafka_lite.consumer.processing.steps import Steps
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.support.states import State

A: Final = TopicPartition("t", 0)
MOST: Final = 1_000
HANDLING: Final = Handling(1, None, None, MOST, Retry(), None, None)
COMPILED: Final = steps.__file__.endswith((".so", ".pyd"))


def record(offset: int, key: object) -> ConsumerRecord[Any, Any]:
    return ConsumerRecord("t", 0, offset, 0, 0, key, b"", None, 0, 1, ())


RECORD: Final = record(3, b"k")


def new_job() -> Job:
    return Job(cast(Any, None), None, RECORD)


def ignore(*_: object) -> None:
    pass


async def attempts_of(state: State) -> Attempts[Job]:
    """Return attempts of a loop, which a step does not ask."""
    core = state.core()
    totals = core.works.totals
    return Attempts(HANDLING, ignore, ignore, rng=core.rng, events=core.events, totals=totals)


class Course:
    """Records of one partition on their way."""

    def __init__(self, order: Order) -> None:
        self.state = State()
        self.state.assign_from_user([A])
        self.cursor = self.state.partition(A)
        self.state.start_at(self.cursor, 0)
        self.state.works.open_processing(cast(Any, self))
        self.lanes = Lanes(order)
        works = self.state.works
        buffer = SimpleNamespace(budget=ByteBudget(1 << 20, ignore))
        self.allowance = Allowance(self.state.core(buffer=buffer), MOST)
        self.attempts = asyncio.run(attempts_of(self.state))
        self.steps = Steps(
            works, self.state.gate, self.lanes, self.attempts, self.allowance, cast(Any, self)
        )
        self.end = 0

    def begin_slice(self, now: float) -> None:
        self.steps.slice_ends_at = now + 1

    def put(self, keys: list[object], error: Exception | None = None) -> None:
        records = [record(self.end + number, key) for number, key in enumerate(keys)]
        new = partial(Job, self.cursor, self.lanes.of(A))
        jobs = self.state.works.hand_out_each(self.cursor, records, (), new)
        for job in jobs if error is not None else ():
            job.die(cast(Exception, error), DROP)
        self.state.reads.hand_out(self.cursor, self.end, self.end + len(keys), ())
        self.end += len(keys)
        self.state.works.put_into_processing(self.cursor, is_enough=False)
        self.lanes.put(jobs)

    def begin(self) -> Job:
        job = self.lanes.ready.popleft()
        job.begin(0.0, 0)
        return job

    @property
    def ready(self) -> list[int]:
        return [job.record.offset for job in self.lanes.ready]


def test_a_step_finishes_a_record_and_begins_the_next() -> None:
    course = Course("key")
    course.put([b"1", b"2", b"1"])
    following = course.steps.finish_and_begin(course.begin(), 5.0)
    assert following is not None
    assert (following.record.offset, following.began_at, following.success_count) == (1, 5.0, 1)
    assert (course.cursor.processed, course.ready) == (1, [2])  # its lane goes on
    assert course.attempts.success_count == course.state.works.totals["finished_total"] == 1


def test_a_step_begins_the_next_record_of_the_only_lane() -> None:
    course = Course("key")
    course.put([b"1", b"1"])
    following = course.steps.finish_and_begin(course.begin(), 5.0)
    assert following is not None
    assert (following.record.offset, course.cursor.processed, course.ready) == (1, 1, [])
    assert course.steps.finish_and_begin(following, 5.0) is None  # no record is left
    assert following.is_current


def test_a_step_lets_a_partition_have_more_that_had_as_many_records_as_it_may() -> None:
    course = Course("key")
    course.put([b"%d" % (number % 10) for number in range(MOST)])
    course.allowance.handed_out(course.cursor)
    assert course.cursor.has_enough
    assert course.steps.finish_and_begin(course.begin(), 5.0) is not None
    assert not course.cursor.has_enough


def pause(course: Course) -> None:
    course.cursor.is_paused = True


def revoke(course: Course) -> None:
    course.cursor.is_withheld = True


def die(course: Course) -> None:
    course.lanes.ready[0].enter(DEAD)


def take_back(course: Course) -> None:
    assert course.cursor.progress is not None
    course.cursor.progress.go_back_to(1)


def hold(course: Course) -> None:
    course.state.gate.hold(Hold.LOST)


def end(course: Course) -> None:
    course.steps.is_finishing = True


def use_the_slice_up(course: Course) -> None:
    course.steps.slice_ends_at = 5.0


def feed(course: Course) -> None:
    course.steps.feed_below = 1


@pytest.mark.parametrize(
    "prevent",
    [pause, revoke, die, take_back, hold, end, use_the_slice_up, feed],
)
def test_whatever_else_is_to_be_done_is_left_to_the_run(
    prevent: Callable[[Course], None],
) -> None:
    course = Course("key")
    course.put([b"1", b"2"])
    job = course.begin()
    prevent(course)
    assert course.steps.finish_and_begin(job, 5.0) is None
    assert job.is_current
    assert (course.cursor.processed, course.ready) == (0, [1])
    assert course.attempts.success_count == course.state.works.totals["finished_total"] == 0


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


def test_a_record_that_is_taken_away_finishes_nothing() -> None:
    course = Course("key")
    course.put([b"1", b"1"])
    job = course.begin()
    assert course.cursor.progress is not None
    course.cursor.progress.go_back_to(0)
    course.state.works.finish(course.cursor, job.record.offset, job)
    course.lanes.leave(job)
    assert course.cursor.processed == 0
    assert course.ready == [1]  # its lane goes on
    assert not course.lanes.ready[0].is_current  # neither is that one to be finished


def test_a_record_of_a_list_that_is_handled_again_alone_has_no_followers() -> None:
    course = Course("partition")
    course.put([b"1"] * 3)
    first, second = course.lanes.chain(course.lanes.ready.popleft(), 2)
    course.lanes.leave(second)
    course.lanes.put_again([first])
    assert course.lanes.chain(first, 3) == [first]


def test_keys_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(TypeError, match="let the key_deserializer return something"):
        Course("key").put([["a", "list"]])
