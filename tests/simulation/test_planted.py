"""The planted bugs fit the source. `python -m tests.simulation --planted` finds them."""

from __future__ import annotations

import pytest

from tests.simulation.plan import HANDLERS, SHARING, draw
from tests.simulation.planted import BUGS, Bug
from tests.simulation.planting import planted_source, source_path
from tests.support.for_each import for_each


@for_each(BUGS.values(), BUGS)
def test_bug_fits_the_source(bug: Bug) -> None:
    for module in {edit.module for edit in bug.edits}:
        source = source_path(module).read_text("utf-8")
        planted = planted_source(bug, module, source)
        assert planted != source
        compile(planted, module, "exec", dont_inherit=True)


def test_bug_that_does_not_fit_is_refused() -> None:
    bug = BUGS["commits one too far"]
    with pytest.raises(LookupError, match="0 times"):
        planted_source(bug, bug.edits[0].module, "x = 1\n")


def test_each_bug_can_be_met() -> None:
    ways = ("", HANDLERS, SHARING)
    plans = {way: [draw(seed, way=way) for seed in range(1, 6001)] for way in ways}
    unmet = [bug.name for bug in BUGS.values() if not any(map(bug.can_be_met, plans[bug.way]))]
    assert not unmet
