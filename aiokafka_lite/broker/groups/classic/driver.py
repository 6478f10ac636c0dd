"""Drives the machines of classic groups: parks requests, writes records, answers."""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from aiokafka_lite.broker.groups.classic.machine import ClassicGroup
from aiokafka_lite.broker.groups.classic.records import metadata_record
from aiokafka_lite.broker.groups.coordinator_log import CoordinatorRecord
from aiokafka_lite.broker.groups.values import (
    Effects,
    ErrorType,
    GroupSettings,
    Join,
    Joined,
    Sync,
    Synced,
    Ticket,
)

ReplyT = TypeVar("ReplyT", Joined, Synced)
Write: TypeAlias = Callable[[str, Sequence[CoordinatorRecord]], ErrorType]


class ClassicDriver:
    def __init__(
        self,
        settings: GroupSettings,
        *,
        clock: Callable[[], int],
        rng: random.Random,
        write: Write,
        arm: Callable[[ClassicGroup], None],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._write = write
        self._arm = arm
        self._joins: dict[Ticket, asyncio.Future[Joined]] = {}
        self._syncs: dict[Ticket, asyncio.Future[Synced]] = {}
        self._tickets = itertools.count()

    @property
    def parked_count(self) -> int:
        return len(self._joins) + len(self._syncs)

    def new_group(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(
            group_id, self._settings, new_suffix=self._new_suffix, clock=self._clock
        )

    async def join(self, group: ClassicGroup, call: Join) -> Joined:
        ticket, parked = self._park(self._joins)
        self.act(group, group.join(call, ticket, self._now()))
        try:
            return await parked
        finally:
            del self._joins[ticket]

    async def sync(self, group: ClassicGroup, call: Sync) -> Synced:
        ticket, parked = self._park(self._syncs)
        self.act(group, group.sync(call, ticket, self._now()))
        try:
            return await parked
        finally:
            del self._syncs[ticket]

    def act(self, group: ClassicGroup, effects: Effects) -> None:
        """Apply effects, and the effects that their write returns."""
        while True:
            for ticket, reply in effects.replies:
                self._resolve(ticket, reply)
            if effects.write is None:
                break
            error = self._write(group.group_id, [metadata_record(group, effects.write.assignments)])
            effects = effects.write.done(error, self._now())
        self._arm(group)

    def _park(
        self, parked: dict[Ticket, asyncio.Future[ReplyT]]
    ) -> tuple[Ticket, asyncio.Future[ReplyT]]:
        ticket = Ticket(next(self._tickets))
        future: asyncio.Future[ReplyT] = asyncio.get_running_loop().create_future()
        parked[ticket] = future
        return ticket, future

    def _resolve(self, ticket: Ticket, reply: Joined | Synced) -> None:
        if isinstance(reply, Joined):
            _set_result(self._joins.get(ticket), reply)
        else:
            _set_result(self._syncs.get(ticket), reply)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _new_suffix(self) -> str:
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))


def _set_result(future: asyncio.Future[ReplyT] | None, reply: ReplyT) -> None:
    if future is not None and not future.done():
        future.set_result(reply)
