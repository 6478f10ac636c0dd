"""How a member that leaves divides the time that it has."""

from __future__ import annotations

import pytest

from aiokafka_lite.consumer.membership.grouped import LEAVE_MAX_S, ending


@pytest.mark.parametrize(
    ("now", "deadline", "commit_by", "leave_by"),
    [
        (100, 110, 109.8 - LEAVE_MAX_S, 109.8),
        (100, 104, 102.92, 103.92),  # a quarter is less
        (100, 90, 90, 90),  # it is too late
    ],
)
def test_the_commit_has_what_the_goodbye_leaves(
    now: float, deadline: float, commit_by: float, leave_by: float
) -> None:
    assert ending(now, deadline) == pytest.approx((commit_by, leave_by))
