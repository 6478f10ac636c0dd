"""Write and compile Python source, so that tracebacks and debuggers show its lines."""

from __future__ import annotations

import contextlib
import itertools
import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar, cast

F = TypeVar("F", bound=Callable[..., object])
_serial = itertools.count(1)


def compile_function(name: str, lines: Iterable[str], constants: Mapping[str, object]) -> F:  # type: ignore[type-var] # the caller says what it compiles
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
    exec(compile(text, filename, "exec"), dict(constants), defined)  # noqa: S102 -- our own source
    (function,) = defined.values()
    return cast("F", function)


class SourceWriter:
    """A function's source while it is written.

    Args:
        signature: The line that starts the definition.
        constants: What the source refers to by name.
    """

    def __init__(self, signature: str, constants: Mapping[str, object]) -> None:
        self.lines = [signature]
        self.constants = dict(constants)
        self._indent = 1
        self._names = itertools.count(1)

    def line(self, text: str) -> None:
        self.lines.append("    " * self._indent + text)

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Indent what is written within, under a line that opens a block."""
        self.line(head)
        self._indent += 1
        yield
        self._indent -= 1

    def fresh(self, name: str) -> str:
        """Return a name that is not used yet."""
        return f"{name}{next(self._names)}"

    def constant(self, name: str, value: object) -> str:
        """Give a value a name and return that."""
        name = self.fresh(name)
        self.constants[name] = value
        return name
