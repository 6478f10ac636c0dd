"""How many records a member of a share group asks for."""

from __future__ import annotations

import pytest

from aiokafka_lite.consumer.sharing.demand import EXCESS_S, Demand
from aiokafka_lite.consumer.sharing.leases import Leases

PLACES = 64
FETCH_S = 0.005
"""How long each fetch takes."""


def work(handler_s: float, seconds: float = 3.0) -> tuple[float, int]:
    """Return the share of time that places are busy, and the most records that have waited.

    The broker always has records. Time passes in steps of 1 ms, and its first third is not judged.
    """
    leases, ends = Leases(), list[float]()
    demand = Demand(lambda: PLACES - len(ends), leases)
    asked, answer_at, busy, most_waiting, now = 0, 0.0, 0.0, 0, 0.0
    while now < seconds:
        ended = sum(end <= now for end in ends)
        ends[:] = [end for end in ends if end > now]
        leases.held_count -= ended
        demand.note_settled(ended, now)
        if asked and now >= answer_at:
            leases.waiting_count += asked
            leases.held_count += asked
            demand.note_answer(1, asked, FETCH_S)
            asked = 0
        begun = min(PLACES - len(ends), leases.waiting_count)
        leases.waiting_count -= begun
        ends += [now + handler_s] * begun
        if not asked:
            count, at = demand.wanted(1, 1, now)
            if at <= now:
                asked, answer_at = count, now + FETCH_S
                demand.note_fetch(1, count)
        if now >= seconds / 3:
            busy += len(ends) * 0.001
            most_waiting = max(most_waiting, leases.waiting_count)
        now += 0.001
    return busy / PLACES / (seconds * 2 / 3), most_waiting


@pytest.mark.parametrize("handler_s", [0.005, 0.02])
def test_fast_handlers_are_kept_busy(handler_s: float) -> None:
    busy, most_waiting = work(handler_s)
    assert busy > 0.95
    assert most_waiting <= 0.1 * PLACES / handler_s  # what begins within 0.1 s


def test_slow_handlers_read_almost_nothing_ahead() -> None:
    _, most_waiting = work(5.0, 30.0)
    assert most_waiting <= 2


def test_whole_batches_may_add_what_begins_soon() -> None:
    demand = Demand(lambda: 0, Leases())
    assert demand.excess(0.0) == 0
    for each in range(1_000):
        demand.note_settled(10, each / 1_000)
    assert demand.excess(1.0) == pytest.approx(10_000 * EXCESS_S, rel=0.2)
    assert demand.excess(6.0) < 1
