"""The API reference: what is public has a docstring, and what that says of errors is complete."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator

from aiokafka_lite import as_aiokafka, errors
from tests.docs.reference import EVERYTHING, MODULES
from tests.support.for_each import for_each

# What methods end with that is no error.
ENDS = {"StopAsyncIteration", "NotImplementedError"}


def test_everything_public_says_what_it_is() -> None:
    assert len(EVERYTHING) > 700
    silent = [f"{each.module}: {each.anchor}" for each in EVERYTHING if not each.docstring]
    assert silent == []


def defined(module: str) -> ast.Module:
    """A public module's source."""
    return ast.parse(inspect.getsource(importlib.import_module(module)))


# Packages that only lead to others have nothing but a docstring.
PUBLIC = sorted(
    module
    for module in {*MODULES, *(f"aiokafka_lite.{name}" for name in as_aiokafka.MODULES)}
    if any(not isinstance(each, ast.Expr | ast.ImportFrom) for each in defined(module).body)
)


@for_each(PUBLIC)
def test_a_public_module_lists_its_names_for_tools_that_do_not_run_it(module: str) -> None:
    (listed,) = (
        ast.literal_eval(each.value)
        for each in defined(module).body
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__all__"
    )
    assert isinstance(listed, list)
    assert listed
    assert all(isinstance(name, str) for name in listed)
    assert len(set(listed)) == len(listed)
    assert [name for name in listed if not hasattr(importlib.import_module(module), name)] == []


def test_what_a_method_raises_is_in_its_docstring() -> None:
    untold = [
        f"{each.module}: {each.anchor} raises {name}"
        for each in EVERYTHING
        if each.function is not None
        for name in raised(each.function)
        if not re.search(rf"\b{name}\b", (each.docstring or "").partition("Raises:")[2])
    ]
    assert untold == []


def raised(function: Callable[..., object]) -> Iterator[str]:
    """The classes that a function raises by name, itself."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and node.exc is not None:
            called = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            name = ast.unparse(called).split("(")[0].split(".")[0]
            if name[0].isupper() and name not in ENDS:
                yield name


def test_errors_named_in_docstrings_exist() -> None:
    known = {*vars(errors), *vars(builtins), *(each.anchor for each in EVERYTHING)}
    unknown = [
        f"{each.module}: {each.anchor} names {name}"
        for each in EVERYTHING
        for name in errors_named(each.docstring or "")
        if name not in known and "." not in name
    ]
    assert unknown == []


def errors_named(docstring: str) -> Iterator[str]:
    """The names at the head of each entry under "Raises"."""
    section = re.search(r"Raises:\n((?:[ ]+.*\n?|\n)+)", inspect.cleandoc(docstring))
    if section is not None:
        indent = min(len(line) - len(line.lstrip()) for line in section[1].splitlines() if line)
        for line in section[1].splitlines():
            head = re.match(rf"[ ]{{{indent}}}(\w[\w., ]*):", line)
            if head:
                yield from (name.strip() for name in head[1].split(","))
