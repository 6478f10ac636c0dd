"""Runs coroutines that never suspend, without an event loop.

Conversations with a broker are written once, as coroutines that get something to send requests
with. If sending blocks until the answer is there, nothing in them ever waits, and they run from
beginning to end like functions.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


def run(coroutine: Coroutine[object, None, T]) -> T:
    """Run a coroutine to its end and return what it returns.

    Raises:
        RuntimeError: It waits for something that only an event loop could bring.
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError(f"{coroutine!r} needs an event loop, but no loop is running")
