"""docs/reliability.md is the page of its rows and outcomes, and every test that it names exists."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.faults import page
from tests.faults.rows import ROWS, SECTIONS

TESTS = Path(__file__).parents[1]


@cache
def functions_of(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_the_page_is_up_to_date_and_every_test_that_it_names_exists() -> None:
    assert page.PAGE.read_text() == page.page(), "run python -m tests.faults.page"
    assert sum(map(len, SECTIONS.values())) == len(ROWS) == 72
    named = [(row.name, *test.split("::")) for row in ROWS.values() for test in row.tests]
    missing = [each for each in named if each[2] not in functions_of(TESTS / each[1])]
    assert missing == []
    assert {name for name, _, _ in named} == set(ROWS)
    outcomes = page.load()
    assert set(outcomes) <= set(ROWS)
    ours = {
        (row, variant): by_client["aiokafka_lite"]
        for row, variants in outcomes.items()
        for variant, by_client in variants.items()
        if "aiokafka_lite" in by_client
    }
    assert [each for each, outcome in ours.items() if page.is_a_fault(outcome)] == []
    older = {"early": {"aiokafka 0.13.0": "hangs"}, "late": {"aiokafka 0.14.0": "hangs"}}
    assert page.cell(older, "aiokafka", "0.14.0", "–") == "hangs in 0.13.0 (early) · hangs (late)"
    assert page.cell(older, "kafka-python", "3.0", "–") == "–"
    assert page.newest({"CN-1": older}, "aiokafka") == "0.14.0"
