"""How many records a member of a share group asks for."""

from __future__ import annotations

import pytest

from aiokafka_lite.consumer.sharing.demand import EXCESS_S, TURN_S, Demand
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


def test_nothing_is_read_ahead_after_the_end_of_a_use() -> None:
    demand = Demand(lambda: 0, Leases())
    demand.note_settled(10_000, 0.0)
    assert demand.wanted(1, 1, 0.0)[0] > 0
    demand.read_nothing_ahead()
    assert demand.wanted(1, 1, 0.0)[0] == 0


def one_place_for_two_nodes(count: int, *, able: frozenset[int] = frozenset({1, 2})) -> list[int]:
    """Return which nodes fetch, one after the other; both have a backlog, and node 1 looks first.

    A node that is not able to fetch only takes its place in the line, at the beginning.
    """
    demand, fetched, now = Demand(lambda: 1, Leases()), list[int](), 0.0
    for node in {1, 2} - able:
        demand.wanted(node, 2, now)
    while len(fetched) < count:
        before = len(fetched)
        for node in sorted(able):
            asks, at = demand.wanted(node, 2, now)
            if at <= now:
                fetched.append(node)
                demand.note_fetch(node, asks)
        if len(fetched) > before:
            demand.note_answer(fetched[-1], 1, FETCH_S)
        now += 0.01
        assert now < 1.0
    return fetched


def test_nodes_with_backlogs_take_turns() -> None:
    assert one_place_for_two_nodes(6) == [1, 2, 1, 2, 1, 2]


def test_a_node_that_does_not_fetch_loses_its_turn() -> None:
    assert one_place_for_two_nodes(6, able=frozenset({1})) == [1] * 6


def test_the_turn_of_another_node_is_awaited_only_briefly() -> None:
    demand = Demand(lambda: 1, Leases())
    demand.wanted(2, 2, 0.0)
    assert demand.wanted(1, 2, 0.0) == (1, TURN_S)
    demand.note_fetch(1, 1)
    demand.note_answer(1, 1, FETCH_S)
    assert demand.wanted(1, 2, 0.1) == (1, 0.1)
