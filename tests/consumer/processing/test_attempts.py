"""Attempts by themselves: when a record is tried again, and who is told that others may be."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from aiokafka_lite.consumer.processing.attempts import Attempts, Breaker, Fate
from aiokafka_lite.consumer.processing.handling import DROP, DeadRecord, Handling
from aiokafka_lite.consumer.processing.job import JobState
from aiokafka_lite.processing import CircuitBreaker, Retry
from tests.support.states import State

pytestmark = pytest.mark.virtual_time


class Job:
    """A record of a handler, as far as its attempts look at it."""

    def __init__(self, offset: int = 0) -> None:
        self.record = self
        self.topic, self.partition, self.offset = "t", 0, offset
        self.place = f"t/0 offset {offset}"
        self.origin = None
        self.letter: object = None
        self.is_current, self.is_finished = True, False
        self.error: BaseException | None = None
        self.state = JobState.LISTED
        self.attempts = self.success_count = 0
        self.began_at: float | None = None

    def begin(self, now: float, success_count: int) -> None:
        self.began_at = now
        if self.error is None:
            self.success_count = success_count

    def die(self, error: BaseException, letter: object) -> None:
        self.error, self.state, self.letter = error, JobState.DEAD, letter


class Tries:
    """Attempts of one run, and whom they have told."""

    def __init__(self, retry: Retry | None = None, breaker: CircuitBreaker | None = None) -> None:
        self.again: list[Job] = []
        self.looks = 0
        handling = Handling(1, None, None, 1_000, retry or Retry(), self._bury, breaker)
        core = State().core()
        self.attempts: Attempts[Any] = Attempts(
            handling,
            self.begin_again,
            self.offer,
            rng=core.rng,
            events=core.events,
            totals=core.works.totals,
        )

    async def _bury(self, dead: DeadRecord) -> None: ...

    def begin_again(self, job: Job) -> None:
        self.again.append(job)

    def offer(self) -> None:
        self.looks += 1

    @property
    def breaker(self) -> Breaker:
        assert self.attempts.breaker is not None
        return self.attempts.breaker

    def begin(self, job: Job) -> Job:
        job.begin(now(), self.attempts.success_count)
        return job

    def fail(self, job: Job) -> Fate:
        return self.attempts.failed(cast("Any", job), ConnectionError("down"))

    def succeed(self) -> None:
        self.attempts.succeeded(cast("Any", self.begin(Job())))

    def admits(self, job: Job) -> bool:
        return self.attempts.admits(cast("Any", job), self.breaker)

    def is_free(self, job: Job) -> bool:
        return self.attempts.is_free(cast("Any", job))

    def pause_of(self, job: Job) -> float | None:
        return self.attempts.pause_of(cast("Any", job), now())

    def not_buried(self, job: Job) -> float | None:
        self.attempts.letter_failed(cast("Any", job), ConnectionError("the topic is away"))
        return self.pause_of(job)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_pauses_after_refused_letters_begin_small_and_again_after_one_is_written() -> None:
    tries, job = Tries(), Job()
    for pauses_s in ((0.1, 0.2, 0.4), (0.1, 0.2)):
        for pause_s in pauses_s:
            assert tries.not_buried(job) == pytest.approx(pause_s, rel=0.21)
            tries.again.clear()
            await asyncio.sleep(1)
            assert tries.again == [job]
        tries.attempts.letter_written(cast("Any", job), ValueError("bad"))


async def test_nothing_is_tried_again_after_the_end() -> None:
    tries = Tries(breaker=CircuitBreaker(min_calls=1))
    tries.fail(tries.begin(Job()))
    assert not tries.admits(Job())
    tries.not_buried(Job())
    looks = tries.looks
    tries.attempts.close()
    await asyncio.sleep(60)
    assert (tries.again, tries.looks) == ([], looks)


async def test_what_went_while_it_waited_is_returned_once_and_not_tried_again() -> None:
    tries = Tries()
    gone, kept = Job(0), Job(1)
    for job in (gone, kept):
        assert tries.fail(tries.begin(job)) == "again"
    gone.is_current = False
    assert tries.attempts.take_revoked() == [gone]
    assert tries.attempts.take_revoked() == []
    await asyncio.sleep(1)
    assert tries.again == [kept]


async def test_without_a_breaker_only_what_is_dead_is_put_before_others() -> None:
    tries, job = Tries(), Job()
    tries.fail(tries.begin(job))
    tries.succeed()
    assert not tries.is_free(job)
    job.die(ValueError("bad"), DROP)
    assert tries.is_free(job)


async def test_what_failed_before_others_succeeded_waits_for_no_probe() -> None:
    tries = Tries(breaker=CircuitBreaker())
    tries.succeed()
    failed, new = tries.begin(Job(0)), Job(1)
    tries.fail(failed)
    assert not tries.is_free(failed)
    tries.succeed()
    assert tries.is_free(failed)
    assert not tries.is_free(new)
    tries.breaker.open(now(), "why", is_suspicion=True)
    assert tries.is_free(failed)
    tries.breaker.close()
    tries.breaker.open(now(), "why", is_suspicion=False)
    assert not tries.is_free(failed)


async def test_each_success_counts_once_against_failures() -> None:
    tries = Tries(breaker=CircuitBreaker(min_calls=4, failure_rate=0.5))
    tries.fail(tries.begin(Job(0)))
    for _ in range(2):
        tries.succeed()
    assert tries.breaker.is_closed
    tries.fail(tries.begin(Job(1)))
    assert not tries.breaker.is_closed


async def test_one_timer_looks_for_a_probe_and_none_while_there_is_one() -> None:
    await asyncio.sleep(100)
    tries = Tries(breaker=CircuitBreaker(min_calls=1, first_pause_ms=1_000))
    tries.fail(tries.begin(Job(0)))
    for _ in range(3):
        assert not tries.admits(Job(1))
    looks = tries.looks
    await asyncio.sleep(2)
    assert tries.looks == looks + 1
    assert tries.admits(Job(1))
    assert not tries.admits(Job(2))
    await asyncio.sleep(60)
    assert tries.looks == looks + 1


async def test_what_fails_while_handling_pauses_waits_until_one_may_be_tried() -> None:
    await asyncio.sleep(100)
    tries = Tries(breaker=CircuitBreaker(min_calls=1, first_pause_ms=10_000))
    first, second = tries.begin(Job(0)), tries.begin(Job(1))
    tries.fail(first)
    looks = tries.looks
    assert tries.fail(second) == "again"
    assert second.attempts == 0
    assert tries.pause_of(second) == pytest.approx(tries.breaker.probe_at - now())
    assert tries.looks == looks + 1


async def test_a_call_that_took_long_is_none_after_a_time_without_records() -> None:
    tries = Tries(breaker=CircuitBreaker())
    await asyncio.sleep(100)
    tries.fail(tries.begin(Job(0)))
    assert tries.breaker.gives_up_at == 1000
    await asyncio.sleep(50)
    job = tries.begin(Job(1))
    await asyncio.sleep(1100)
    tries.fail(job)
    assert tries.breaker.gives_up_at == 1000
    tries.fail(tries.begin(Job(2)))
    assert tries.breaker.gives_up_at == 1000
    await asyncio.sleep(1000)
    tries.fail(tries.begin(Job(3)))
    assert tries.breaker.gives_up_at == 2250 + 900


async def test_a_call_that_is_cut_off_leaves_the_probe_to_another() -> None:
    tries = Tries(breaker=CircuitBreaker(min_calls=1, first_pause_ms=1_000))
    tries.fail(tries.begin(Job(0)))
    await asyncio.sleep(2)
    probe, other = Job(1), Job(2)
    assert tries.admits(probe)
    tries.attempts.cancelled(cast("Any", other))
    assert not tries.admits(other)
    tries.attempts.cancelled(cast("Any", probe))
    await asyncio.sleep(2)
    assert tries.admits(other)


async def test_failures_while_handling_pauses_become_attempts_once() -> None:
    breaker = CircuitBreaker(min_calls=1, first_pause_ms=1_000, give_up_ms=5_000, probes=99)
    tries = Tries(Retry(attempts=100), breaker)
    first, second, later = Job(0), Job(1), Job(2)
    for job in (first, second):
        tries.begin(job)
    for job in (first, second):
        tries.fail(job)
    assert (first.attempts, second.attempts) == (1, 0)
    await asyncio.sleep(10)
    assert tries.admits(second)
    tries.fail(second)
    assert (first.attempts, second.attempts) == (1, 2)
    tries.fail(tries.begin(later))
    assert not tries.breaker.is_closed
    await asyncio.sleep(10)
    assert tries.admits(later)
    tries.fail(later)
    assert [job.attempts for job in (first, second, later)] == [1, 2, 2]
