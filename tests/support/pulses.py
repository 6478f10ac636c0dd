"""The thread that stands in for a blocked event loop, played by a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from aiokafka_lite.consumer.membership.protocol import Identity
from aiokafka_lite.consumer.membership.stand_in import Pulse


class Topics(NamedTuple):
    """The topics that a member subscribes to."""

    partition_count: int = 0


class Thread:
    """Notes the pulses, and lets the loop speak unless the test forbids it."""

    is_there = True
    count = 0

    def __init__(self) -> None:
        self.pulses = list[Pulse | None]()
        self.turns = list[bool]()
        self.may_speak = asyncio.Event()
        self.may_speak.set()

    def rest(self) -> None:
        self.pulses.append(None)

    def note_next(
        self, voice: object, sent_as: Identity, node: object, *, next_s: float, interval_s: float,
        left_s: float,
    ) -> bool:  # fmt: skip
        self.pulses.append(Pulse(voice, sent_as, node, next_s, interval_s, left_s))  # type: ignore[arg-type]
        return self.may_speak.is_set()

    async def wait_for_turn(self, note_next: Callable[[], bool], wait_for_change: object) -> None:
        self.turns.append(note_next())
        if not self.turns[-1]:
            await self.may_speak.wait()
