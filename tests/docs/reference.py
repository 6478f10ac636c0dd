"""All that is public, and where the reference has it."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, get_origin

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


# What the pages of the reference name is public, and nothing else.
MODULES = tuple(
    name
    for page in (REFERENCE / "consumer.md", *sorted(REFERENCE.glob("*.md")))
    for name in re.findall(r"^::: ([\w.]+)$", page.read_text("utf-8"), re.M)
)


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
        for each in module.__all__:
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
