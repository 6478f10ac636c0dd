"""docs/pains.md has all thirty, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "pains.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if re.match(r"\| \d+ \|", line)
]
# What needs a feature that is not there yet.
OPEN = [15, 25]


def functions_of(path: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def test_all_thirty_are_there_each_with_a_test() -> None:
    assert [int(row[0]) for row in ROWS] == list(range(1, 31))
    assert all(len(row) == 4 and "test_" in row[3] for row in ROWS)


def test_open_ones_are_marked() -> None:
    assert [int(row[0]) for row in ROWS if row[2].startswith("**Open**")] == OPEN


def test_it_is_told_how_many_are_open() -> None:
    readme = (TESTS.parent / "README.md").read_text()
    words = {7: "seven", 6: "six", 5: "five", 4: "four", 3: "three", 2: "two", 1: "one"}
    number = words[len(OPEN)]
    assert PAGE.splitlines()[0].endswith(f", but for {number}")
    assert f"\n{number.capitalize()} are open: " in PAGE
    assert re.search(rf"Thirty things that go wrong .*?, {number} of them still\s+open", readme)


def test_every_test_named_exists() -> None:
    missing = []
    for row in ROWS:
        for path, _, name in re.findall(r"`([\w/]+\.py)(::(\w+))?`", row[3]):
            file = TESTS / path
            if not file.exists() or (name and name not in functions_of(file)):
                missing.append(f"{row[0]}: {path}::{name}")
    assert missing == []
