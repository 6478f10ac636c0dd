"""The long form of the tests, and the rounds of its random tests: each has the same time.

AIOKAFKA_LITE_TEST_LONG=1 chooses the long form. AIOKAFKA_LITE_TEST_RANDOM_S is the time of a random
test; `make test-all RANDOM_S=3600` sets it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

import pytest

_T = TypeVar("_T")

LONG: Final = os.environ.get("AIOKAFKA_LITE_TEST_LONG") == "1"
RANDOM_S: Final = float(os.environ.get("AIOKAFKA_LITE_TEST_RANDOM_S", "60"))
LONGEST_ROUND_S: Final = 300.0

random_rounds: Final = pytest.mark.timeout(RANDOM_S + LONGEST_ROUND_S)
"""The mark of a test that has rounds by `in_time`."""


def in_time(
    seeds: Iterable[_T], within_s: float = RANDOM_S, *, now: Callable[[], float] = time.monotonic
) -> Iterator[_T]:
    """Yield seeds, one at least, until all are used or the time is over; print how many."""
    ends_at = now() + within_s
    count = 0
    for seed in seeds:
        count += 1
        yield seed
        if now() >= ends_at:
            break
    print(f"{count} rounds")
