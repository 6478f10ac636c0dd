from __future__ import annotations

import random

from aiokafka_lite.client.backoff import JITTER, Backoff


def test_delays_double_up_to_the_last_with_jitter() -> None:
    backoff = Backoff(0.05, 1.0, random.Random(1))
    for expected in (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        delay_s = backoff.next_delay_s()
        assert expected * (1 - JITTER) <= delay_s <= expected * (1 + JITTER)


def test_jitter_goes_both_ways() -> None:
    rng = random.Random(1)
    firsts_s = [Backoff(1.0, 1.0, rng).next_delay_s() for _ in range(50)]
    assert min(firsts_s) < 0.9
    assert max(firsts_s) > 1.1


def test_reset_starts_over() -> None:
    backoff = Backoff(0.05, 1.0, random.Random(1))
    for _ in range(5):
        backoff.next_delay_s()
    backoff.reset()
    assert backoff.next_delay_s() <= 0.05 * (1 + JITTER)


def test_delay_stays_finite_after_days_of_failures() -> None:
    backoff = Backoff(0.05, 1.0, random.Random(1))
    backoff.failures = 10**6
    assert backoff.next_delay_s() <= 1 + JITTER


def test_same_seed_gives_same_delays() -> None:
    one, other = (Backoff(0.05, 1.0, random.Random(7)) for _ in range(2))
    assert [one.next_delay_s() for _ in range(9)] == [other.next_delay_s() for _ in range(9)]


def test_last_delay_below_the_first_is_raised_to_it() -> None:
    assert Backoff(0.5, 0.1, random.Random(1)).next_delay_s() >= 0.5 * (1 - JITTER)
