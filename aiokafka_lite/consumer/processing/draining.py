"""Signals while `consumer.run` is active: the first drains, and the second cancels handlers.

=======  =========================================  ===========================================
signal   effect                                     afterwards
=======  =========================================  ===========================================
first    `stop`: no further record begins, running  the earlier handler of the signal is called,
         handlers finish, offsets are committed,    if there is one. asyncio.run's handler for
         and the consumer leaves the group          SIGINT raises KeyboardInterrupt. Without an
                                                    earlier one (SIGTERM), `run` returns
second   running handlers are cancelled, and after  the same, or SystemExit(128 + N)
         FORCED_S all that `run` waits for: dead
         letters being opened, brokers at the stop
third    that of the earlier handler
=======  =========================================  ===========================================

While a handler blocks the event loop, no signal has these effects. After BLOCKED_S, the next signal
has the effect of the earlier handler.

A program that goes on after a SIGTERM, such as one that calls `run` again after each end, would
survive it: the next `run` with the default signals raises SystemExit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import copy_context
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias

from aiokafka_lite._arguments import is_int
from aiokafka_lite._compat import Self
from aiokafka_lite._signals import StopSignals, can_be_handled, free_signals, name_of
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite._virtual import simulation_of

if TYPE_CHECKING:
    from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

# Shorter than the 30 s after which Kubernetes kills a process by default.
DRAIN_S: Final = 25.0
# How long `run` goes on after the second signal, and the end of handlers.
FORCED_S: Final = 1.0
# Longer than between a signal and its copy from a program that forwards it.
BLOCKED_S: Final = 1.0

# Returns offsets that could not be committed.
Stop: TypeAlias = "Callable[[float], Awaitable[Mapping[TopicPartition, OffsetAndMetadata] | None]]"


class Drained(Protocol):
    """A run, with the number of handlers that are running as `at_work`."""

    def counts(self) -> dict[str, int]: ...

    async def end(self, until: float) -> None: ...


def signals_of(stop_on: object) -> tuple[int, ...]:
    """Return the numbers of the signals of `run`'s argument `stop_on`.

    Raises:
        TypeError, ValueError: It is invalid.
        SystemExit: A signal has ended an earlier run, but not the program.
    """
    if stop_on == "default":
        task = asyncio.current_task()
        free = () if task is None else free_signals(task)
        if (number := Draining.ended_by) in free:
            raise SystemExit(128 + number)
        return free
    is_list = isinstance(stop_on, Iterable) and not isinstance(stop_on, str)
    given: list[Any] = list(stop_on) if is_list else [None]  # type: ignore[call-overload]
    if not all(map(is_int, given)):
        raise TypeError(
            f'stop_on must be signals, such as (signal.SIGTERM,), or "default", not {stop_on!r}'
        )
    if wrong := [each for each in given if not can_be_handled(each)]:
        raise ValueError(f"stop_on has {wrong[0]!r}, which is no signal that can be handled")
    return tuple(dict.fromkeys(given))


class Draining:
    """A block around one run, in which signals stop the consumer.

    Attributes:
        ended_by: The default signal without an earlier handler that has ended a run of this
            process. 0: none.
    """

    ended_by: ClassVar = 0

    def __init__(
        self, numbers: Iterable[int], stop: Stop, run: Drained, *, is_default: bool = False
    ) -> None:
        self._numbers = tuple(numbers)
        self._is_default = is_default
        self._stop, self._run = stop, run
        self._signals = StopSignals()
        self._loop = asyncio.get_running_loop()
        # A signal interrupts any code, such as that of a handler, which does not stop the consumer.
        self._context = copy_context()
        self._scope = TaskScope("processing")
        self._stopping: asyncio.Task[None] | None = None
        self._is_forced = False
        self._runner: asyncio.Task[object] | None = None
        # The second signal has cancelled the runner.
        self._has_cancelled = False
        # Only the signals' handler appends to it.
        self._received: list[int] = []
        # The time of the first signal that the loop has not processed.
        self._waiting_since: float | None = None

    async def __aenter__(self) -> Self:
        self._runner = asyncio.current_task()
        if not self._signals.take(self._note, self._numbers):
            self._signals.give_back()
            raise ValueError(
                "signals can be handled only in the main thread: call run() there, or with "
                "stop_on=()"
            )
        return self

    def _note(self, number: int) -> None:
        """Handle a signal. The loop may be blocked."""
        now = self._loop.time()
        if self._waiting_since is None:
            self._waiting_since = now
        if now - self._waiting_since < BLOCKED_S:
            self._received.append(number)
            self._loop.call_soon_threadsafe(self._heed, context=self._context)
        else:
            self._signals.raise_earlier(number)

    def _heed(self) -> None:
        """Process the signals received so far. In the loop."""
        self._waiting_since = None
        if self._received and self._stopping is None:
            number = self._received[0]
            is_simulated = simulation_of(self._loop) is not None
            if self._is_default and not is_simulated and self._signals.earlier(number) is None:
                Draining.ended_by = number
            log.info("%s: run() is stopping, and starts no more handlers", name_of(number))
            self._stopping = self._scope.spawn(self._drain(), name="drain")
        if len(self._received) > 1 and not self._is_forced:
            self._is_forced = True
            self._signals.give_back()
            log.warning("%s again: running handlers are cancelled", name_of(self._received[1]))
            self._scope.spawn(self._force(), name="force")

    async def _drain(self) -> None:
        count = self._run.counts()["at_work"]
        log.info("%d handlers are running, and the stop may take %g s", count, DRAIN_S)
        if left := await self._stop(DRAIN_S):
            log.warning("these offsets could not be committed: %s", left)
        log.info("the consumer is stopped")

    async def _force(self) -> None:
        await self._run.end(self._loop.time())
        await asyncio.sleep(FORCED_S)
        if self._runner is not None:
            self._has_cancelled = True
            self._runner.cancel()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> bool:
        is_cancelled = isinstance(exc, asyncio.CancelledError)
        try:
            if not is_cancelled:
                if self._stopping is None:
                    self._signals.give_back()
                    self._heed()  # signals since the loop's last step
                await self._until_stopped()
        finally:
            self._signals.give_back()
            await self._scope.close()
        is_ended_here = is_cancelled and self._forget_cancellation()
        if self._received and (exc is None or is_ended_here):
            await self._pass_on(self._received[0])
        return is_ended_here

    async def _until_stopped(self) -> None:
        if self._stopping is None:
            return
        log.info("no handlers are running")
        try:
            await asyncio.wait({self._stopping})
        except asyncio.CancelledError:
            if not self._forget_cancellation():
                raise
        else:
            self._stopping.result()

    def _forget_cancellation(self) -> bool:
        """Whether only the second signal has cancelled the runner. Then forget that."""
        if not self._has_cancelled:
            return False
        uncancel = getattr(self._runner, "uncancel", None)
        return uncancel is None or not uncancel()

    async def _pass_on(self, number: int) -> None:
        if (earlier := self._signals.earlier(number)) is not None:
            earlier(number, None)
            await asyncio.sleep(0)  # asyncio.run's handler cancels its main task
        elif self._is_forced:
            raise SystemExit(128 + number)
