"""Workers of `run` whose steps are compiled: they do what those in plain Python do."""

from __future__ import annotations

import asyncio
import gc
import traceback
import weakref
from collections.abc import Awaitable
from contextvars import ContextVar
from types import CoroutineType
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.processing import _calls_py
from aiokafka_lite.consumer.processing import run as run_module
from aiokafka_lite.consumer.processing.handling import CircuitBreaker, DeadRecord, Handling
from aiokafka_lite.consumer.processing.lanes import Order
from aiokafka_lite.consumer.processing.run import SLICE_S, Run
from aiokafka_lite.processing import Retry
from tests.consumer.processing.acking import Record
from tests.support.buffers import A, Buffers, batch, no_transactions
from tests.support.virtual_time import VirtualTimeLoop
from tests.support.waiting import until

PLAIN: Final = _calls_py.Calls
USED: Final[type] = vars(run_module)["Calls"]
COMPILED: Final = USED is not PLAIN
WAYS: Final = [PLAIN, USED] if COMPILED else [PLAIN]
SEEN: ContextVar[int] = ContextVar("seen", default=-1)
BREAKER: Final = CircuitBreaker(
    min_calls=2, first_pause_ms=20, max_pause_ms=40, probes=1, give_up_ms=200
)
ACTS: Final = (
    *(
        "raise",
        "set",
        "cancel",
        "swallow",
        "hang",
        "ignore",
        "future",
        "long",
        "wrong",
        "refuse",
        "pause",
        "resume",
    ),
    *("return", "turn", "sleep", "none") * 3,
)


class Course:
    """Records that handlers do something with, and what there was to see of it."""

    def __init__(
        self,
        acts: list[str],
        order: Order,
        breaker: CircuitBreaker | None,
        timeout_s: float | None = None,
    ) -> None:
        self.acts, self.count = acts, len(acts)
        self.loop = VirtualTimeLoop()
        self.log: list[object] = []
        self.given: list[Any] = []
        self.left: list[int] = []
        self.handling = Handling(
            concurrency=3,
            order=order,
            batch_size=None,
            max_uncommitted=1_000,
            retry=Retry(attempts=2, first_delay_ms=1),
            dead_letter=self.bury,
            breaker=breaker,
            timeout_s=timeout_s,
        )

    async def bury(self, dead: DeadRecord) -> None:
        frames = traceback.extract_tb(dead.error.__traceback__)
        names = [frame.name for frame in frames if frame.name in ("_work", "handle", "act")]
        self.log.append((dead.record.offset, repr(dead.error), names))

    def handle(self, record: Record) -> Awaitable[object]:
        act = self.acts[record.offset]
        self.log.append((record.offset, act, self.loop.time()))
        if act == "future":
            return asyncio.ensure_future(asyncio.sleep(0.01))
        if act == "refuse":
            raise ValueError(record.offset)
        if act == "wrong":
            return None  # type: ignore[return-value]
        return self.act(act, record)

    async def act(self, act: str, record: Record) -> object:
        task = asyncio.current_task()
        assert task is not None
        self.log.append((task.get_name(), SEEN.get()))
        if act == "turn":
            await asyncio.sleep(0)
        elif act == "sleep":
            await asyncio.sleep(0.01 * (1 + record.offset % 3))
        elif act == "raise":
            raise ValueError(record.offset)
        elif act == "set":
            SEEN.set(record.offset)
        elif act in ("cancel", "swallow"):
            task.cancel()
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                if act == "cancel":
                    raise
        elif act in ("hang", "ignore"):
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                if act == "hang":
                    raise
        elif act == "long":
            self.loop.pass_time(2 * SLICE_S)
        elif act in ("pause", "resume"):
            partition = self.buffers.partition()
            self.buffers.state.pause(partition)
            self.loop.call_later(0.02, self.buffers.state.resume, partition)
            if act == "resume":
                await asyncio.sleep(0.05)
        self.log.append(record.offset)
        return None if act == "none" else (act, record.offset)

    async def when_done(self) -> None:
        pass

    async def run(self) -> None:
        self.buffers = Buffers(A)
        self.buffers.put({A: batch(0, self.count)})
        run = Run(
            self.buffers.state.core(
                ConsumerConfig(rebalance_hold_ms=5_000), buffer=self.buffers.buffer
            ),
            self.handle,
            self.handling,
            no_transactions,
        )
        with run.opened():
            task = asyncio.ensure_future(run.run())
            await until(lambda: task.done() or self.buffers.partition().processed == self.count)
            await self.when_done()
            await run.end(self.loop.time())
            await asyncio.wait([task])
            self.log.append((task.exception(), run.counts(), self.buffers.partition().processed))
        self.log.append(dict(self.buffers.state.works.totals))


def run_with(way: type, course: Course) -> list[object]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run_module, "Calls", way)
        try:
            course.loop.run_until_complete(course.run())
        finally:
            course.loop.close()
    return course.log


@pytest.mark.skipif(not COMPILED, reason="the extension is not built")
@given(
    st.lists(st.sampled_from(ACTS), min_size=1, max_size=40),
    st.sampled_from(["key", "partition", None]),
    st.sampled_from([None, BREAKER]),
    st.sampled_from([None, 0.025]),
)
@example(["set", "return", "turn", "return"] * 2, None, None, None)
@example(["ignore", "return", "sleep", "hang", "return", "turn"], None, None, 0.025)
@example(["raise"] * 8 + ["return"], "key", BREAKER, None)
@example(["raise", "raise", "future", "long"], "key", BREAKER, None)
@example(["pause", "return", "none", "resume", "return"], None, None, None)
@example(["swallow", "return", "cancel", "return", "long", "return"], None, None, None)
def test_both_do_the_same(
    acts: list[str], order: Order, breaker: CircuitBreaker | None, timeout_s: float | None
) -> None:
    plain, compiled = (run_with(way, Course(acts, order, breaker, timeout_s)) for way in WAYS)
    assert compiled == plain


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_shows_the_coroutine_of_its_handler(way: type) -> None:
    async def look() -> list[str]:
        names = []
        for task in asyncio.all_tasks():
            awaited: Any = task.get_coro()
            while isinstance(awaited, CoroutineType) or hasattr(awaited, "cr_await"):
                names.append(awaited.cr_code.co_name)
                awaited = awaited.cr_await
        return names

    class Looking(Course):
        async def act(self, act: str, record: Record) -> object:
            await asyncio.sleep(0.01)
            self.log.append((await look()).count("act"))
            return None

    log = run_with(way, Looking(["sleep"] * 9, None, None))
    assert max(entry for entry in log if isinstance(entry, int)) == 2  # all but itself


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_that_waits_holds_no_record(way: type) -> None:
    class Holding(Course):
        def handle(self, record: Record) -> Awaitable[object]:
            self.given.append(weakref.ref(record))
            return super().handle(record)

        async def bury(self, dead: DeadRecord) -> None:
            pass

        async def when_done(self) -> None:
            await asyncio.sleep(0.1)
            gc.collect()
            self.left = [given().offset for given in self.given if given() is not None]

    course = Holding(["return", "turn", "sleep", "raise", "return", "sleep"], None, None)
    run_with(way, course)
    assert (len(course.given), course.left) == (7, [])
