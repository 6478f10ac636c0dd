"""Large requests cut into small ones, and the answers to these put together.

A request names things in lists, and these lists hold lists; its answer has lists of the same shape
(see broker/refusals.py). Where each element is answered on its own, a request for a hundred
thousand of them says the same as many requests for a few, one after the other.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, cast

from aiokafka_lite.broker.refusals import Level, levels_of
from aiokafka_lite.protocol.schema import Request, Response, Struct
from aiokafka_lite.protocol.source import SourceWriter, compile_function
from aiokafka_lite.protocol.wire import Array, Nested, Wire

# So many elements are handled at once; how many follow depends on how long they take.
FIRST_PIECE: Final = 32
# Answers with no more elements than that are sent at once.
LARGEST_SMALL: Final = 100
LARGEST_PIECE: Final = 1_000


def is_large(answer: Response) -> bool:
    """Say whether an answer has so many elements that it is better sent in slices."""
    return _counter(type(answer))(answer) > LARGEST_SMALL


@functools.cache
def _counter(cls: type[Response]) -> Callable[[Response], int]:
    """Return a function that counts the elements of all lists, until there are many."""
    source = SourceWriter("def count(m0):", {})
    source.line("n = 0")
    _count(source, cls, 0)
    source.end("n")
    return compile_function(f"count({cls.__name__})", source.lines, source.constants)


def _count(source: SourceWriter, cls: type[Struct], depth: int) -> None:
    lists = _lists(cls)
    for name, _ in lists:
        source.line(f"n += len(m{depth}.{name} or ())")
    if not lists:
        return
    with source.block(f"if n > {LARGEST_SMALL}:"):
        source.line("return n")
    for name, element in lists:
        if isinstance(element, Nested) and _lists(element.struct):
            with source.block(f"for m{depth + 1} in m{depth}.{name} or ():"):
                _count(source, element.struct, depth + 1)


def _lists(cls: type[Struct]) -> list[tuple[str, Wire]]:
    """Return the lists of a struct, and of what they are."""
    return [(f.name, f.wire.element) for f in cls.schema if isinstance(f.wire, Array)]


class Piece(NamedTuple):
    """A part of a request.

    Attributes:
        depth: On how many levels its first element goes on with the last of the piece before.
    """

    request: Request[Response]
    depth: int


class Shape:
    """The lists of a request and of its answer, from the outermost on."""

    def __init__(self, levels: Sequence[Level]) -> None:
        self.asked: Final = [level.asked_in for level in levels[1:] if level.asked_in is not None]
        self.answered: Final = [
            level.answered_in or "" for level in levels[1 : len(self.asked) + 1]
        ]

    def weight(self, item: object, limit: int, level: int = 0) -> int:
        """Count the elements of the innermost lists; stop where there are more than the limit."""
        if level == len(self.asked):
            return 1
        inner = getattr(item, self.asked[level]) or ()
        level += 1
        if level == len(self.asked):
            return len(inner) or 1
        weight = 0
        for each in inner:
            weight += self.weight(each, limit, level)
            if weight > limit:
                break
        return weight or 1

    def join(self, into: Struct, more: Struct, depth: int, level: int = 0) -> None:
        """Add the answer to a piece to the answer to all before it."""
        name = self.answered[level]
        for field in into.schema:
            if field.name == name:
                continue
            if field.is_list:  # nodes that it names
                known, found = getattr(into, field.name) or [], getattr(more, field.name) or []
                setattr(into, field.name, [*known, *(each for each in found if each not in known)])
            elif field.name.startswith("error_") and not getattr(into, field.name):
                setattr(into, field.name, getattr(more, field.name))
        known, found = getattr(into, name), getattr(more, name)
        if depth and known and found:
            self.join(known[-1], found[0], depth - 1, level + 1)
            found = found[1:]
        known.extend(found)


@functools.cache
def shape_of(request: type[Request[Response]], version: int) -> Shape:
    """Return the shape of a request in a version."""
    return Shape(levels_of(request, version))


class Pieces:
    """Cuts one request.

    Attributes:
        size: How many elements the next piece has; may be changed between two of them.
    """

    def __init__(self, request: Request[Response], shape: Shape) -> None:
        self.size = FIRST_PIECE
        self._request = request
        self._shape = shape

    def __iter__(self) -> Iterator[Piece]:
        for request, depth in self._cut(self._request, 0):
            yield Piece(cast("Request[Response]", request), depth)

    def _cut(self, parent: Struct, level: int) -> Iterator[tuple[Struct, int]]:
        name = self._shape.asked[level]
        items = getattr(parent, name)
        if not items:
            yield parent, 0
            return
        taken: list[object] = []
        weight = 0
        for item in items:
            of_item = self._shape.weight(item, self.size, level + 1)
            if taken and weight + of_item > self.size:
                yield _with(parent, name, taken), 0
                taken, weight = [], 0
            if of_item > self.size and isinstance(item, Struct):
                for number, (part, depth) in enumerate(self._cut(item, level + 1)):
                    yield _with(parent, name, [part]), depth + 1 if number else 0
                continue
            taken.append(item)
            weight += of_item
        if taken:
            yield _with(parent, name, taken), 0


def _with(parent: Struct, name: str, items: list[object]) -> Struct:
    part = copy.copy(parent)
    setattr(part, name, items)
    return part
