"""Runs conversations with a broker, if sending requests blocks, without an event loop."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


def run(coroutine: Coroutine[object, None, T]) -> T:
    """Run a coroutine and return its result.

    Raises:
        RuntimeError: It suspended.
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError(f"{coroutine!r} needs an event loop, but no loop is running")
