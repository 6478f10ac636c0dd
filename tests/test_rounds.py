from __future__ import annotations

import itertools

import pytest

from tests.support.rounds import in_time


@pytest.mark.parametrize(
    ("within_s", "seeds"), [(0.0, [7]), (2.5, [7, 8, 9]), (9.0, [7, 8, 9, 10])]
)
def test_rounds_end_with_the_time_or_the_seeds(
    within_s: float, seeds: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    clock = itertools.count(100.0)
    assert list(in_time(range(7, 11), within_s, now=lambda: next(clock))) == seeds
    assert capsys.readouterr().out == f"{len(seeds)} rounds\n"
