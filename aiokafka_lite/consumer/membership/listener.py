"""Calls the application's rebalance listener, for a bounded time, whatever it does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.consumer import caller
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)

# How long a callback that was cut off may take to clean up before it is left to itself.
GRACE_S: Final = 1.0

Method = Callable[[set[TopicPartition]], Awaitable[None] | None]


class ListenerOwner(Protocol):
    """Receives failures of the listener."""

    def listener_failed(self, callback: str, error: Exception | None) -> None:
        """Note what a callback has raised, or None if it was cancelled."""


class ListenerCalls:
    """Runs one callback at a time, each in a task of its own.

    A task of its own, because a callback may hang (it is cut off at the deadline, and the
    rebalance goes on), and because it may stop the consumer: then it waits for the end of the
    group task, which must not be waiting for the callback.

    Args:
        scope: Whose task "listener" a callback is.
        owner: Receives failures.
    """

    def __init__(self, scope: TaskScope, owner: ListenerOwner) -> None:
        self._scope = scope
        self._owner = owner
        self._running: tuple[asyncio.Task[None], caller.Callback, float] | None = None

    async def call(
        self, name: str, method: Method, partitions: set[TopicPartition], *, deadline: float
    ) -> bool:
        """Run a callback to its end, or to the deadline; whether it ended by itself.

        When the caller is cancelled the callback goes on; `finish` waits for it.
        """
        call = caller.Callback(name)
        task = self._scope.spawn(
            self._guarded(call, method, partitions), name="listener", may_be_cancelled=True
        )
        self._running = (task, call, asyncio.get_running_loop().time())
        return await self.finish(deadline=deadline)

    def is_calling(self) -> bool:
        """Whether the callback that runs is asking, or a task that it started."""
        return self._running is not None and caller.is_in(self._running[1])

    async def finish(self, *, deadline: float) -> bool:
        """Wait for the callback that runs, if any, and cut it off at the deadline.

        Does nothing when it is the callback that asks, as one that stops the consumer does.

        Returns:
            Whether it ended by itself; so it does if what it awaits is cancelled.
        """
        if self._running is None or self.is_calling():
            return True
        task, call, began_at = self._running
        has_ended = True
        loop = asyncio.get_running_loop()
        done, _ = await asyncio.wait({task}, timeout=max(0.0, deadline - loop.time()))
        if not done:
            log.error(
                "the rebalance listener did not return from %s within %.1f s and is cancelled",
                call.name,
                loop.time() - began_at,
            )
            call.end()
            task.cancel()
            done, _ = await asyncio.wait({task}, timeout=GRACE_S)
            if not done:
                log.error(
                    "the rebalance listener is still running %s, although it was cancelled: the "
                    "rebalance continues without waiting for it",
                    call.name,
                )
            self._owner.listener_failed(call.name, None)
            has_ended = False
        elif task.cancelled():
            # By the application: what it awaited was cancelled.
            self._owner.listener_failed(call.name, None)
            log.error("the rebalance listener was cancelled in %s", call.name)
        self._running = None
        return has_ended

    async def _guarded(
        self, call: caller.Callback, method: Method, partitions: set[TopicPartition]
    ) -> None:
        caller.enter(call)
        try:
            result = method(partitions)
            if asyncio.iscoroutine(result):
                await result
        except Exception as error:
            log.exception("the rebalance listener raised an exception in %s", call.name)
            if call.is_running:
                self._owner.listener_failed(call.name, error)
        finally:
            call.end()
