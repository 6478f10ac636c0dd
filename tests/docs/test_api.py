"""The API reference: what is public has a docstring, and what that says of errors is complete."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, get_origin

from aiokafka_lite import errors

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
# What the pages of the reference name is public, and nothing else.
MODULES = tuple(
    name
    for page in (REFERENCE / "consumer.md", *sorted(REFERENCE.glob("*.md")))
    for name in re.findall(r"^::: ([\w.]+)$", page.read_text("utf-8"), re.M)
)
# What methods end with that is no error.
ENDS = {"StopAsyncIteration", "NotImplementedError"}


class Documented(NamedTuple):
    """Something public, and where the reference has it."""

    module: str
    anchor: str
    function: Callable[..., object] | None
    docstring: str | None


def public() -> Iterator[Documented]:
    """Everything that the reference promises."""
    for name in MODULES:
        module = importlib.import_module(name)
        names: list[str] = getattr(module, "__all__", None) or [
            key
            for key, value in vars(module).items()
            if not key.startswith("_") and getattr(value, "__module__", "") == name
        ]
        assert names, name
        for each in names:
            if each.startswith("__"):
                continue
            value = getattr(module, each)
            is_function = inspect.isfunction(value)
            # Before Python 3.11 an alias such as Callable[..., object] passes for a class.
            is_class = inspect.isclass(value) and get_origin(value) is None
            docstring = value.__doc__ if is_function or is_class else "a value"
            yield Documented(name, each, value if is_function else None, docstring)
            if is_class and value.__module__.startswith("aiokafka_lite"):
                yield from methods(name, value)


def methods(module: str, cls: type) -> Iterator[Documented]:
    for name in dir(cls):
        # What a public parent gives is shown there.
        writer = next(base for base in cls.__mro__ if name in vars(base))
        shown_in = next((each for each in (module, *MODULES) if is_public_in(each, writer)), None)
        owner = cls if shown_in is None else writer
        member = inspect.getattr_static(cls, name)
        if isinstance(member, (classmethod, staticmethod)):
            member = member.__func__
        function = member.fget if isinstance(member, property) else member
        is_ours = str(getattr(function, "__module__", "")).startswith("aiokafka_lite")
        if not name.startswith("_") and inspect.isfunction(function) and is_ours:
            docstring = inspect.getdoc(getattr(cls, name)) or function.__doc__
            yield Documented(shown_in or module, f"{owner.__name__}.{name}", function, docstring)


def is_public_in(module: str, cls: type) -> bool:
    return cls.__name__ in getattr(importlib.import_module(module), "__all__", ())


EVERYTHING = list(public())


def test_everything_public_says_what_it_is() -> None:
    assert len(EVERYTHING) > 700
    silent = [f"{each.module}: {each.anchor}" for each in EVERYTHING if not each.docstring]
    assert silent == []


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
