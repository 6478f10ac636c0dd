"""Each field of a partition has one module that writes it: read from the sources."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from aiokafka_lite import consumer
from aiokafka_lite.consumer.assignment.cursor import Cursor
from tests.support.for_each import for_each

PACKAGE = Path(consumer.__file__).parent
OWNER = "assignment/cursor.py"
FIELDS = frozenset(Cursor.__slots__)


def is_of_a_partition(target: ast.Attribute, path: str) -> bool:
    """Whether what is written may be a partition's: `self` is one in its own module only."""
    owner = ast.unparse(target.value)
    if owner == "self":
        return path == OWNER
    # A node's counts and what is known of a topic have fields of the same names.
    return not owner.endswith(("counts", "known"))


def writers() -> dict[str, set[str]]:
    """Return the modules that write each field, what `__init__` begins with aside."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in PACKAGE.rglob("*.py"):
        path = str(file.relative_to(PACKAGE))
        tree = ast.parse(file.read_text())
        beginnings = {
            id(node)
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef) and function.name == "__init__"
            for node in ast.walk(function)
        }
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, (ast.Store, ast.Del))
                and node.attr in FIELDS
                and id(node) not in beginnings
                and is_of_a_partition(node, path)
            ):
                found[node.attr].add(path)
    return found


WRITERS = writers()


@for_each(sorted(FIELDS - {"tp", "assigned_id"}))
def test_a_field_is_written_by_one_module(field: str) -> None:
    assert len(WRITERS[field]) == 1, sorted(WRITERS[field])


def test_which_partition_it_is_never_changes() -> None:
    assert not WRITERS["tp"]
    assert not WRITERS["assigned_id"]
