from __future__ import annotations

from aiokafka_lite.consumer.buffer.budget import ByteBudget


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
