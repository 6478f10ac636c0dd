"""One timer of the event loop for each group, armed for the earliest of the group's deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class TimedGroup(Protocol):
    """A machine that says when it wants to be called."""

    @property
    def group_id(self) -> str: ...

    def next_deadline(self) -> float | None: ...


TimedT = TypeVar("TimedT", bound=TimedGroup)


class GroupTimers(Generic[TimedT]):
    """Calls groups when their deadlines have come; seconds of the loop's clock.

    A timer may fire before its group's next deadline, as heartbeats move that without touching
    the timer; it is then armed again.

    Args:
        expire: Has a group act on one deadline that has passed, and arms what the group has become.
    """

    def __init__(self, expire: Callable[[TimedT, float], None]) -> None:
        self._expire = expire
        self._armed: dict[str, asyncio.TimerHandle] = {}

    def arm(self, group: TimedT) -> None:
        """See to it that a group is called when its next deadline has come."""
        self.cancel(group.group_id)
        deadline = group.next_deadline()
        if deadline is not None:
            timer = asyncio.get_running_loop().call_at(deadline, self._fire, group)
            self._armed[group.group_id] = timer

    def cancel(self, group_id: str) -> None:
        """Forget a group's timer, if it has one."""
        timer = self._armed.pop(group_id, None)
        if timer is not None:
            timer.cancel()

    def _fire(self, group: TimedT) -> None:
        now = asyncio.get_running_loop().time()
        deadline = group.next_deadline()
        if deadline is not None and deadline <= now:
            self._expire(group, now)
        else:
            self.arm(group)
