"""Who may use a consumer: code on the loop it was made on, in the process it was made in.

Both are asked with one look at the running loop, once a call and never for a record. A forked
child has no running loop: asyncio forgets it, so that look finds a fork as well, and so does a
call from another thread. Methods that wait for nothing may also be called while the loop stands
still, as between two `run_until_complete`; only not while it runs elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aiokafka_lite.errors import ForkedError, WrongLoopError


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop.

    Raises:
        RuntimeError: None runs; in aiokafka's words.
    """
    loop = asyncio._get_running_loop()
    if loop is None:
        raise RuntimeError(
            "The object should be created within an async function or provide loop directly: "
            "no event loop runs"
        )
    return loop


@contextmanager
def as_if_running(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let what is made meanwhile belong to a loop, also to one that does not run yet.

    Nothing may be awaited meanwhile.
    """
    before = asyncio._get_running_loop()
    asyncio._set_running_loop(loop)
    try:
        yield
    finally:
        asyncio._set_running_loop(before)


class Owner:
    """The loop and the process that one consumer belongs to."""

    def __init__(self, forget_ready: Callable[[], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self.is_forked = False
        # Has the records that are handed out without a look here be forgotten, in a child.
        self._forget_ready = forget_ready
        _owners.add(self)

    def check(self) -> None:
        """Check that this is the loop's own code, which may wait on it.

        Raises:
            ForkedError: This is a forked child.
            WrongLoopError: Another loop runs, or none.
        """
        if asyncio._get_running_loop() is not self.loop:
            raise self._refusal()

    def check_now(self) -> None:
        """Check that something may be changed: by the loop's own code, or while it stands still.

        Raises:
            ForkedError: This is a forked child.
            WrongLoopError: Another loop runs, or this one in another thread.
        """
        running = asyncio._get_running_loop()
        if running is not self.loop and (
            self.is_forked or running is not None or self.loop.is_running()
        ):
            raise self._refusal()

    def _refusal(self) -> ForkedError | WrongLoopError:
        if self.is_forked:
            return ForkedError(
                "the consumer belongs to the process that was forked, as do its sockets and its "
                "place in the group: make another one here"
            )
        if self.loop.is_closed():
            return WrongLoopError(
                "the event loop of the consumer is closed: nothing can be done with it any more; "
                "stop consumers before their loop ends"
            )
        return WrongLoopError(
            "a consumer is used on the event loop on which it was made: from another thread, "
            "asyncio.run_coroutine_threadsafe or loop.call_soon_threadsafe gets there"
        )

    def _forked(self) -> None:
        self.is_forked = True
        self._forget_ready()


_owners: weakref.WeakSet[Owner] = weakref.WeakSet()


def _forked() -> None:
    """Make every consumer of the parent refuse to be used; runs first of all in a child."""
    for owner in tuple(_owners):
        owner._forked()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forked)
