"""Calls the application's rebalance listener, for a bounded time, whatever it does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Final

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)

# How long a callback that was cut off may take to clean up before it is left to itself.
GRACE_S: Final = 1.0

Callback = Callable[[set[TopicPartition]], Awaitable[None] | None]


class _Call:
    """A callback that runs, or did: tasks that it started keep a reference after its end."""

    is_running = True


_call: ContextVar[_Call | None] = ContextVar("_call", default=None)


def is_in_callback() -> bool:
    """Whether a rebalance waits for the running code, which must not wait for the rebalance."""
    call = _call.get()
    return call is not None and call.is_running


class ListenerCalls:
    """Runs one callback at a time, each in a task of its own.

    A task of its own, because a callback may hang (it is cut off at the deadline, and the
    rebalance goes on), and because it may stop the consumer: then it waits for the end of the
    group task, which must not be waiting for the callback.
    """

    def __init__(self, scope: TaskScope) -> None:
        self._scope = scope
        self._running: tuple[asyncio.Task[None], _Call] | None = None

    async def call(
        self, callback: Callback, partitions: set[TopicPartition], *, deadline: float
    ) -> None:
        """Run a callback to its end, or to the deadline.

        When the caller is cancelled the callback goes on; `finish` waits for it.
        """
        call = _Call()
        task = self._scope.spawn(
            self._guarded(call, callback, partitions), name="listener", may_be_cancelled=True
        )
        self._running = (task, call)
        await self.finish(deadline=deadline)

    async def finish(self, *, deadline: float) -> None:
        """Wait for the callback that runs, if any, and cut it off at the deadline.

        Does nothing when it is the callback that asks, as one that stops the consumer does.
        """
        if self._running is None or self._running[1] is _call.get():
            return
        task, _ = self._running
        loop = asyncio.get_running_loop()
        done, _ = await asyncio.wait({task}, timeout=max(0.0, deadline - loop.time()))
        if not done:
            log.error(
                "the rebalance listener did not return in time and is cut off: "
                "partitions go on to their next owners"
            )
            task.cancel()
            done, _ = await asyncio.wait({task}, timeout=GRACE_S)
            if not done:
                log.error("the rebalance listener ignores its cancellation")
        self._running = None

    @staticmethod
    async def _guarded(call: _Call, callback: Callback, partitions: set[TopicPartition]) -> None:
        _call.set(call)
        try:
            result = callback(partitions)
            if asyncio.iscoroutine(result):
                await result
        except Exception:
            log.exception("the rebalance listener raised in %s", callback)
        finally:
            call.is_running = False
