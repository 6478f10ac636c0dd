"""Measures the event loop's lag, and names the code that blocked it.

One timer for all consumers of a loop fires four times a second: often enough, and few of the wakes
of an idle consumer. The blocking code has returned when it fires late. If the application has
received records since it fired last, the event names the latest record, and the line of the task
that reads. If not, it was the rebalance listener or other code, which asyncio's debug mode names. A
stopped process looks the same.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from types import FrameType
from typing import Final

from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.consumer.core import Core
from aiokafka_lite.consumer.delivery.next_record import NextRecord
from aiokafka_lite.consumer.gate import Hold

INTERVAL_S: Final = 0.25
# Least lag of an event. Blocks longer than this and an interval are always found, and measured to
# within an interval.
BLOCKED_S: Final = 0.1
# Least lag of a warning, or half a session: longer than the import of pyarrow.
WARN_S: Final = 3.0
# How long a block is reported.
RECENT_S: Final = 10.0
# The search for the reading task is skipped if there are more tasks.
MAX_TASKS: Final = 1_000
MAX_NAMED: Final = 3
OWN_CODE: Final = __file__.rpartition("consumer")[0]


class LoopTimer:
    """The timer of one loop, which is `due` next at a loop time. Set while there are probes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.due = 0.0
        self._loop = loop
        self._probes: dict[LoopProbe, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, probe: LoopProbe) -> None:
        self._probes[probe] = None
        if self._timer is None:
            self._arm()

    def remove(self, probe: LoopProbe) -> None:
        self._probes.pop(probe, None)
        if self._timer is not None and not self._probes:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self.due = self._loop.time() + INTERVAL_S
        self._timer = self._loop.call_at(self.due, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = self._loop.time()
        lag_s = max(0.0, now - self.due)
        try:
            for probe in tuple(self._probes):
                probe.fired(now, lag_s)
        finally:
            if self._probes and self._timer is None:
                self._arm()


# By the loop's id, which is unique because a timer keeps its loop alive.
_timers: weakref.WeakValueDictionary[int, LoopTimer] = weakref.WeakValueDictionary()


def _timer_of(loop: asyncio.AbstractEventLoop) -> LoopTimer:
    timer = _timers.get(id(loop))
    if timer is None:
        timer = _timers[id(loop)] = LoopTimer(loop)
    return timer


class LoopProbe:
    """Measures the loop's lag between `start` and `stop`: the longest, and the latest block."""

    def __init__(self, core: Core) -> None:
        self.lag_s = 0.0
        self.max_lag_s = 0.0
        self.blocked_s = 0.0
        self.blocked_at: float | None = None
        self._reads, self._gate, self._events = core.reads, core.gate, core.events
        self._warn_s = min(WARN_S, core.config.session_timeout_s / 2)
        # Deserialisers run within reads, and may be slow.
        has_deserializers = core.buffer.delivery.has_deserializers
        self._also = " or its deserialisers" if has_deserializers else ""
        self._timer: LoopTimer | None = None
        # The number of reads with records when the timer fired last.
        self._hand_out_count = 0

    def start(self) -> None:
        self._timer = _timer_of(asyncio.get_running_loop())
        self._timer.add(self)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.remove(self)
            self._timer = None

    def lag_now_s(self, now: float) -> float:
        late_s = 0.0 if self._timer is None else now - self._timer.due
        return max(self.lag_s, late_s)

    def blocked_lately_s(self, now: float) -> float:
        if self.blocked_at is None or now - self.blocked_at > RECENT_S:
            return 0.0
        return self.blocked_s

    def fired(self, now: float, lag_s: float) -> None:
        self.lag_s = lag_s
        self.max_lag_s = max(self.max_lag_s, lag_s)
        hand_out_count = self._reads.hand_out_count
        if lag_s > BLOCKED_S:
            self._tell(now, lag_s, has_handed_out=hand_out_count != self._hand_out_count)
        self._hand_out_count = hand_out_count

    def _tell(self, now: float, blocked_s: float, *, has_handed_out: bool) -> None:
        from aiokafka_lite.events import LoopBlocked

        self.blocked_s, self.blocked_at = blocked_s, now
        self._events.publish(
            LoopBlocked(blocked_s, self._blocker(has_handed_out=has_handed_out)),
            level=logging.WARNING if blocked_s >= self._warn_s else logging.INFO,
        )

    def _blocker(self, *, has_handed_out: bool) -> str:
        reads = self._reads
        if has_handed_out and (partition := reads.latest_hand_out) is not None:
            offset = (partition.position or 0) - 1
            where = _where_records_are_asked_for(reads)
            return (
                f"the application{self._also}, after it received records of "
                f"{partition.tp.topic}/{partition.tp.partition} up to offset {offset}{where}"
            )
        if Hold.LISTENER in self._gate.holds:
            return "the rebalance listener, or other code in this process"
        return "other code in this process (set PYTHONASYNCIODEBUG=1 and asyncio logs this code)"


def _where_records_are_asked_for(reads: Reads) -> str:
    tasks = asyncio.all_tasks()
    if len(tasks) > MAX_TASKS:
        return ""
    found = []
    for task in sorted(tasks, key=lambda task: task.get_name()):
        if (frame := _frame_above_ours(task.get_coro(), reads)) is not None:
            code = frame.f_code
            line = f"{code.co_filename}:{frame.f_lineno}, {code.co_name}"
            found.append(f"task {task.get_name()}, {line}")
    return f" ({' or '.join(found)})" if 0 < len(found) <= MAX_NAMED else ""


def _frame_above_ours(awaited: object, reads: Reads) -> FrameType | None:
    """Return the application's frame that awaits a read of these.

    No other frames are accessed: `f_locals`, once accessed, keep their values until the end.
    """
    above: object = None
    while not isinstance(awaited, NextRecord):
        code = getattr(awaited, "cr_code", None)
        if code is None:
            return None
        if code.co_filename.startswith(OWN_CODE):
            frame = None if above is None else getattr(awaited, "cr_frame", None)
            owner = None if frame is None else frame.f_locals.get("self")
            if getattr(owner, "_reads", None) is not reads:
                return None
            break
        above, awaited = awaited, getattr(awaited, "cr_await", None)
    return getattr(above, "cr_frame", None)
