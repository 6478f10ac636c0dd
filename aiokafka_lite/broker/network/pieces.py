"""Splits a large request into small ones, and joins their responses.

The lists of a request and of its response have the same shape (broker/refusals.py). If a handler
answers each element independently, splitting does not change the response.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, cast

from aiokafka_lite.broker.refusals import Level, levels_of
from aiokafka_lite.protocol.schema import Request, Response, Struct

# The elements of the first piece. The time that a piece takes decides the size of the next.
FIRST_PIECE: Final = 32
LARGEST_PIECE: Final = 1_000


class Piece(NamedTuple):
    """A part of a request.

    Attributes:
        depth: On this number of levels, its first element continues the previous piece's last one.
    """

    request: Request[Response]
    depth: int


class Shape:
    def __init__(self, levels: Sequence[Level]) -> None:
        self.asked: Final = [level.asked_in for level in levels[1:] if level.asked_in is not None]
        self.answered: Final = [
            level.answered_in or "" for level in levels[1 : len(self.asked) + 1]
        ]

    def weight(self, item: object, limit: int, level: int = 0) -> int:
        """Count the elements of the innermost lists, up to the limit."""
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
        name = self.answered[level]
        for field in into.schema:
            if field.name == name:
                continue
            if field.is_list:  # nodes, such as `node_endpoints`
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
    return Shape(levels_of(request, version))


class Pieces:
    """Splits one request. The `size` in elements may change between two pieces."""

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
