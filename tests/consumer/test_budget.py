from __future__ import annotations

from aiokafka_lite.consumer.buffer.budget import ByteBudget, Reservation
from tests.support.for_each import for_each


def reserved(budget: ByteBudget, wanted: int, least: int = 1) -> Reservation:
    """Return a reservation that the budget grants."""
    reservation = budget.reserve(wanted, least)
    assert reservation is not None
    return reservation


def buffered(budget: ByteBudget, size_bytes: int) -> Reservation:
    """Return the reservation of a buffered response."""
    reservation = budget.reserve_nothing()
    reservation.keep(size_bytes)
    return reservation


def test_what_is_left_is_granted_up_to_what_is_wanted() -> None:
    budget = ByteBudget(100, lambda: None)
    first = budget.reserve(60, 10)
    second = budget.reserve(60, 10)
    assert first is not None
    assert second is not None
    assert (first.size_bytes, second.size_bytes) == (60, 40)
    assert budget.reserve(60, 10) is None
    first.release()
    assert budget.used_bytes == 40


def test_an_oversized_batch_gets_through_alone() -> None:
    budget = ByteBudget(100, lambda: None)
    alone = budget.reserve(500, 500)
    assert alone is not None
    assert budget.reserve(1, 1) is None
    alone.release()
    small = budget.reserve(1, 1)
    assert small is not None
    assert budget.reserve(500, 500) is None


def test_release_counts_once_and_is_told_to_who_was_refused() -> None:
    told: list[int] = []
    budget = ByteBudget(100, lambda: told.append(budget.used_bytes))
    reservation = budget.reserve(60, 10)
    assert reservation is not None
    reservation.resize(50)
    assert told == []  # nobody lacks bytes
    assert budget.reserve(60, 60) is None
    reservation.resize(20)
    assert told == [20]
    assert budget.reserve(90, 90) is None
    reservation.release()
    reservation.release()
    assert told == [20, 0]
    assert budget.used_bytes == 0


def test_only_a_release_wakes_who_was_refused_and_once() -> None:
    told: list[int] = []
    budget = ByteBudget(100, lambda: told.append(budget.used_bytes))
    first, second = reserved(budget, 60), reserved(budget, 40)
    assert budget.reserve(1, 1) is None
    first.keep(60)
    assert told == []
    first.release()
    second.release()
    assert told == [40]


def test_only_what_was_received_counts_as_buffered() -> None:
    budget = ByteBudget(100, lambda: None)
    assert budget.buffered_bytes == 0
    kept, waiting = reserved(budget, 60), reserved(budget, 30)
    assert (budget.used_bytes, budget.buffered_bytes) == (90, 0)
    kept.keep(20)
    kept.resize(70)
    assert (budget.used_bytes, budget.buffered_bytes) == (100, 70)
    waiting.resize(10)
    assert (budget.used_bytes, budget.buffered_bytes) == (80, 70)
    kept.resize(100)
    assert not budget.is_over
    kept.resize(101)
    assert budget.is_over
    waiting.release()
    kept.release()
    assert (budget.used_bytes, budget.buffered_bytes, budget.is_over) == (0, 0, False)


def test_handlers_leave_a_quarter_of_the_budget_at_least() -> None:
    told: list[int] = []
    budget = ByteBudget(100, lambda: told.append(budget.room_bytes))
    buffered(budget, 15)
    assert budget.taken_bytes == 15
    budget.take_for_processing(10)
    assert budget.taken_bytes == 25
    assert budget.reserve(76, 76) is None
    budget.take_for_processing(10)
    budget.take_for_processing(90)
    assert (budget.room_bytes, budget.taken_bytes) == (25, 90)
    assert told == []
    budget.take_for_processing(0)
    assert (told, budget.taken_bytes) == ([100], 15)
    assert reserved(budget, 100).size_bytes == 85


@for_each(
    [
        (0, 0, 0, 50),
        (1, 0, 0, 50),
        (2, 0, 0, 25),
        (2, 0, 20, 20),
        (60, 0, 0, 1),
        (1, 40, 0, 30),
        (1, 90, 0, 25),
        (1, 50, 75, 6),
    ]
)
def test_each_source_may_have_two_responses_in_what_decompression_leaves(
    sources: int, headroom: int, processing: int, quota: int
) -> None:
    budget = ByteBudget(100, lambda: None)
    budget.source_count += sources
    budget.inflated(0, headroom)
    budget.take_for_processing(processing)
    assert budget.quota_bytes() == quota


def test_another_source_leaves_each_its_part_of_the_budget() -> None:
    budget = ByteBudget(100, lambda: None)
    budget.source_count += 1
    assert budget.suffices_for_another(25)
    assert not budget.suffices_for_another(26)


def test_what_a_batch_took_is_left_free_for_the_next_until_that_is_decompressed() -> None:
    budget = ByteBudget(100, lambda: None)
    response = buffered(budget, 10)
    assert not budget.is_tight
    response.inflated(20, 20)
    response.inflated(-20, 0)
    assert not budget.is_tight
    free = reserved(budget, 100)
    assert free.size_bytes == 70  # 10 are buffered, and 20 left free
    free.release()
    response.inflated(15, 15)
    free = reserved(budget, 100)
    assert free.size_bytes == 70  # of the 20, 15 are used
    free.release()
    response.inflated(30, 45)
    free = reserved(budget, 100)
    assert free.size_bytes == 45
    response.inflated(0, 45)
    assert not budget.is_tight  # 55 and 45
    response.resize(56)
    assert budget.is_tight
    response.resize(50)
    response.inflated(0, 90)  # half of the budget is left free at most
    assert not budget.is_tight


def test_an_answer_is_kept_beside_what_is_buffered_and_claimed_by_others() -> None:
    budget = ByteBudget(100, lambda: None)
    unexpected = budget.reserve_nothing()
    assert budget.can_keep(unexpected, 500)
    claimed = budget.reserve(60, 60, "claimant")
    assert claimed is not None
    assert budget.can_keep(claimed, 500)
    assert budget.can_keep(unexpected, 40)
    assert not budget.can_keep(unexpected, 41)
    claimed.keep(30)
    assert budget.can_keep(unexpected, 70)
    assert not budget.can_keep(unexpected, 71)
    claimed.release()
    assert budget.can_keep(unexpected, 500)


def test_a_claimant_that_was_refused_comes_before_all_others() -> None:
    told: list[int] = []
    budget = ByteBudget(100, lambda: told.append(budget.used_bytes))
    held = reserved(budget, 80)
    assert budget.reserve(50, 50, "first") is None
    assert budget.reserve(30, 30, "second") is None
    budget.withdraw("second")
    assert budget.reserve(1, 1) is None
    assert told == []
    held.release()
    assert told == [0]
    assert budget.reserve(1, 1) is None
    claimed = budget.reserve(50, 50, "first")
    assert claimed is not None
    assert told == [0, 0]
    assert reserved(budget, 50, 50).size_bytes == 50
    assert budget.reserve(50, 50, "second") is None
    budget.withdraw("second")
    claimed.release()
    assert reserved(budget, 50, 50).size_bytes == 50
