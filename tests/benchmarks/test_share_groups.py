"""How members of share groups are judged: late releases, repeats, and what the client told."""

from __future__ import annotations

import pytest

from benchmarks.catalogue import QUICK, scenarios
from benchmarks.contestants.sharing import ACCEPTED, LOST, UNKNOWN, Row
from benchmarks.goals import GOALS
from benchmarks.share_groups import release_delays_ns, repeats, unreported
from tests.support.share_groups import FinishedRecords

BEGIN_NS, END_NS = 0, 1_000


def row(offset: int, ended: int, fate: int = ACCEPTED, *, began: int = 1, count: int = 1) -> Row:
    return Row(0, offset, count, began, ended, fate)


async def delays_of(seen: list[tuple[int, int]], *rows: Row) -> list[int]:
    async def no_end() -> int:
        return 0

    finished = FinishedRecords("127.0.0.1:1", "group", 1.0, no_end)
    finished.seen[:] = seen
    return release_delays_ns(finished, rows, BEGIN_NS, END_NS)


async def test_a_delay_ends_when_the_cluster_has_as_many_finished_records() -> None:
    seen = [(20, 1), (50, 3)]
    assert await delays_of(seen, row(0, 12), row(1, 30), row(2, 31)) == [8, 19, 20]


async def test_records_before_the_first_ones_of_the_group_count_as_finished() -> None:
    assert await delays_of([(5, 70), (50, 72)], row(71, 45), row(70, 10)) == [5, 40]


async def test_records_outside_of_the_window_or_not_released_have_no_delay() -> None:
    seen = [(1_100, 1), (1_200, 2)]
    assert await delays_of(seen, row(0, 1_050), row(1, 1_060), row(2, 1_070)) == []
    assert await delays_of(seen, row(0, 900)) == [200]


@pytest.mark.parametrize(("fate", "silent"), [(LOST, 0), (UNKNOWN, 1), (ACCEPTED, 1)])
def test_a_record_that_comes_again_is_reported_only_by_a_lost_lock(fate: int, silent: int) -> None:
    rows = [row(7, 10, fate), row(8, 10), row(7, 40, began=30, count=2)]
    found = repeats(rows)
    assert [(before.offset, after.delivery_count) for before, after in found] == [(7, 2)]
    assert unreported(found) == silent


def test_each_scenario_of_share_groups_has_goals() -> None:
    names = {each.name for each in scenarios(QUICK) if each.name.startswith("share-")}
    assert names == {each.scenario for each in GOALS if each.scenario.startswith("share-")}
