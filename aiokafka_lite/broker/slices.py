"""Work in slices of the loop's time, with other work in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from contextlib import closing
from heapq import merge
from itertools import islice
from typing import Final, Generic, TypeVar

from aiokafka_lite.protocol.source import Steps

# The time of a slice of work, after which other work of the loop runs.
TIME_SLICE_S: Final = 0.001
# The number of names that are sorted at once, in less than a slice.
NAMES_AT_ONCE: Final = 1_000

T = TypeVar("T")
KeyT = TypeVar("KeyT", bound=Hashable)


class LoopSlices:
    __slots__ = ("_ends_at", "_now_s")

    def __init__(self) -> None:
        self._now_s = asyncio.get_running_loop().time
        self._ends_at = self._now_s() + TIME_SLICE_S

    @property
    def is_over(self) -> bool:
        return self._now_s() >= self._ends_at

    async def rest(self) -> None:
        await asyncio.sleep(0)
        self._ends_at = self._now_s() + TIME_SLICE_S

    def pause(self) -> Steps[None]:
        """End the step of a generator."""
        yield
        self._ends_at = self._now_s() + TIME_SLICE_S


class in_slices(Generic[T]):  # noqa: N801 -- it reads like a function: async for x in in_slices(…)
    """Iterate over items, which must not change, and yield to the loop after each slice."""

    __slots__ = ("_items", "_slices")

    def __init__(self, items: Iterable[T]) -> None:
        self._items: Iterator[T] = iter(items)
        self._slices = LoopSlices()

    def __aiter__(self) -> in_slices[T]:
        return self

    async def __anext__(self) -> T:
        if self._slices.is_over:
            await self._slices.rest()
        for item in self._items:
            return item
        raise StopAsyncIteration


async def counted_in_slices(keys: Iterable[KeyT]) -> Counter[KeyT]:
    counts: Counter[KeyT] = Counter()
    async for key in in_slices(keys):
        counts[key] += 1
    return counts


async def sorted_in_slices(names: Iterable[str]) -> list[str]:
    left = iter(names)
    sorted_parts: list[list[str]] = []
    async for part in in_slices(iter(lambda: sorted(islice(left, NAMES_AT_ONCE)), [])):
        sorted_parts.append(part)  # noqa: PERF401
    return [name async for name in in_slices(merge(*sorted_parts))]


async def run_in_slices(steps: Steps[T]) -> T:
    slices = LoopSlices()
    with closing(steps):
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            if slices.is_over:
                await slices.rest()
