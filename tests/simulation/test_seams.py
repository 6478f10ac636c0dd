"""The plans of the campaign have each pair of features often enough."""

from __future__ import annotations

from tests.simulation import seams
from tests.simulation.plan import draw

SEEDS = range(1, 10_001)


def test_every_pair_of_features_meets() -> None:
    counts = seams.meetings(map(draw, SEEDS))
    assert all(counts.values()), seams.table(counts, len(SEEDS))
