"""When handling pauses, and what ends the pause."""

from __future__ import annotations

import asyncio
import builtins
import random
from typing import Any

import pytest

from aiokafka_lite.consumer.processing.attempts import Breaker
from aiokafka_lite.processing import CircuitBreaker, Retry
from tests.support.for_each import for_each

GROUP: Any = getattr(builtins, "BaseExceptionGroup", None)  # from Python 3.11 on
SETTINGS = CircuitBreaker(
    failure_rate=0.5, min_calls=10, window_ms=10_000, first_pause_ms=1000, max_pause_ms=8000
)


@pytest.fixture
def breaker() -> Breaker:
    return Breaker(SETTINGS, random.Random(1))


def opened(breaker: Breaker) -> Breaker:
    breaker.open(0.0, "why", is_suspicion=False)
    return breaker


@pytest.mark.parametrize("succeeded", [5, 9])
def test_it_opens_when_enough_calls_fail_in_a_window(breaker: Breaker, succeeded: int) -> None:
    # A hundred succeeded before the first failure: no window had begun.
    assert not breaker.failed(1.0, "no", 100, is_probe=False)
    opens = [
        breaker.failed(10.9, "no", 100 + succeeded, is_probe=False) for _ in range(succeeded - 1)
    ]
    assert opens == [*[False] * (succeeded - 2), True]
    assert not breaker.is_closed
    assert breaker.reason == (
        f"{succeeded} of {2 * succeeded} handler calls failed, the latest with no"
    )
    assert not breaker.admits(11.5, has_failed=False)


def test_a_call_that_is_cut_off_while_it_is_closed_changes_nothing(breaker: Breaker) -> None:
    breaker.abandoned(1.0)
    assert breaker.is_closed
    assert not breaker.is_suspicion


def test_failures_of_an_earlier_window_do_not_count(breaker: Breaker) -> None:
    for n in range(1, 10):
        assert not breaker.failed(float(n), "no", 0, is_probe=False)
    assert not breaker.failed(11.0, "no", 0, is_probe=False)
    assert breaker.is_closed


def test_one_record_is_tried_after_the_pause_and_no_other_beside_it(breaker: Breaker) -> None:
    opened(breaker)
    assert 0.8 <= breaker.probe_at <= 1.2
    assert not breaker.may_probe(breaker.probe_at - 0.01)
    assert breaker.may_probe(breaker.probe_at)
    assert breaker.admits(1.2, has_failed=True)
    assert breaker.is_probing
    assert not breaker.may_probe(1.2)
    assert not breaker.admits(100.0, has_failed=True)
    assert breaker.succeeded(is_probe=True)
    assert breaker.is_closed
    assert not breaker.is_probing


def test_pauses_grow_while_probes_fail(breaker: Breaker) -> None:
    opened(breaker)
    pauses = []
    for _ in range(6):
        now = breaker.probe_at
        assert breaker.admits(now, has_failed=True)
        breaker.failed(now, "no", 0, is_probe=True)
        pauses.append(breaker.probe_at - now)
    for pause_s, expected_s in zip(pauses, (2, 4, 8, 8, 8, 8), strict=True):
        assert 0.8 * expected_s <= pause_s <= 1.2 * expected_s


def test_what_began_before_neither_opens_nor_closes_it(breaker: Breaker) -> None:
    opened(breaker)
    probe_at = breaker.probe_at
    assert not breaker.failed(0.5, "no", 0, is_probe=False)
    assert not breaker.succeeded(is_probe=False)
    assert not breaker.is_closed
    assert not breaker.is_probing
    assert breaker.probe_at == probe_at


def test_on_a_suspicion_a_record_that_has_not_failed_is_tried_at_once(breaker: Breaker) -> None:
    breaker.open(0.0, "one record fails", is_suspicion=True)
    assert not breaker.admits(0.1, has_failed=True)
    assert breaker.may_probe(0.1)
    assert breaker.admits(0.1, has_failed=False)
    assert not breaker.may_probe(0.1)
    assert not breaker.admits(0.1, has_failed=False)
    breaker.failed(0.2, "that one, too", 0, is_probe=True)
    assert not breaker.admits(0.3, has_failed=False)


@pytest.mark.parametrize("is_probing", [False, True])
def test_on_a_suspicion_any_success_closes_it(breaker: Breaker, is_probing: bool) -> None:
    breaker.open(0.0, "one record fails", is_suspicion=True)
    if is_probing:
        assert breaker.admits(0.1, has_failed=False)
    assert breaker.succeeded(is_probe=False)
    assert breaker.is_closed
    assert not breaker.failed(0.2, "the probe", 0, is_probe=True)
    assert breaker.is_closed


def test_a_suspicion_outlives_a_probe_of_the_same_record_but_not_of_another(
    breaker: Breaker,
) -> None:
    breaker.open(0.0, "one record fails", is_suspicion=True)
    assert breaker.admits(2.0, has_failed=True)
    breaker.failed(2.0, "again", 0, is_probe=True)
    assert breaker.admits(2.1, has_failed=False)  # still at once
    breaker.abandoned(2.1)
    assert breaker.admits(2.2, has_failed=False)
    breaker.failed(2.3, "that one, too", 0, is_probe=True)
    assert not breaker.succeeded(is_probe=False)
    assert not breaker.is_closed


def test_failures_begin_anew_after_a_success_and_after_a_long_time_without_records(
    breaker: Breaker,
) -> None:
    assert breaker.begins_anew(0.0, 1.0, 0, is_new=True)
    assert breaker.gives_up_at == 901.0
    assert not breaker.begins_anew(2.0, 3.0, 0, is_new=True)
    assert breaker.gives_up_at == 901.0
    assert breaker.begins_anew(4.0, 5.0, 1, is_new=True)
    assert breaker.gives_up_at == 905.0
    assert not breaker.begins_anew(904.9, 910.0, 1, is_new=True)
    assert not breaker.begins_anew(2000.0, 2000.0, 1, is_new=False)
    assert breaker.begins_anew(2900.0, 2901.0, 1, is_new=True)
    assert breaker.gives_up_at == 3801.0


def test_one_record_counts_as_bad_after_some_probes_and_several_after_a_time(
    breaker: Breaker,
) -> None:
    assert breaker.begins_anew(0.0, 0.0, 0, is_new=True)
    opened(breaker)
    for _ in range(SETTINGS.probes):
        assert not breaker.gives_up(1.0, is_alone=True)
        assert breaker.admits(breaker.probe_at, has_failed=True)
        breaker.failed(breaker.probe_at, "no", 0, is_probe=True)
    assert breaker.gives_up(1.0, is_alone=True)
    assert not breaker.gives_up(899.9, is_alone=False)
    assert breaker.gives_up(900.0, is_alone=False)
    assert breaker.begins_anew(901.0, 902.0, 1, is_new=True)
    opened(breaker)
    assert breaker.probe_at <= 1.2
    assert not breaker.gives_up(1000.0, is_alone=True)
    breaker.close()
    assert breaker.is_closed


def test_a_probe_that_is_cut_off_is_followed_by_another(breaker: Breaker) -> None:
    opened(breaker)
    assert breaker.admits(2.0, has_failed=True)
    breaker.abandoned(2.0)
    assert not breaker.admits(2.0, has_failed=True)
    assert breaker.admits(2.0 + 1.2, has_failed=True)


@for_each(
    [
        {"failure_rate": 0},
        {"failure_rate": 1.1},
        {"min_calls": 0},
        {"window_ms": 0},
        {"probes": 0},
        {"give_up_ms": 0},
        {"first_pause_ms": 0},
        {"first_pause_ms": 10, "max_pause_ms": 5},
    ]
)
def test_settings_that_make_no_sense_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="|".join(arguments)):
        CircuitBreaker(**arguments)


def test_the_least_settings_are_accepted() -> None:
    CircuitBreaker(
        failure_rate=1,
        min_calls=1,
        probes=1,
        window_ms=1,
        give_up_ms=1,
        first_pause_ms=1,
        max_pause_ms=1,
    )
    Retry(attempts=1, first_delay_ms=0, max_delay_ms=0)


# --- Retries ----------------------------------------------------------------------------------
def test_errors_say_what_becomes_of_a_record() -> None:
    retry = Retry(attempts=3, on=OSError, dead=ValueError, stop=(MemoryError, PermissionError))
    assert retry.verdict(OSError(), 1) == "retry"
    assert retry.verdict(OSError(), 3) == "dead"
    assert retry.verdict(KeyError(), 1) == "dead"
    assert retry.verdict(ValueError(), 1) == "dead"
    assert retry.verdict(PermissionError(), 1) == "stop"  # though an OSError
    assert Retry(attempts=None).verdict(KeyError(), 10**6) == "retry"


def grouped(*errors: BaseException) -> BaseException:
    """A group as asyncio.TaskGroup raises it, with a group in it."""
    if GROUP is None:
        pytest.skip("this Python has no groups of exceptions")
    group: BaseException = GROUP("of tasks", [GROUP("inner", errors[:1]), *errors[1:]])
    return group


def test_a_group_is_what_all_errors_in_it_are_and_stops_if_one_does() -> None:
    retry = Retry(attempts=3, on=OSError, dead=(ValueError, KeyError), stop=PermissionError)
    assert retry.verdict(grouped(OSError(), TimeoutError()), 1) == "retry"
    assert retry.verdict(grouped(OSError(), TimeoutError()), 3) == "dead"
    assert retry.verdict(grouped(OSError(), asyncio.CancelledError()), 1) == "retry"
    assert retry.verdict(grouped(OSError(), RuntimeError()), 1) == "dead"
    assert not retry.is_bad_record(grouped(OSError(), ValueError()))
    assert retry.is_bad_record(grouped(ValueError(), KeyError()))
    assert retry.verdict(grouped(KeyError(), PermissionError()), 1) == "stop"
    assert Retry(stop=BaseException).verdict(grouped(ValueError()), 1) == "stop"


def test_a_group_may_be_named_itself() -> None:
    group = grouped(ValueError(), OSError())
    assert Retry(on=type(group)).verdict(group, 1) == "retry"
    assert Retry(dead=type(group)).is_bad_record(group)
    assert Retry(stop=type(group)).stops(group)


def test_pauses_double_up_to_the_longest_and_vary() -> None:
    retry, rng = Retry(first_delay_ms=100, max_delay_ms=1000), random.Random(1)
    for failures, expected_s in ((1, 0.1), (2, 0.2), (3, 0.4), (4, 0.8), (5, 1.0), (50, 1.0)):
        drawn = [retry.delay_s(failures, rng) for _ in range(50)]
        assert 0.8 * expected_s <= min(drawn) < max(drawn) <= 1.2 * expected_s


@pytest.mark.parametrize(
    "arguments",
    [{"attempts": 0}, {"first_delay_ms": -1}, {"first_delay_ms": 10, "max_delay_ms": 5}],
)
def test_a_policy_that_makes_no_sense_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="|".join(arguments)):
        Retry(**arguments)
