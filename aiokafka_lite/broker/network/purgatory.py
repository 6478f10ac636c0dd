"""Responses that wait for a change of one of their keys, or for their deadline.

A handler returns a `Delayed` for a long poll. Each change of a key calls `touch(key)`, and a timer
ends the wait. The name is Kafka's (DelayedOperationPurgatory).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from aiokafka_lite._compat import Never
from aiokafka_lite.broker.handlers.registry import Delayed

R = TypeVar("R")


@dataclass(slots=True, eq=False)
class Watch(Generic[R]):
    purgatory: Purgatory[R]
    delayed: Delayed[R]
    on_answer: Callable[[Callable[[], R]], None]
    timer: asyncio.TimerHandle = field(init=False)

    def try_complete(self) -> None:
        """Answer if the response is ready. An exception of the operation is its response."""
        try:
            answer = self.delayed.try_complete()
        except Exception as error:  # noqa: BLE001 — it becomes the response
            self._finish(_raiser(error))
            return
        if answer is not None:
            ready = answer
            self._finish(lambda: ready)

    def cancel(self) -> None:
        """Remove the watch without a response. Idempotent."""
        self.timer.cancel()
        self.purgatory.forget(self)

    def expire(self) -> None:
        self._finish(self.delayed.expire)

    def _finish(self, answer: Callable[[], R]) -> None:
        self.cancel()
        self.on_answer(answer)


def _raiser(error: Exception) -> Callable[[], Never]:
    def raise_it() -> Never:
        raise error

    return raise_it


class Purgatory(Generic[R]):
    """All waiting responses by key. Written only from the broker's event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # Dicts instead of sets, because the order of completion must not depend on hashes.
        self._watches: dict[Hashable, dict[Watch[R], None]] = {}

    def __len__(self) -> int:
        return len({id(watch) for watches in self._watches.values() for watch in watches})

    def watch(self, delayed: Delayed[R], on_answer: Callable[[Callable[[], R]], None]) -> Watch[R]:
        """Keep a response until it is ready or due.

        `on_answer` is called once, with a function that returns the response or raises. It is never
        called during this method, or after `cancel` of the returned watch.
        """
        watch = Watch(self, delayed, on_answer)
        watch.timer = self._loop.call_at(delayed.deadline, watch.expire)
        for key in delayed.keys:
            self._watches.setdefault(key, {})[watch] = None
        return watch

    def touch(self, key: Hashable) -> None:
        waiting = self._watches.get(key)
        if waiting:
            for watch in tuple(waiting):
                if watch in waiting:  # an earlier one's completion may have cancelled it
                    watch.try_complete()

    def forget(self, watch: Watch[R]) -> None:
        for key in watch.delayed.keys:
            waiting = self._watches.get(key)
            if waiting is not None:
                waiting.pop(watch, None)
                if not waiting:
                    del self._watches[key]

    def close(self) -> None:
        while self._watches:
            waiting = next(iter(self._watches.values()))
            next(iter(waiting)).cancel()
