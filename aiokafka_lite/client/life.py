"""The stages of a client, its start and its stop, and its callers, for consumers and producers.

::

    NEW ──> STARTING ──> RUNNING ──> FINISHING ──> STOPPING ──> STOPPED
     ^          │  └──> DEAD <─┘      ^             ^
     └─ UNDOING <─┘                   │             └── from NEW, UNDOING and ABANDONED
                                      └── from every stage that has parts

docs/design.md explains the stages. A `Life` has no reference to its client, so that a forgotten
client can be collected and warn.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import warnings
from abc import ABC, abstractmethod
from asyncio import _get_running_loop
from collections.abc import Callable, Mapping
from traceback import StackSummary
from typing import ClassVar, Final, Generic, NoReturn, Protocol, SupportsIndex, TypeVar

from aiokafka_lite._compat import Self, timeout
from aiokafka_lite._forks import notify_of_forks
from aiokafka_lite._tasks import Event
from aiokafka_lite.errors import ForkedError, IllegalStateError, WrongLoopError

log = logging.getLogger(__name__)


class Stage(enum.Enum):
    NEW = "not started"
    STARTING = "starting"
    RUNNING = "running"
    DEAD = "dead"
    FINISHING = "finishing"
    UNDOING = "start failed"
    STOPPING = "stopping"
    STOPPED = "stopped"
    ABANDONED = "abandoned"


MOVES: Final[Mapping[Stage, frozenset[Stage]]] = {
    Stage.NEW: frozenset({Stage.STARTING, Stage.STOPPING, Stage.ABANDONED}),
    Stage.STARTING: frozenset(
        {Stage.RUNNING, Stage.DEAD, Stage.UNDOING, Stage.FINISHING, Stage.ABANDONED}
    ),
    Stage.RUNNING: frozenset({Stage.DEAD, Stage.FINISHING, Stage.ABANDONED}),
    Stage.FINISHING: frozenset({Stage.STOPPING, Stage.ABANDONED}),
    # A start whose task failed may still fail, and handlers may continue for a while.
    Stage.DEAD: frozenset({Stage.UNDOING, Stage.FINISHING, Stage.ABANDONED}),
    Stage.UNDOING: frozenset({Stage.NEW, Stage.STOPPING, Stage.ABANDONED}),
    Stage.STOPPING: frozenset({Stage.STOPPED}),
    Stage.STOPPED: frozenset(),
    # Its last holder, an exception handler, may stop it all the same.
    Stage.ABANDONED: frozenset({Stage.STOPPING}),
}
# Stages in which there are parts that may be used.
WITH_PARTS: Final = frozenset({Stage.STARTING, Stage.RUNNING, Stage.FINISHING, Stage.DEAD})
# Final stages.
OVER: Final = frozenset({Stage.STOPPING, Stage.STOPPED, Stage.ABANDONED})


class Parts(Protocol):
    """The tasks and connections of one start."""

    async def connect_and_start(self) -> None: ...

    async def finish(self, timeout_s: float | None) -> None:
        """Wait for the application's work, within the timeout."""

    async def stop(self, deadline: float) -> None:
        """End all tasks and connections: in order until the deadline, and the others at once."""

    def give_up(self) -> None:
        """End all tasks and connections at once: the client was garbage-collected."""

    def drop(self) -> None:
        """As `give_up`, after the loop was closed."""


P = TypeVar("P", bound=Parts)


class Life(ABC, Generic[P]):
    """The only writer of a client's stage. `parts` are the latest, even after the stop."""

    kind: ClassVar[str]
    started_twice: ClassVar[type[Exception]] = AssertionError
    stopped_error: ClassVar[type[Exception]]

    def __init__(self, loop: asyncio.AbstractEventLoop, make: Callable[[], P]) -> None:
        self._loop = loop
        self._make = make
        self.stage = Stage.NEW
        self._moved = Event()
        self.parts: P | None = None
        self.current: P | None = None
        self.error: BaseException | None = None
        self.failed_start: tuple[float, Exception] | None = None

    @abstractmethod
    def _entered(self, stage: Stage) -> None: ...

    # --- Stages ---------------------------------------------------------------------------
    @property
    def is_over(self) -> bool:
        return self.stage in OVER

    @property
    def is_stopping(self) -> bool:
        return self.stage in (Stage.FINISHING, Stage.STOPPING, Stage.STOPPED)

    @property
    def has_failed_to_start(self) -> bool:
        was_tried = self.parts is not None or self.failed_start is not None
        return was_tried and self.stage is Stage.NEW

    def not_started(self) -> Exception:
        return IllegalStateError(f"the {self.kind} is not started: await {self.kind}.start() first")

    def stopped(self, text: str = "") -> Exception:
        return self.stopped_error(text or f"the {self.kind} is stopped: create another {self.kind}")

    def refusal(self) -> BaseException:
        return self.stopped() if self.is_over else self.not_started()

    def raise_if_over(self) -> None:
        if self.is_over:
            raise self.stopped()

    @property
    def running(self) -> P:
        if self.current is None:
            raise self.refusal()
        return self.current

    def enter(self, stage: Stage) -> None:
        if stage not in MOVES[self.stage]:
            raise AssertionError(
                f"a {self.kind} cannot change its stage from {self.stage.name} to {stage.name}"
            )
        self.stage = stage
        self.current = self.parts if stage in WITH_PARTS else None
        if stage is Stage.NEW:
            self.error = None
        self._entered(stage)
        self._moved.set()

    async def _until_not(self, *stages: Stage) -> None:
        while self.stage in stages:
            self._moved.clear()
            await self._moved.wait()

    def die(self, error: BaseException) -> bool:
        """Enter DEAD. Return False if there was an earlier error, or the parts are not used."""
        if self.error is not None or self.current is None:
            return False
        self.error = error
        if self.stage is not Stage.FINISHING:
            self.enter(Stage.DEAD)
        return True

    # --- Start ----------------------------------------------------------------------------
    async def start(self) -> None:
        await self._until_not(Stage.UNDOING, Stage.STOPPING)
        if Stage.STARTING not in MOVES[self.stage]:
            raise self.started_twice(
                f"a {self.kind} can be started only once: create another {self.kind}"
            )
        try:
            self.parts = parts = self._make()
            self.enter(Stage.STARTING)
            await parts.connect_and_start()
            if self.is_stopping:
                raise self.stopped()
            self.failed_start = None
            if self.stage is Stage.STARTING:  # and not DEAD
                self.enter(Stage.RUNNING)
        except BaseException as error:
            if isinstance(error, Exception):
                self.failed_start = self._loop.time(), error
            if self.current is not None and not self.is_stopping:
                await self._undo(self.current)
            if self.is_stopping and isinstance(error, Exception):
                raise self.stopped(
                    f"the {self.kind} was stopped before start() returned"
                ) from error
            raise

    async def _undo(self, parts: P) -> None:
        self.enter(Stage.UNDOING)
        try:
            await parts.stop(self._loop.time())
        finally:
            if self.stage is Stage.UNDOING:
                self.enter(Stage.NEW)
            elif self.stage is Stage.STOPPING:
                self.enter(Stage.STOPPED)

    # --- Stop -----------------------------------------------------------------------------
    async def stop(self, timeout_s: float | None) -> None:
        """Stop everything in order, within the timeout. Later calls wait for the first."""
        if not self.is_stopping:
            if (parts := self.current) is not None:
                return await self._stop(parts, timeout_s)
            is_undone = self.stage is not Stage.UNDOING
            self.enter(Stage.STOPPING)
            if is_undone:
                self.enter(Stage.STOPPED)
        try:
            async with timeout(timeout_s):
                await self._until_not(Stage.FINISHING, Stage.STOPPING)
        except asyncio.TimeoutError:
            log.warning("stop() returns before the %s has closed its connections", self.kind)

    async def _stop(self, parts: P, timeout_s: float | None) -> None:
        deadline = self._loop.time() + (timeout_s or 0.0)
        self.enter(Stage.FINISHING)
        try:
            await parts.finish(timeout_s)
        except BaseException:
            deadline = self._loop.time()
            raise
        finally:
            self.enter(Stage.STOPPING)
            try:
                await parts.stop(deadline)
            finally:
                self.enter(Stage.STOPPED)

    # --- Without a stop -------------------------------------------------------------------
    def forgotten(self, client: object, made_at: StackSummary | None) -> None:
        """Shut down and warn, for the `__del__` of a client, on any thread."""
        self._abandon()  # first of all: a warning may be an error
        name = type(client).__name__
        warnings.warn(f"Unclosed {name} {client!r}", ResourceWarning, stacklevel=3, source=client)
        context: dict[str, object] = {self.kind: client, "message": f"Unclosed {name}"}
        if made_at is not None:
            context["source_traceback"] = made_at
        self._loop.call_exception_handler(context)

    def _abandon(self) -> None:
        try:
            # Not at once: whatever runs, on whichever thread, may be this client's own code.
            self._loop.call_soon_threadsafe(self._give_up)
        except RuntimeError:  # the loop is closed
            if self.current is not None:
                self.current.drop()

    def _give_up(self) -> None:
        if not self.is_over:
            parts = self.current
            self.enter(Stage.ABANDONED)
            if parts is not None:
                parts.give_up()


class StartableClient:
    """A consumer or producer: the application starts it, for example by `async with`."""

    async def start(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled because it holds connections: "
            "create another one with the same settings"
        )


class Owner:
    """The event loop and the process that may use a client.

    Comparing the running loop, once a call, finds calls from other threads as well. A forked child
    may run its parent's loop, so `note_fork` ends calls that do not check the owner.
    """

    def __init__(
        self, kind: str, loop: asyncio.AbstractEventLoop, end_calls: Callable[[], None]
    ) -> None:
        self.loop = loop
        self.is_forked = False
        self._kind = kind
        self._end_calls = end_calls
        notify_of_forks(self)

    def check(self) -> None:
        """Check that the loop's own code is calling, which may wait on it."""
        if _get_running_loop() is not self.loop or self.is_forked:
            raise self.refusal()

    def check_now(self) -> None:
        """Check that the loop's own code is calling, or that the loop stands still."""
        running = _get_running_loop()
        if self.is_forked or (
            running is not self.loop and (running is not None or self.loop.is_running())
        ):
            raise self.refusal()

    def refusal(self) -> ForkedError | WrongLoopError:
        kind = self._kind
        if self.is_forked:
            return ForkedError(
                f"the {kind} was created before the fork, and only the parent process can use it: "
                f"create another {kind} in this process"
            )
        if self.loop.is_closed():
            return WrongLoopError(
                f"the event loop of the {kind} is closed, so the {kind} cannot be used any more: "
                f"stop {kind}s before their loop ends"
            )
        return WrongLoopError(
            f"a {kind} must be used on the event loop on which it was created: from another "
            "thread, use asyncio.run_coroutine_threadsafe or loop.call_soon_threadsafe"
        )

    def note_fork(self) -> None:
        self.is_forked = True
        self._end_calls()
