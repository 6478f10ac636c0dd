"""Which of the two per-message paths a test runs with."""

from __future__ import annotations

import pytest

from tests.support.iterations import ITERATIONS, Iteration


@pytest.fixture(params=["compiled", "python"])
def iteration(request: pytest.FixtureRequest) -> Iteration:
    """The classes of one per-message path, used by all that is made in the test."""
    if request.param not in ITERATIONS:
        pytest.skip("the extension is not built: install a C compiler and reinstall")
    return ITERATIONS[request.param]
