"""Calls the application's rebalance listener, with a time limit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.consumer import caller
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger(__name__)

# How long the rebalance waits for the end of a cancelled callback.
GRACE_S: Final = 1.0

Method = Callable[[set[TopicPartition]], Awaitable[None] | None]


class ListenerOwner(Protocol):
    """Receives failures of the listener."""

    def listener_failed(self, callback: str, error: Exception | None) -> None:
        """Note the exception of a callback; None: the callback was cancelled."""


class ListenerCalls:
    """Runs one callback at a time, each in its own task "listener".

    A callback may hang: it is cancelled at the deadline, and the rebalance continues. It may also
    stop the consumer: then it waits for the group task, which must not wait for the callback.
    """

    def __init__(self, scope: TaskScope, owner: ListenerOwner) -> None:
        self._scope = scope
        self._owner = owner
        self._running: tuple[asyncio.Task[None], caller.Callback, float] | None = None

    async def call(
        self, name: str, method: Method, partitions: set[TopicPartition], *, deadline: float
    ) -> bool:
        """Run a callback until its end or the deadline; return whether it ended by itself.

        If the caller is cancelled, the callback continues, and `finish` waits for it.
        """
        call = caller.Callback(name)
        task = self._scope.spawn(
            self._guarded(call, method, partitions), name="listener", may_be_cancelled=True
        )
        self._running = (task, call, asyncio.get_running_loop().time())
        return await self.finish(deadline=deadline)

    def is_calling(self) -> bool:
        """Whether the caller is the running callback, or a task that it started."""
        return self._running is not None and caller.is_in(self._running[1])

    async def finish(self, *, deadline: float) -> bool:
        """Wait for the running callback, if any, and cancel it at the deadline.

        Returns at once if the caller is the callback, as when it stops the consumer.

        Returns:
            Whether it ended by itself, which includes the cancellation of the future that it
            awaits.
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
            # By the application.
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
