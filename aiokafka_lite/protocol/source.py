"""Write and compile Python source, whose lines tracebacks and debuggers show."""

from __future__ import annotations

import contextlib
import itertools
import linecache
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Final, TypeAlias, TypeVar, cast

F = TypeVar("F", bound=Callable[..., object])
T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""Work in pieces: where it yields, others may run, or it may be closed for good."""

ELEMENTS_PER_STEP: Final = 100
"""How many elements of arrays a step is: less than a millisecond's work for the largest."""

_serial = itertools.count(1)


def run_to_end(steps: Steps[T]) -> T:
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: T = end.value
        return result


def compile_function(name: str, lines: Iterable[str], constants: Mapping[str, object]) -> F:  # type: ignore[type-var] # the caller says what it compiles
    """Compile one function definition. `name` is the file name in tracebacks."""
    source = [f"{line}\n" for line in lines]
    text = "".join(source)
    filename = f"<aiokafka_lite {name} #{next(_serial)}>"
    linecache.cache[filename] = (len(text), None, source, filename)
    defined: dict[str, object] = {}
    exec(compile(text, filename, "exec"), dict(constants), defined)  # noqa: S102 -- our own source
    (function,) = defined.values()
    return cast("F", function)


class SourceWriter:
    """The source of a function, or `in_steps` of a generator that yields in loops over elements."""

    def __init__(
        self, signature: str, constants: Mapping[str, object], *, in_steps: bool = False
    ) -> None:
        self.lines = [signature]
        self.constants = dict(constants)
        self.in_steps = in_steps
        self._indent = "    "
        self._names = itertools.count()
        if in_steps:
            self.line(f"left = {ELEMENTS_PER_STEP}")

    def compile(self, name: str) -> F:  # type: ignore[type-var] # as `compile_function`
        return compile_function(name, self.lines, self.constants)

    def count(self, elements: str = "1") -> None:
        """Count elements, and end the step after `ELEMENTS_PER_STEP`."""
        if self.in_steps:
            self.line(f"left -= {elements}")
            with self.block("if left < 0:"):
                self.line(f"left = {ELEMENTS_PER_STEP}")
                self.line("yield")

    def end(self, returned: str) -> None:
        """Write the return. A yield behind it makes even a function without loops a generator."""
        self.line(f"return {returned}".rstrip())
        if self.in_steps:
            self.line("yield")

    def line(self, text: str) -> None:
        self.lines.append(self._indent + text)

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        outer, self._indent = self._indent, self._indent + "    "
        yield
        self._indent = outer

    def fresh(self, name: str) -> str:
        return f"{name}{next(self._names)}"

    def constant(self, name: str, value: object) -> str:
        name = self.fresh(name)
        self.constants[name] = value
        return name
