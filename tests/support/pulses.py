"""The thread that stands in for a blocked event loop, played by a test."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from aiokafka_lite.consumer.membership.heartbeat_thread import Snapshot


class Topics(NamedTuple):
    """The topics that a member subscribes to."""

    partition_count: int = 0


class Thread:
    """Notes the pulses, and lets the loop speak unless the test forbids it."""

    is_there = True
    count = 0

    def __init__(self) -> None:
        self.pulses = list[Snapshot | None]()
        self.may_speak = asyncio.Event()
        self.may_speak.set()

    def start(self) -> None:
        """The test stands in for it."""

    async def end(self) -> None:
        """It has not begun."""

    def rest(self) -> None:
        self.pulses.append(None)

    def clock(self) -> float:
        return 0.0

    def claim(self, snapshot: Snapshot) -> bool:
        self.pulses.append(snapshot)
        return self.may_speak.is_set()

    def hang_up(self) -> None:
        """Leave a heartbeat that is on its way to itself."""
