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
        expire: Has a group act on one deadline that has passed.
    """

    def __init__(self, expire: Callable[[TimedT, float], None]) -> None:
        self._expire = expire
        # When it fires, and its handle.
        self._armed: dict[str, tuple[float, asyncio.TimerHandle]] = {}

    def arm(self, group: TimedT) -> None:
        """See to it that a group is called when its next deadline has come."""
        deadline = group.next_deadline()
        armed = self._armed.get(group.group_id)
        if armed is not None:
            if deadline is not None and armed[0] <= deadline:
                return
            self.cancel(group.group_id)
        if deadline is not None:
            handle = asyncio.get_running_loop().call_at(deadline, self._fire, group)
            self._armed[group.group_id] = (deadline, handle)

    def cancel(self, group_id: str) -> None:
        """Forget a group's timer, if it has one."""
        armed = self._armed.pop(group_id, None)
        if armed is not None:
            armed[1].cancel()

    def close(self) -> None:
        """Forget every timer."""
        for group_id in tuple(self._armed):
            self.cancel(group_id)

    def _fire(self, group: TimedT) -> None:
        self._armed.pop(group.group_id, None)
        now = asyncio.get_running_loop().time()
        while (deadline := group.next_deadline()) is not None and deadline <= now:
            self._expire(group, now)
        self.arm(group)
