"""When connections that nobody uses are closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from aiokafka_lite.client.connection import Connection
from aiokafka_lite.client.lanes import IdleTimer, Lane, Slot

pytestmark = pytest.mark.virtual_time


class Used:
    """What the timer asks of a connection."""

    def __init__(self, last_used: float, in_flight_count: int = 0) -> None:
        self.last_used = last_used
        self.in_flight_count = in_flight_count


class Closing:
    """Connections by name, and when each was closed."""

    def __init__(self, max_idle_s: float | None) -> None:
        self.open: dict[str, Used] = {}
        self.closed_at: dict[str, float] = {}
        self._slots: dict[str, Slot] = {}
        self.timer = IdleTimer(max_idle_s, self._connected, self._let_go, self._guard)

    def _connected(self) -> list[tuple[Slot, Connection]]:
        return [
            (self._slots.setdefault(name, Slot(Lane(name))), cast("Connection", used))
            for name, used in self.open.items()
        ]

    def _let_go(self, slot: Slot, connection: Connection) -> None:
        assert self.open.pop(slot.lane.name) is cast("Used", connection)
        self.closed_at[slot.lane.name] = asyncio.get_running_loop().time()

    @staticmethod
    def _guard(callback: Callable[[], object], *, name: str) -> Callable[..., None]:
        def guarded(*_: object) -> None:
            callback()

        return guarded


async def test_a_connection_is_closed_when_it_was_not_used_for_so_long() -> None:
    closing = Closing(10.0)
    closing.open = {"first": Used(0.0), "second": Used(4.0), "waiting": Used(1.0, 1)}
    closing.timer.arm()
    await asyncio.sleep(5.0)
    closing.timer.arm()
    await asyncio.sleep(12.0)
    assert closing.closed_at == {"first": 10.0, "second": 14.0}
    closing.open["waiting"].in_flight_count = 0
    closing.open["waiting"].last_used = 17.0
    await asyncio.sleep(33.0)
    assert closing.closed_at.pop("waiting") == 27.0
    closing.open["later"] = Used(50.0)
    closing.timer.arm()
    await asyncio.sleep(15.0)
    assert closing.closed_at["later"] == 60.0


async def test_no_connection_is_closed_without_a_limit_or_at_the_end() -> None:
    endless, over = Closing(None), Closing(10.0)
    for closing in (endless, over):
        closing.open = {"unused": Used(0.0)}
        closing.timer.arm()
    over.timer.cancel()
    over.timer.cancel()
    await asyncio.sleep(100.0)
    assert endless.open.keys() == over.open.keys() == {"unused"}
