"""Runs a simulated test with one seed: faults, then calm, in which it must end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import html
import logging
import random
import sys
import warnings
from collections.abc import Callable, Collection, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final, TypeAlias

from aiokafka_lite.simulation import schedule
from aiokafka_lite.simulation.engine import Loop
from aiokafka_lite.simulation.escapes import Confinement, confined
from aiokafka_lite.simulation.faults import FAULTS, FaultRunner
from aiokafka_lite.simulation.history import Kind
from aiokafka_lite.simulation.kafka import (
    TEST_HOST,
    Applications,
    BrokenRuleError,
    Kafka,
    is_kafka_error,
)
from aiokafka_lite.simulation.schedule import RARE, Fault, Order
from aiokafka_lite.simulation.world import LOOK_EACH_S

Test: TypeAlias = Callable[[Kafka], Coroutine[Any, Any, object]]

# On average a fault begins after so many seconds, but a schedule has few.
FAULT_EACH_S: Final = 5.0
MOST_FAULTS: Final = 20
# Applications may be busy for a long time.
MOST_STEPS: Final = 2_000_000
# How many runs a failing schedule is shrunk with.
MOST_RUNS: Final = 60
ORDERS: Final = {Order.FIFO: 4, Order.NEARLY: 2, Order.ANY: 3, Order.PCT: 1}


class NotSettledError(AssertionError):
    """The faults have stopped, and the test or a process does not end."""


def fault_names(faults: str | Collection[str]) -> tuple[str, ...]:
    """Return the names of the faults that an option asks for.

    Raises:
        ValueError: There is no fault of this name.
    """
    names: list[str] = []
    for name in (faults,) if isinstance(faults, str) else faults:
        if name == "all":
            names += [each for each in FAULTS if each not in RARE]
        elif name in FAULTS:
            names.append(name)
        elif name != "none":
            raise ValueError(f"there is no fault {name!r}: use 'all', 'none', {', '.join(FAULTS)}")
    return tuple(each for each in FAULTS if each in names)  # the argument may be a set


@dataclass(frozen=True)
class Options:
    """The options of a simulated test.

    Attributes:
        faults: The names of faults that seeds draw from.
        faults_s: After these virtual seconds, faults stop.
        settle_s: Then the test must end within these virtual seconds.
    """

    nodes: int = 3
    faults: tuple[str, ...] = ()
    faults_s: float = 30.0
    settle_s: float = 60.0


@dataclass(frozen=True)
class Draw:
    seed: int
    order: Order
    faults: tuple[Fault, ...]

    def text(self) -> str:
        lines = [fault.text() for fault in self.faults]
        return "\n".join([*lines, f"order of callbacks: {self.order.value}"])


def draw(seed: int, options: Options) -> Draw:
    rng = random.Random(f"{seed}:kafka_sim")
    (order,) = rng.choices([*ORDERS], [*ORDERS.values()])
    is_calm = not options.faults or rng.random() < 0.1
    most = min(MOST_FAULTS, max(1, round(options.faults_s / FAULT_EACH_S)))
    count = 0 if is_calm else rng.randint(1, most)
    weights = {name: schedule.WEIGHTS[name] for name in options.faults}
    return Draw(seed, order, schedule.draw_faults(rng, count, options.faults_s, weights))


@dataclass
class TrialOutcome:
    """The outcome of a run.

    Attributes:
        error: Why the run has failed, without frames of the simulation. None: it has passed.
        digest: Differs from that of any other run.
        timeline: An HTML page, if the run was traced.
    """

    draw: Draw
    error: BaseException | None = None
    digest: str = ""
    timeline: str = ""
    virtual_s: float = field(default=0.0)

    def kind(self) -> str:
        """Return what equal failures have in common."""
        if isinstance(self.error, BrokenRuleError):
            return self.error.violations[0].rule
        return "" if self.error is None else type(self.error).__name__


class Trial:
    def __init__(
        self,
        loop: Loop,
        test: Test,
        options: Options,
        drawn: Draw,
        confinement: Confinement,
    ) -> None:
        self._loop, self._test, self._options = loop, test, options
        self._confinement = confinement
        self._world = Applications(loop, options.nodes)
        self.kafka = Kafka(drawn.seed, self._world)
        self._faults = FaultRunner(self._world, drawn.faults)

    async def run(self) -> None:
        loop, options = self._loop, self._options
        await self.kafka.broker.start()
        running = loop.start(TEST_HOST, self._test(self.kafka), name=TEST_HOST)
        self._faults.start()
        await self._watch(running, options.faults_s)
        await self._faults.stop()
        self.kafka.history.note(Kind.CALM, "course")
        self.kafka.has_faults = False
        await self._watch(running, loop.now + options.settle_s)
        if not running.done():
            raise NotSettledError(
                f"the test has not ended {options.settle_s:g} virtual seconds after the end of the "
                f"faults: it waits for {self.kafka.waits_for or _place_of(running)}"
            )
        running.result()
        await self._stop(loop.now + options.settle_s)
        await self.kafka.broker.stop()
        if (failure := self.kafka.broker.failure) is not None:
            raise failure
        for error in loop.lost_errors():
            if not (is_kafka_error(error) or isinstance(error, OSError)):
                raise error

    async def _watch(self, running: asyncio.Task[Any], until_s: float) -> None:
        while not running.done() and (left_s := until_s - self._loop.now) > 0:
            await asyncio.wait([running], timeout=min(LOOK_EACH_S, left_s))
            self._look()

    def _look(self) -> None:
        self._world.look()
        if (error := self._confinement.error) is not None:
            raise error
        for process in self._world.running:
            if process.error is not None:
                raise process.error

    async def _stop(self, until_s: float) -> None:
        alive = self._world.alive()
        stopping = [asyncio.ensure_future(self._world.stop(process)) for process in alive]
        while any(not each.done() for each in stopping):
            if self._loop.now > until_s:
                left = ", ".join(process.name for process in alive if not process.is_stopped)
                raise NotSettledError(f"processes do not stop: {left}")
            await asyncio.wait(stopping, timeout=LOOK_EACH_S)
        self._look()


def _place_of(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack()
    if not frames:
        return "an unknown coroutine"
    code = frames[-1].f_code
    return f"{code.co_name} ({code.co_filename}:{frames[-1].f_lineno})"


def run(test: Test, options: Options, drawn: Draw, *, is_traced: bool = False) -> TrialOutcome:
    """Run a test with one seed.

    Raises:
        BaseException: A signal's handler has raised it, as after Ctrl-C: no run may follow.
    """
    outcome = TrialOutcome(drawn)
    loop = Loop(drawn.seed, drawn.order, is_traced=is_traced, most_steps=MOST_STEPS)
    loop.set_exception_handler(_log)
    with confined(loop, drawn.seed) as confinement:
        trials: list[Trial] = []

        async def course() -> None:
            trials.append(Trial(loop, test, options, drawn, confinement))
            await trials[0].run()

        try:
            loop.run(course())
        except BaseException as error:  # noqa: BLE001 — the marker raises it
            outcome.error = error
        outcome.error = confinement.error or outcome.error
        if outcome.error is not None:
            outcome.error = outcome.error.with_traceback(_below(outcome.error.__traceback__))
        outcome.digest, outcome.virtual_s = loop.digest(), loop.now
        if is_traced and trials:
            outcome.timeline = _page(loop.timeline(), drawn, trials[0].kafka.text())
        loop.close()
        for trial in trials:
            trial.kafka.close()
        interrupt = confinement.interrupt
    if interrupt is not None:
        raise interrupt
    return outcome


@contextlib.contextmanager
def quiet(*, is_logged: bool) -> Iterator[None]:
    """Drop what killed processes leave, without a warning; and log lines of passing seeds."""
    hook, level = sys.unraisablehook, logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.unraisablehook = lambda report: None
        if not is_logged:
            logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            gc.collect()
            logging.disable(level)
            sys.unraisablehook = hook


def _log(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    logging.getLogger("asyncio").error(context["message"], exc_info=context.get("exception"))


def _below(traceback: TracebackType | None) -> TracebackType | None:
    """Leave out the frames of the simulation, if there are others."""
    below = traceback
    while below is not None and below.tb_frame.f_globals.get("__package__") == __package__:
        below = below.tb_next
    return below or traceback


def _page(timeline: str, drawn: Draw, events: str) -> str:
    texts = (f"<h2>{title}</h2><pre>{html.escape(text)}</pre>" for title, text in (
        ("Faults", drawn.text()), ("Events", events),
    ))  # fmt: skip
    head, end, tail = timeline.rpartition("</body>")
    return f"{head}{''.join(texts)}{end}{tail}" if end else timeline + "".join(texts)


def shrink(test: Test, options: Options, failed: TrialOutcome) -> TrialOutcome:
    """Return a failure of the same kind with fewer faults, and callbacks in their order."""
    best, left = failed, MOST_RUNS

    def fails(drawn: Draw) -> bool:
        nonlocal best, left
        if not left:
            return False
        left -= 1
        outcome = run(test, options, drawn)
        if outcome.kind() != failed.kind():
            return False
        best = outcome
        return True

    fails(replace(failed.draw, order=Order.FIFO))
    schedule.shrunk(best.draw.faults, lambda faults: fails(replace(best.draw, faults=faults)))
    return best
