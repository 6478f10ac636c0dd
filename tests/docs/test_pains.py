"""docs/pains.md has all rows of both tables, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "pains.md").read_text()
FIRST, SECOND, THIRD = PAGE.split("\n## ")


def rows_of(text: str) -> list[list[str]]:
    """The cells of each row of a table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def named_in(text: str) -> dict[str, list[str]]:
    """The tests of each row, by its number or first report."""
    found: dict[str, list[str]] = {}
    key = ""
    for name, test in re.findall(r"^(\S*) +(\S+::\S+)$", text, re.M):
        key = name or key
        found.setdefault(key, []).append(test)
    return found


ROWS, MORE, NAMED = rows_of(FIRST), rows_of(SECOND), named_in(THIRD)
# What needs a feature that is not there yet.
OPEN = [15, 25]


def reports_in(cell: str) -> Iterator[str]:
    """The reports that a cell names: "CK#1, #2" are two."""
    tracker = ""
    for name, number in re.findall(r"([\w-]*)(#\d+|KAFKA-\d+)", cell):
        tracker = name or tracker
        yield number if number.startswith("KAFKA") else tracker + number


@cache
def functions_of(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@cache
def classes_of(path: Path) -> set[str]:
    """The names that a module defines; a state machine's class is an attribute of another."""
    return {
        name.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign)
        for name in node.targets
        if isinstance(name, ast.Name)
    }


def test_all_thirty_are_there_each_with_a_test() -> None:
    assert [int(row[0]) for row in ROWS] == list(range(1, 31))
    assert all(len(row) == 3 and row[0] in NAMED for row in ROWS)


def test_open_ones_are_marked() -> None:
    assert [int(row[0]) for row in ROWS if row[2].startswith("**Open**")] == OPEN


def test_it_is_told_how_many_are_open() -> None:
    readme = (TESTS.parent / "README.md").read_text()
    words = {7: "seven", 6: "six", 5: "five", 4: "four", 3: "three", 2: "two", 1: "one"}
    number = words[len(OPEN)]
    assert f" {number.capitalize()} problems are open, " in " ".join(PAGE.split())
    assert re.search(
        rf"lists thirty bugs with their tests, {number} of which are open here\.",
        " ".join(readme.split()),
    )


def test_forty_more_are_there_and_every_report_is_named_once() -> None:
    assert len(MORE) == 40
    assert all(len(row) == 2 and all(row) for row in MORE)
    before = {report for row in ROWS for report in reports_in(row[1])}
    found = [list(reports_in(row[0])) for row in MORE]
    assert all(found)
    named = [report for some in found for report in some]
    assert len(named) == len(set(named))
    assert before.isdisjoint(named)


def test_every_test_named_exists() -> None:
    assert list(NAMED) == [row[0].partition(",")[0] for row in ROWS + MORE]
    missing = []
    for row, tests in NAMED.items():
        for path, name, *methods in (test.split("::") for test in tests):
            file = TESTS / path
            names = classes_of(file) if methods else functions_of(file)
            if name not in names:
                missing.append(f"{row}: {path}::{name}")
    assert missing == []
