"""Leader epochs of a log: where each began and ended, and what a cut leaves of them."""

from __future__ import annotations

from aiokafka_lite.broker.log.storage import LeaderEpochs
from tests.support.for_each import for_each

ENTRIES = [(0, 0), (2, 3), (5, 7)]


def test_epoch_without_records_is_replaced_and_an_older_one_is_passed_over() -> None:
    epochs = LeaderEpochs([(0, 0), (1, 5), (2, 5), (2, 8), (1, 9)])
    assert epochs.entries == [(0, 0), (2, 5)]
    assert (epochs.latest, LeaderEpochs().latest) == (2, -1)


def test_offset_belongs_to_the_epoch_that_began_last_before_it() -> None:
    epochs = LeaderEpochs(ENTRIES)
    assert [epochs.epoch_of(offset) for offset in range(9)] == [0, 0, 0, 2, 2, 2, 2, 5, 5]
    assert LeaderEpochs([(4, 3)]).epoch_of(2) == -1


@for_each(
    [
        (0, ENTRIES),
        (1, [(0, 1), (2, 3), (5, 7)]),
        (3, [(2, 3), (5, 7)]),
        (6, [(2, 6), (5, 7)]),
        (9, [(5, 9)]),
    ]
)
def test_oldest_epoch_that_is_left_begins_with_the_log(
    start: int, left: list[tuple[int, int]]
) -> None:
    epochs = LeaderEpochs(ENTRIES)
    epochs.trim_before(start)
    assert epochs.entries == left
    later = LeaderEpochs([(4, 3)])
    later.trim_before(2)
    assert later.entries == [(4, 3)]


@for_each([(0, 0), (3, 1), (4, 2), (7, 2), (8, 3)])
def test_epochs_that_began_behind_a_cut_are_forgotten(end: int, kept: int) -> None:
    epochs = LeaderEpochs(ENTRIES)
    epochs.truncate(end)
    assert epochs.entries == ENTRIES[:kept]
    assert LeaderEpochs(ENTRIES).end_of(9, 20) == (-1, -1)
