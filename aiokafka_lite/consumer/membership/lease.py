"""A membership is a lease: what a member holds is its own while the coordinator hears of it.

A session after the last heartbeat the coordinator gives the partitions to others, and it is the
coordinator that sees the session end: who is cut off, or whose loop was blocked, is told nothing.
So this side looks at the clock as well: after a session without an answer gets hand out nothing
until a heartbeat is answered, or the partitions are given up.

A thread may be answered while the loop is blocked. The lease asks it whenever it looks, so that a
get right after the block goes by that, before the loop has been told anything.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final, NamedTuple, Protocol

from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.assignment.topics import is_subscribed
from aiokafka_lite.consumer.gate import Gate, Hold
from aiokafka_lite.consumer.membership.protocol import Identity

# How much of a session may pass before it counts as over: two clocks do not agree to the last
# millisecond, and those of brokers (and of uvloop) have no smaller unit.
LEASE_SHARE: Final = 0.99


class Elsewhere(NamedTuple):
    """What was heard of the member elsewhere than on the loop."""

    # Loop time at which a heartbeat was sent that was answered.
    asked_at: float
    # Whether the group does not count the member in any more.
    is_lost: bool


class Holder(Protocol):
    """The member whose lease it is."""

    @property
    def identity(self) -> Identity: ...

    @property
    def hands_out(self) -> bool:
        """Whether reads return records of the partitions that the member holds."""


class Ear(Protocol):
    """Receives responses of the coordinator elsewhere than on the loop."""

    def heard(self, identity: Identity) -> Elsewhere:
        """Return what the loop may not know yet of a member."""


class Lease:
    """Holds gets while the coordinator may have given the partitions to others.

    Args:
        session_s: After so long without a word the coordinator gives them away.
        gate: Of the gets.
        state: Says whether topics are subscribed.
        member: Who holds the partitions.
        ear: What was heard elsewhere than on the loop.
    """

    def __init__(
        self,
        session_s: float,
        gate: Gate,
        state: SubscriptionState,
        member: Holder,
        ear: Ear,
    ) -> None:
        self._session_s = session_s
        self._state = state
        self._gate = gate
        self._member = member
        self._ear = ear
        self._loop = asyncio.get_running_loop()
        # While there is none: for ever.
        self._ends_at = math.inf
        self._alarm: asyncio.TimerHandle | None = None
        gate.look_by(self.look)

    @property
    def hands_out(self) -> bool:
        """Whether reads return records of partitions that the group has assigned."""
        return self._member.hands_out and is_subscribed(self._state)

    def renew(self, asked_at: float) -> None:
        """Note that the coordinator has answered what was sent at a loop time.

        All that is known is that it heard of the member after that: the answer may have waited
        here for a loop that was blocked.
        """
        self._ends_at = asked_at + self._session_s * LEASE_SHARE
        self.look()

    def look(self) -> None:
        """Hold gets if the lease is over, and let them go on if it is not; set the alarm."""
        hands_out = self.hands_out
        is_over = hands_out and self._ends_at < math.inf and self._is_over()
        if hands_out and not is_over and self._alarm is None and self._ends_at < math.inf:
            # It runs ahead of every task that a blocked loop has kept waiting.
            self._alarm = self._loop.call_at(self._ends_at, self._ended)
        if is_over != (Hold.CUT_OFF in self._gate.holds):
            if is_over:
                self._gate.hold(Hold.CUT_OFF)
            else:
                self._gate.release(Hold.CUT_OFF)

    def _is_over(self) -> bool:
        asked_at, is_lost = self._ear.heard(self._member.identity)
        self._ends_at = max(self._ends_at, asked_at + self._session_s * LEASE_SHARE)
        return is_lost or self._loop.time() >= self._ends_at

    def _ended(self) -> None:
        self._alarm = None
        self.look()

    def end(self) -> None:
        """Need none any more: nothing is held. Idempotent."""
        self._ends_at = math.inf
        self._silence()
        self.look()
        self._gate.look_by(None)

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
