"""When connections that nobody uses are closed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import cast

import pytest

from aiokafka_lite._compat import override
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.config import ClientConfig
from aiokafka_lite.client.connection import Connection
from aiokafka_lite.client.lanes import Lane, Slot
from aiokafka_lite.client.pool import Pool

pytestmark = pytest.mark.virtual_time


class Used:
    """What the timer asks of a connection."""

    def __init__(self, last_used: float, in_flight_count: int = 0) -> None:
        self.last_used = last_used
        self.in_flight_count = in_flight_count


class Closing(Pool):
    """Connections by name, and when each was closed."""

    def __init__(self, max_idle_s: float | None) -> None:
        self.open: dict[str, Used] = {}
        self.closed_at: dict[str, float] = {}
        self._slots: dict[str, Slot] = {}
        config = ClientConfig(connections_max_idle_s=max_idle_s)
        super().__init__(config, scope=TaskScope("client"), rng=random.Random(1))

    @override
    def _connected_slots(self) -> Iterator[tuple[Slot, Connection]]:
        for name, used in self.open.items():
            yield self._slots.setdefault(name, Slot(Lane(name))), cast("Connection", used)

    @override
    def _let_go(self, slot: Slot, connection: Connection) -> None:
        assert self.open.pop(slot.lane.name) is cast("Used", connection)
        self.closed_at[slot.lane.name] = asyncio.get_running_loop().time()


async def test_a_connection_is_closed_when_it_was_not_used_for_so_long() -> None:
    closing = Closing(10.0)
    closing.open = {"first": Used(0.0), "second": Used(4.0), "waiting": Used(1.0, 1)}
    closing._arm_idle_timer()
    await asyncio.sleep(5.0)
    closing._arm_idle_timer()
    await asyncio.sleep(12.0)
    assert closing.closed_at == {"first": 10.0, "second": 14.0}
    closing.open["waiting"].in_flight_count = 0
    closing.open["waiting"].last_used = 17.0
    await asyncio.sleep(33.0)
    assert closing.closed_at.pop("waiting") == 27.0
    closing.open["later"] = Used(50.0)
    closing._arm_idle_timer()
    await asyncio.sleep(15.0)
    assert closing.closed_at["later"] == 60.0


async def test_no_connection_is_closed_without_a_limit_or_at_the_end() -> None:
    endless, over = Closing(None), Closing(10.0)
    for closing in (endless, over):
        closing.open = {"unused": Used(0.0)}
        closing._arm_idle_timer()
    over.abort()
    over.abort()
    assert over.closed_at == {"unused": 0.0}
    over.open = {"unused": Used(0.0)}
    await asyncio.sleep(100.0)
    assert endless.open.keys() == over.open.keys() == {"unused"}
