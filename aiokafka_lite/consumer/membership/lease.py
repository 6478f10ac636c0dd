"""A member holds its partitions as a lease: until one session has passed without a heartbeat.

After a session the coordinator assigns the partitions to other members. Only the coordinator
notices the end of the session: a member that is cut off, or whose loop is blocked, receives no
message. So the lease checks the clock: after a session without a response, reads return no records
until a heartbeat is answered, or the partitions are revoked.

A thread may receive responses while the loop is blocked. The lease asks the thread whenever it
checks the clock, so a read right after the block uses what the thread knows.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final, NamedTuple, Protocol

from aiokafka_lite.consumer.assignment.subscription import SubscriptionState, is_subscribed
from aiokafka_lite.consumer.gate import Gate, Hold
from aiokafka_lite.consumer.membership.protocol import Identity

# How much of a session may pass before it counts as over: two clocks do not agree to the last
# millisecond, and those of brokers (and of uvloop) have no smaller unit.
LEASE_SHARE: Final = 0.99


class Elsewhere(NamedTuple):
    """The latest responses that the thread has received."""

    # Loop time at which the latest answered heartbeat was sent.
    asked_at: float
    # Whether the group has removed the member.
    is_lost: bool


class Holder(Protocol):
    """The member whose lease it is."""

    @property
    def identity(self) -> Identity: ...

    @property
    def hands_out(self) -> bool:
        """Whether reads return records of the partitions that the member holds."""


class Ear(Protocol):
    """The thread that may receive responses while the loop is blocked."""

    def heard(self, identity: Identity) -> Elsewhere:
        """Return the thread's latest responses for a member."""


class Lease:
    """Withholds records while the coordinator may have reassigned the partitions.

    Args:
        session_s: The session timeout.
        gate: Withholds the records.
        state: The subscription. Without subscribed topics there is no lease.
        member: The member that holds the partitions.
        ear: The thread.
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

    @property
    def hands_out(self) -> bool:
        """Whether reads return records of partitions that the group has assigned."""
        return self._member.hands_out and is_subscribed(self._state)

    def renew(self, asked_at: float) -> None:
        """Note that the coordinator has answered a request that was sent at a loop time.

        The session begins with the request, because the response may have waited for a blocked
        loop.
        """
        self._ends_at = asked_at + self._session_s * LEASE_SHARE
        self._gate.look_by(self.look)
        self.look()

    def look(self) -> None:
        """Withhold records if the lease is over, or else release them, and set the alarm."""
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
        """End the lease, which withholds no records from now on. Idempotent."""
        self._ends_at = math.inf
        self._silence()
        self.look()
        self._gate.look_no_more_by(self.look)

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
