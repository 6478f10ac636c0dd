"""Drives the machines of classic groups: parks requests, writes records, answers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, cast

from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.groups.classic.machine import ClassicGroup
from aiokafka_lite.broker.groups.classic.records import metadata_record
from aiokafka_lite.broker.groups.coordinator_log import CoordinatorRecord
from aiokafka_lite.broker.groups.values import (
    Effects,
    ErrorType,
    Join,
    Joined,
    Sync,
    Synced,
    Ticket,
)

Write: TypeAlias = Callable[[str, Sequence[CoordinatorRecord]], ErrorType]


@dataclass(eq=False)
class ClassicDriver:
    config: BrokerConfig
    clock: Callable[[], int]
    new_id: Callable[[], str]
    write: Write
    arm: Callable[[ClassicGroup], None]
    parked: dict[Ticket, asyncio.Future[Joined | Synced]] = field(default_factory=dict, init=False)
    _tickets: Iterator[int] = field(default_factory=itertools.count, init=False)

    def new_group(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(group_id, self.config, new_suffix=self.new_id, clock=self.clock)

    async def join(self, group: ClassicGroup, call: Join) -> Joined:
        """Answer a JoinGroup request. Cancellation drops it, but not the member."""
        return cast("Joined", await self._park(group, partial(group.join, call)))

    async def sync(self, group: ClassicGroup, call: Sync) -> Synced:
        return cast("Synced", await self._park(group, partial(group.sync, call)))

    async def _park(
        self, group: ClassicGroup, request: Callable[[Ticket, float], Effects]
    ) -> Joined | Synced:
        ticket = Ticket(next(self._tickets))
        parked: asyncio.Future[Joined | Synced] = asyncio.get_running_loop().create_future()
        self.parked[ticket] = parked
        self.act(group, request(ticket, self._now()))
        try:
            return await parked
        finally:
            del self.parked[ticket]

    def act(self, group: ClassicGroup, effects: Effects) -> None:
        """Apply effects, and the effects that their write returns."""
        while True:
            for ticket, reply in effects.replies:
                request = self.parked.get(ticket)
                if request is not None and not request.done():
                    request.set_result(reply)
            if effects.write is None:
                break
            error = self.write(group.group_id, [metadata_record(group, effects.write.assignments)])
            effects = effects.write.done(error, self._now())
        self.arm(group)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
