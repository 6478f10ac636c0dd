"""The calls of a worker of `run` in plain Python: fallback and model of _calls.pyx."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any

from aiokafka_lite.consumer.processing.job import Job
from aiokafka_lite.consumer.processing.steps import Steps


class Calls:
    """`job` is the record that is being handled, the first of a list, in `context`."""

    __slots__ = ("context", "job")

    job: Job
    context: Context

    def __init__(
        self,
        steps: Steps,
        task: asyncio.Task[Any],
        handler: Callable[..., Awaitable[Any]],
        running: dict[Job, asyncio.Task[None]],
        *,
        is_alone: bool,
    ) -> None:
        pass

    def of(self, call: Awaitable[Any]) -> Awaitable[Any]:
        """Return an awaitable of the call for `job`. Compiled, it may handle the next ones, too."""
        return call
