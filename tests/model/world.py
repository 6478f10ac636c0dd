"""Loops and time. Each actor (a member, the conductor) has an event loop of its own.

In a `VirtualWorld` all loops take turns in one thread, and when none has anything to do, time
jumps to the next timer of any: a minute costs seconds, and the same seed has the same course.
An actor that blocks its loop keeps nobody else from going on. In a `RealWorld` each actor has a
thread, and time is the clock's.

A killed actor's sockets are closed at once, it opens no new ones, and its tasks are cancelled: to
the others that looks like a process that was killed.
"""

from __future__ import annotations

import asyncio
import math
import random
import selectors
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final

from aiokafka_lite._chance import Chance

Main = Callable[[], Coroutine[object, object, None]]

# Turns of a loop in which a killed actor's tasks end, and a finished one's sockets are closed.
LAST_TURNS: Final = 200
# Once nobody has anything to do, a kernel may still be about to hand bytes over.
SETTLING_TURNS: Final = 2
# What a turn takes in virtual time: programs that look at the clock see it go on.
TURN_S: Final = 1e-6
# More turns than anybody needs before something has to wait.
MOST_TURNS: Final = 20_000
# How late the clock of a real loop may be.
REAL_TURN_S: Final = 0.005


def _nothing() -> None:
    pass


class LivelockError(Exception):
    """Loops have work again and again, and time does not pass."""


class Cut:
    """Ports that an actor does not reach, and what it has sent there meanwhile."""

    def __init__(self, is_silent: bool) -> None:
        self.ports: Final = set[int]()
        self.is_silent: Final = is_silent
        self.is_over: Final = asyncio.Event()
        self.held: Final[dict[Any, list[bytes]]] = {}


class ActorLoop(asyncio.SelectorEventLoop):
    """An event loop that can be cut off from the network."""

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        super().__init__(selector)
        self.is_dead = False
        self._cut: Cut | None = None

    async def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        if self.is_dead:
            raise ConnectionRefusedError("this actor was killed")
        cut, port = self._cut, kwargs.get("port", args[2] if len(args) > 2 else None)
        if cut is not None and port in cut.ports:
            if not cut.is_silent:
                raise ConnectionRefusedError("this actor was cut off")
            await cut.is_over.wait()
        return await super().create_connection(*args, **kwargs)

    def cut_off(self, port: int, *, is_silent: bool) -> None:
        """Reach a port no more, nor those of before, until `heal`.

        Silent connections stay open: what is sent arrives when it is healed. Others are reset.
        """
        self._cut = cut = self._cut or Cut(is_silent)
        cut.ports.add(port)
        for transport in list(self._transports.values()):  # type: ignore[attr-defined]
            if (transport.get_extra_info("peername") or (None, None))[1] != port:
                continue
            if cut.is_silent and transport not in cut.held:
                transport.pause_reading()
                transport.write = cut.held.setdefault(transport, []).append
            elif not cut.is_silent:
                transport.abort()

    def heal(self) -> None:
        """Reach everything again, and send what was held back."""
        cut, self._cut = self._cut, None
        if cut is None:
            return
        cut.is_over.set()
        for transport, pieces in cut.held.items():
            del transport.write
            if not transport.is_closing():
                transport.write(b"".join(pieces))
                transport.resume_reading()

    def crash(self) -> None:
        """Close every socket without another byte, and cancel every task."""
        self.is_dead = True
        for transport in list(self._transports.values()):  # type: ignore[attr-defined]
            transport.abort()
        for task in asyncio.all_tasks(self):
            task.cancel()


class Actor:
    """One of those who act, with its loop.

    Attributes:
        complaints: What the loop's exception handler was told.
        is_blocked: Its loop stands still.
        is_done: Its main function is over, and its loop closed.
    """

    def __init__(self, name: str, loop: ActorLoop, main: Main) -> None:
        self.name = name
        self.loop = loop
        self.complaints: list[str] = []
        self.is_blocked = False
        self.is_done = False
        self.failure: BaseException | None = None
        self._main = main
        loop.set_exception_handler(self._complain)

    def _complain(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self.loop.is_dead:
            error = context.get("exception")
            self.complaints.append(f"{context.get('message')}: {error!r}")

    @property
    def is_killed(self) -> bool:
        return self.loop.is_dead

    async def run(self) -> None:
        """Run its main function, and keep what that raises."""
        try:
            await self._main()
        except asyncio.CancelledError:
            if not self.is_killed:
                raise
        except Exception as error:  # noqa: BLE001 -- whoever started it looks
            self.failure = error


class World(ABC):
    """What all actors share: the time, and the ways to start, to stop and to block."""

    @abstractmethod
    def now(self) -> float:
        """Return the time in seconds, the same for all actors."""

    @abstractmethod
    def start(self, name: str, main: Main) -> Actor:
        """Start an actor."""

    @abstractmethod
    def kill(self, actor: Actor, at_death: Callable[[], None] = _nothing) -> bool:
        """Kill an actor; return False if it cannot be done now, as it blocks its loop.

        `at_death` is called when it dies: in a real world that is when its own loop comes to it,
        and until then the actor goes on. It is not called for one that has ended by itself.
        """

    @property
    @abstractmethod
    def can_block(self) -> bool:
        """Whether a loop that blocks now is blocked no longer than it asks for."""

    @abstractmethod
    def block(self, seconds: float) -> None:
        """Block the loop of the actor that calls; everybody else goes on."""

    @abstractmethod
    def run(self, main: Main) -> None:
        """Run the conductor to its end, then end whoever is left.

        Raises:
            BaseException: What the conductor raised.
        """


class VirtualWorld(World):
    """All loops in turn, in this thread; time passes when none has anything to do."""

    def __init__(self) -> None:
        self._now = 0.0
        self._actors: list[Actor] = []
        self._acting: Actor | None = None
        # Tells whose sockets have something.
        self._polls = selectors.DefaultSelector()
        self._turns = 0

    def now(self) -> float:
        return self._now

    def start(self, name: str, main: Main) -> Actor:
        loop = _VirtualLoop(self)
        actor = Actor(name, loop, main)
        with self._as(actor):
            loop.keep(loop.create_task(actor.run()))
        self._actors.append(actor)
        self._polls.register(loop.poll_fd(), selectors.EVENT_READ, actor)
        return actor

    def kill(self, actor: Actor, at_death: Callable[[], None] = _nothing) -> bool:
        if actor.is_blocked:
            return False
        if not actor.is_done:
            with self._as(actor):
                actor.loop.crash()
            at_death()
            self._end(actor)
        return True

    @property
    def can_block(self) -> bool:
        return not any(actor.is_blocked for actor in self._actors)

    def block(self, seconds: float) -> None:
        actor = self._acting
        assert actor is not None
        until = self._now + seconds
        actor.is_blocked = True
        task = _leave_task(actor.loop)
        try:
            with self._as(None):
                while self._now < until:
                    self._turn(until)
        finally:
            _enter_task(actor.loop, task)
            actor.is_blocked = False

    def run(self, main: Main) -> None:
        conductor = self.start("conductor", main)
        try:
            while not conductor.is_done:
                self._turn(math.inf)
        finally:
            for actor in tuple(self._actors):
                actor.is_blocked = False
                self.kill(actor)
            self._polls.close()
        if conductor.failure is not None:
            raise conductor.failure

    def _turn(self, horizon: float) -> None:
        """Give each loop that has work a turn; have time pass, to the horizon, if none has.

        Raises:
            LivelockError: They have gone on and on in one moment.
        """
        for _ in range(SETTLING_TURNS):
            if self._step_all():
                self._now += TURN_S
                self._turns += 1
                if self._turns > MOST_TURNS:
                    self._turns = 0
                    raise LivelockError(f"{MOST_TURNS} turns at {self._now:.3f}: {self._busiest()}")
                return
        self._turns = 0
        next_at = min(
            (_loop_of(each).next_at() for each in self._actors if not each.is_blocked),
            default=math.inf,
        )
        if horizon == next_at == math.inf:
            raise RuntimeError("nothing is going to happen")
        self._now = max(self._now, min(next_at, horizon))

    def _step_all(self) -> bool:
        """Run one turn of each loop that has work; return whether one had."""
        told = {key.data for key, _ in self._polls.select(0)}
        has_worked = False
        for actor in tuple(self._actors):
            if actor.is_blocked or actor.is_done:
                continue
            loop = _loop_of(actor)
            if actor in told or loop.has_work():
                has_worked = True
                with self._as(actor):
                    loop.turn()
                if loop.main_is_done:
                    self._end(actor)
        return has_worked

    def _busiest(self) -> str:
        """Run some turns more, and return who has work in most of them, and what his tasks do."""
        counts: Counter[str] = Counter()
        for _ in range(SETTLING_TURNS * 100):
            counts.update(each.name for each in self._actors if _loop_of(each).has_work())
            self._step_all()
        words = [f"{dict(counts.most_common(3))}"]
        for actor in self._actors:
            if counts and actor.name == counts.most_common(1)[0][0]:
                words += [
                    f"{t.get_name()} {t.get_stack(limit=1)}" for t in asyncio.all_tasks(actor.loop)
                ]
        return "; ".join(words)

    def _end(self, actor: Actor) -> None:
        loop = actor.loop
        assert isinstance(loop, _VirtualLoop)
        with self._as(actor):
            for _ in range(LAST_TURNS):
                left = [task for task in asyncio.all_tasks(loop) if not task.done()]
                for task in left if loop.is_dead else ():
                    task.cancel()
                idle = loop.turn()
                if not left and idle:
                    break
                if idle and not loop.is_dead:
                    actor.complaints.append(f"tasks left behind: {left}")
                    loop.crash()
        actor.is_done = True
        self._actors.remove(actor)
        self._polls.unregister(loop.poll_fd())
        loop.finish()

    def _as(self, actor: Actor | None) -> _Acting:
        """Return a block in which an actor's loop is the one that runs."""
        return _Acting(self, actor)


class _Acting:
    """Such a block. It is entered for each turn, so it is no generator."""

    def __init__(self, world: VirtualWorld, actor: Actor | None) -> None:
        self._world = world
        self._actor = actor

    def __enter__(self) -> None:
        actor = self._actor
        self._before = self._world._acting
        self._hooks = sys.get_asyncgen_hooks()
        self._running = asyncio._get_running_loop()
        self._world._acting = actor
        loop = None if actor is None else actor.loop
        asyncio._set_running_loop(loop)
        if loop is not None:
            sys.set_asyncgen_hooks(
                firstiter=loop._asyncgen_firstiter_hook,  # type: ignore[attr-defined]
                finalizer=loop._asyncgen_finalizer_hook,  # type: ignore[attr-defined]
            )

    def __exit__(self, *_: object) -> None:
        self._world._acting = self._before
        asyncio._set_running_loop(self._running)
        sys.set_asyncgen_hooks(*self._hooks)


def _loop_of(actor: Actor) -> _VirtualLoop:
    return actor.loop  # type: ignore[return-value]  # those of a virtual world are


def _leave_task(loop: asyncio.AbstractEventLoop) -> asyncio.Task[Any] | None:
    task = asyncio.current_task(loop)
    if task is not None:
        asyncio.tasks._leave_task(loop, task)
    return task


def _enter_task(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any] | None) -> None:
    if task is not None:
        asyncio.tasks._enter_task(loop, task)


class _Selector(selectors.DefaultSelector):
    """Never waits: says what has happened, and remembers whether it was asked to wait."""

    was_idle = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        self.was_idle = not found and (timeout is None or timeout > 0)
        return found


class _VirtualLoop(ActorLoop):
    """A loop that runs a turn when it is told to, by the world's time."""

    def __init__(self, world: VirtualWorld) -> None:
        self._world = world
        self._looks = _Selector()
        super().__init__(self._looks)
        self._thread_id: int | None = threading.get_ident()  # it counts as running
        self._task: asyncio.Task[None] | None = None

    def time(self) -> float:
        return self._world.now()

    def keep(self, task: asyncio.Task[None]) -> None:
        """Remember the task that is the actor."""
        self._task = task

    @property
    def main_is_done(self) -> bool:
        return self._task is None or self._task.done()

    def turn(self) -> bool:
        """Run what is ready; return whether nothing was."""
        self._run_once()  # type: ignore[attr-defined]
        return self._looks.was_idle

    def has_work(self) -> bool:
        """Whether there is something to run, whatever sockets say."""
        if self._ready:  # type: ignore[attr-defined]
            return True
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return bool(scheduled) and scheduled[0].when() <= self._world.now()

    def next_at(self) -> float:
        """Return when the next timer is due."""
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return scheduled[0].when() if scheduled else math.inf

    def poll_fd(self) -> int:
        """Return what is readable when one of its sockets has something."""
        return self._looks.fileno()

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """Run it now: there is no other thread."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 -- as an executor does
            future.set_exception(error)
        return future

    def finish(self) -> None:
        """Close the loop."""
        self._thread_id = None
        self.close()


class RealWorld(World):
    """A thread for each actor, and the clock's time."""

    def __init__(self) -> None:
        self._actors: list[tuple[Actor, threading.Thread]] = []
        self._here = threading.local()

    def now(self) -> float:
        return time.time()

    def start(self, name: str, main: Main) -> Actor:
        return self._start(name, main)[0]

    def _start(self, name: str, main: Main) -> tuple[Actor, threading.Thread]:
        self._actors = [each for each in self._actors if not each[0].is_done]
        actor = Actor(name, ActorLoop(), main)
        thread = threading.Thread(target=self._live, args=(actor,), name=name, daemon=True)
        self._actors.append((actor, thread))
        thread.start()
        return actor, thread

    def _live(self, actor: Actor) -> None:
        self._here.actor = actor
        loop = actor.loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(actor.run())
            loop.run_until_complete(self._end(actor))
        except asyncio.CancelledError:
            loop.run_until_complete(self._end(actor))
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
            actor.is_done = True

    @staticmethod
    async def _end(actor: Actor) -> None:
        for turn in range(LAST_TURNS):
            left = asyncio.all_tasks() - {asyncio.current_task()}
            if not left:
                break
            if turn == LAST_TURNS - 1 and not actor.is_killed:
                actor.complaints.append(f"tasks left behind: {left}")
            for task in left if actor.is_killed else ():
                task.cancel()
            await asyncio.sleep(0 if turn < LAST_TURNS // 2 else REAL_TURN_S)

    def kill(self, actor: Actor, at_death: Callable[[], None] = _nothing) -> bool:
        def die() -> None:
            if not actor.is_killed:
                actor.loop.crash()
                at_death()

        if not actor.is_done:
            self.call(actor, die)
        return True

    def call(self, actor: Actor, change: Callable[[], object]) -> None:
        """Have something done in an actor's loop, unless it has ended."""
        try:
            actor.loop.call_soon_threadsafe(change)
        except RuntimeError:
            pass  # it ended just now

    @property
    def can_block(self) -> bool:
        return True

    def block(self, seconds: float) -> None:
        actor: Actor = self._here.actor
        actor.is_blocked = True
        time.sleep(seconds)
        actor.is_blocked = False

    def run(self, main: Main) -> None:
        conductor, thread = self._start("conductor", main)
        thread.join()
        for actor, thread in self._actors:
            self.kill(actor)
            thread.join(10.0)
        if conductor.failure is not None:
            raise conductor.failure


def chances(rng: random.Random) -> Callable[..., Chance]:
    """Return what replaces `chance_for`, so that what clients draw comes from the seed."""
    return lambda *_: Chance(str(rng.random()))
