"""What tests may reach for, and how modules import: read from their sources."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from aiokafka_lite import consumer

TESTS = Path(__file__).parent
PACKAGE = Path(consumer.__file__).parent
# They answer what tests ask about the inside of a consumer, so that a change there is one here.
INSIDERS = {
    "support/inside.py",
    "support/iterations.py",  # builds iterators without a consumer
    "support/small_answers.py",  # compares two insides, field by field
}
# Attributes of aiokafka's that programs use: public in all but their names.
AIOKAFKA_NAMES = {
    "_group_instance_id",
    "_bootstrap_servers",
    "_client",
    "_client_id",
    "_closed",
    "_coordinator",
    "_partition",
    "_partitioner",
    "_sender",
    "_max_poll_records",
    "_metadata",
    "_wait_on_metadata",
    "_group_id",
    "_rejoin_needed_fut",
    "_subscription",
    "_txn_manager",
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


class Module(NamedTuple):
    """A module of the tests."""

    path: str
    # What is named with a dot and an underscore, of anything but the object itself.
    privates: list[ast.Attribute]
    # The modules of the tests that it imports, or imports names of.
    imports: set[str]


def read(file: Path) -> Module:
    """Read what a module reaches for."""
    privates, imports = [], set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Attribute):
            if is_private(node.attr) and not is_own(node):
                privates.append(node)
        elif isinstance(node, ast.Import):
            imports |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imports |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return Module(
        file.relative_to(TESTS).as_posix(),
        privates,
        {module for module in imports if module.startswith("tests.")},
    )


# Most modules name no private attribute but their own, and import nothing of a test or of another
# area. Each pattern begins with a literal, for which `re` searches quickly.
WORTH_READING = (
    re.compile(r"\._(?<!\bself\._)(?<!\bcls\._)(?<!super\(\)\._)[A-Za-z]"),
    re.compile(r"import (?:[^\n]*|\([^)]*)\btest_"),
    re.compile(r"from tests(?: import |\.[^\n]*\btest_)"),
)


def is_worth_reading(file: Path) -> bool:
    """Whether there may be something in a module that one of the tests would find."""
    text = file.read_text()
    allowed = {"support", "conftest", file.relative_to(TESTS).parts[0]}
    areas = set(re.findall(r"tests\.(\w+)", text))
    return not areas <= allowed or any(pattern.search(text) for pattern in WORTH_READING)


@cache
def modules() -> list[Module]:
    """Read every module of the tests in which there may be something to find."""
    return [read(file) for file in sorted(TESTS.rglob("*.py")) if is_worth_reading(file)]


def test_only_one_place_reaches_into_a_consumer() -> None:
    names = private_names()
    assert {"_engine", "_buffer"} <= names
    found = [
        f"{module.path}:{node.lineno} {ast.unparse(node)}"
        for module in modules()
        if module.path not in INSIDERS
        for node in module.privates
        if node.attr in names
    ]
    assert not found, "ask what users can ask, or add a question to tests/support/inside.py"


def test_no_test_imports_another_one() -> None:
    found = [
        f"{module.path}: {imported}"
        for module in modules()
        for imported in module.imports
        if any(part.startswith("test_") for part in imported.split("."))
    ]
    assert not found, "what several tests use is in tests/support, or beside them"


def test_what_tests_of_several_areas_use_is_in_support() -> None:
    found = [
        f"{module.path}: {imported}"
        for module in modules()
        for imported in module.imports
        if imported.split(".")[1] not in ("support", "conftest", module.path.split("/")[0])
    ]
    assert not found


def test_the_layers_of_the_broker_hold_for_types_too() -> None:
    """Import-linter ignores imports for type checking. They once formed a circle of 20 files."""
    broker = PACKAGE.parent / "broker"
    found = {file.name for file in broker.rglob("*.py") if "TYPE_CHECKING" in file.read_text()}
    assert found == {"cluster.py", "server.py"}, "these import optional parts only"
