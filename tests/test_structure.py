"""What tests may reach for: read from their sources."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from aiokafka_lite import consumer

TESTS = Path(__file__).parent
PACKAGE = Path(consumer.__file__).parent
# They answer what tests ask about the inside of a consumer, so that a change there is one here.
INSIDERS = {
    "support/inside.py",
    "support/iterations.py",  # builds iterators without a consumer
}
# Attributes of aiokafka's that programs use: public in all but their names.
AIOKAFKA_NAMES = {
    "_bootstrap_servers",
    "_client",
    "_client_id",
    "_closed",
    "_coordinator",
    "_group_id",
    "_rejoin_needed_fut",
    "_subscription",
}


def is_own(node: ast.Attribute) -> bool:
    """Whether it is an attribute of the object whose method names it."""
    owner = node.value
    if isinstance(owner, ast.Call):
        owner = owner.func
    return isinstance(owner, ast.Name) and owner.id in ("self", "cls", "super")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names() -> set[str]:
    """Return the private attributes and methods of whatever a consumer consists of."""
    names: set[str] = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and is_own(node):
                names.add(node.attr)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                names.add(node.name)
    return {name for name in names if is_private(name)} - AIOKAFKA_NAMES


@cache
def modules() -> list[tuple[str, ast.Module]]:
    """Return the path of each module of the tests, and its tree."""
    return [
        (file.relative_to(TESTS).as_posix(), ast.parse(file.read_text()))
        for file in sorted(TESTS.rglob("*.py"))
    ]


def test_only_one_place_reaches_into_a_consumer() -> None:
    names = private_names()
    assert {"_engine", "_buffer"} <= names
    found = [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for path, tree in modules()
        if path not in INSIDERS
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in names and not is_own(node)
    ]
    assert not found, "ask what users can ask, or add a question to tests/support/inside.py"
