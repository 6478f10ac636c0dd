"""Which of the two per-message paths a test runs with."""

from __future__ import annotations

import pytest

from tests.support.iterations import ITERATIONS, Iteration


@pytest.fixture(params=ITERATIONS)
def iteration(request: pytest.FixtureRequest) -> Iteration:
    """The classes of one per-message path, used by all that is made in the test."""
    name: str = request.param
    return ITERATIONS[name]
