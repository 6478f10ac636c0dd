"""Compile generated Python, so that tracebacks and debuggers show its lines."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Iterable
from typing import TypeVar, cast

F = TypeVar("F", bound=Callable[..., object])
_serial = itertools.count(1)


def compile_function(name: str, lines: Iterable[str], constants: dict[str, object]) -> F:  # type: ignore[type-var]
    """Compile one function definition and return the function.

    Args:
        name: What the source is called in tracebacks.
        lines: The definition; nothing in it comes from outside the declarations.
        constants: The function's globals.
    """
    text = "\n".join(lines) + "\n"
    filename = f"<aiokafka_lite {name} #{next(_serial)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    defined: dict[str, object] = {}
    exec(compile(text, filename, "exec"), constants, defined)  # noqa: S102 -- our own declarations
    (function,) = defined.values()
    return cast("F", function)
