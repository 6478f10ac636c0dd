"""The tables of legal moves: every state has a row and can be entered."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, cast

import pytest

from aiokafka_lite.consumer.processing import attempts, job
from aiokafka_lite.consumer.processing.attempts import BreakerState
from aiokafka_lite.consumer.processing.handling import DROP
from aiokafka_lite.consumer.processing.job import Job, JobState
from aiokafka_lite.structs import ConsumerRecord

Moves = Mapping[enum.Enum, frozenset[enum.Enum]]


@pytest.mark.parametrize(
    ("moves", "first", "final"),
    [
        (attempts.MOVES, BreakerState.CLOSED, set()),
        (job.MOVES, JobState.LISTED, {JobState.DEAD}),
    ],
)
def test_every_state_is_reached_from_the_first_and_only_final_ones_are_never_left(
    moves: Moves, first: enum.Enum, final: set[enum.Enum]
) -> None:
    assert moves.keys() == set(type(first))
    reached, more = {first}, {first}
    while more:
        more = {after for state in more for after in moves[state]} - reached
        reached |= more
    assert reached == set(type(first))
    assert {state for state, after in moves.items() if not after} == final


def test_a_job_without_attempts_left_is_not_handled_again() -> None:
    record: ConsumerRecord = ConsumerRecord("t", 0, 3, 0, 0, None, None, None, -1, -1, ())
    job = Job(cast(Any, None), None, record)
    job.die(ValueError("dead from the beginning"), DROP)
    with pytest.raises(AssertionError, match="from DEAD to ALONE"):
        job.enter(JobState.ALONE)
