"""Write and compile Python source, so that tracebacks and debuggers show its lines."""

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
    """Take all steps at once and return what comes of them."""
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: T = end.value
        return result


def compile_function(name: str, lines: Iterable[str], constants: Mapping[str, object]) -> F:  # type: ignore[type-var] # the caller says what it compiles
    """Compile one function definition and return the function.

    Args:
        name: What the source is called in tracebacks.
        lines: The definition; nothing in it comes from outside the declarations.
        constants: The function's globals.
    """
    source = [f"{line}\n" for line in lines]
    text = "".join(source)
    filename = f"<aiokafka_lite {name} #{next(_serial)}>"
    linecache.cache[filename] = (len(text), None, source, filename)
    defined: dict[str, object] = {}
    exec(compile(text, filename, "exec"), dict(constants), defined)  # noqa: S102 -- our own source
    (function,) = defined.values()
    return cast("F", function)


class SourceWriter:
    """A function's source while it is written.

    Args:
        signature: The line that starts the definition.
        constants: What the source refers to by name.
        in_steps: Write a generator function, whose loops over elements yield after a step.
    """

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

    def count(self, elements: str = "1") -> None:
        """Count elements that were read or written, or are about to be; maybe end the step."""
        if self.in_steps:
            self.line(f"left -= {elements}")
            with self.block("if left < 0:"):
                self.line(f"left = {ELEMENTS_PER_STEP}")
                self.line("yield")

    def end(self, returned: str) -> None:
        """Write the return; what follows it makes a generator of a function without loops, too."""
        self.line(f"return {returned}".rstrip())
        if self.in_steps:
            self.line("yield")

    def line(self, text: str) -> None:
        self.lines.append(self._indent + text)

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Indent what is written within, under a line that opens a block."""
        self.line(head)
        outer, self._indent = self._indent, self._indent + "    "
        yield
        self._indent = outer

    def fresh(self, name: str) -> str:
        """Return a name that is not used yet."""
        return f"{name}{next(self._names)}"

    def constant(self, name: str, value: object) -> str:
        """Give a value a name and return that."""
        name = self.fresh(name)
        self.constants[name] = value
        return name
