"""The part of a member's heartbeats that both protocols share.

Each response renews the lease (lease.py). While the loop is blocked, a thread may send heartbeats
(stand_in.py), and reports their outcome to `hear_of_stand_in`. No other module knows that thread.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from aiokafka_lite.client.backoff import LONGEST_BACKOFF_S, Backoff
from aiokafka_lite.consumer.events.stream import LogLimit
from aiokafka_lite.consumer.membership.group_task import Surroundings
from aiokafka_lite.consumer.membership.lease import Holder, Lease
from aiokafka_lite.consumer.membership.stand_in import Outcome, StandIn
from aiokafka_lite.errors import KafkaError

log = logging.getLogger(__name__)


class MemberOfGroup(Holder, Protocol):
    """A member, as far as its heartbeats are the same in both protocols."""

    @property
    def group_id(self) -> str: ...


MemberT = TypeVar("MemberT", bound=MemberOfGroup)


class MemberHeartbeat(ABC, Generic[MemberT]):
    """Heartbeats of one member.

    Args:
        around: The parts of the membership.
        member: The member.
        session_s: How long the group keeps a member that sends no heartbeat.
    """

    def __init__(self, around: Surroundings, member: MemberT, session_s: float) -> None:
        self._config = around.config
        self._reads = around.reads
        self._gate = around.gate
        self._coordinator = around.coordinator
        self._scope = around.scope
        self._member = member
        self._session_s = session_s
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff(self._config.retry_backoff_s, LONGEST_BACKOFF_S, around.rng)
        self._log_limit = LogLimit()
        self.stand_in = StandIn(
            member.group_id, around.open_cluster, scope=around.scope, hear=self.hear_of_stand_in
        )
        self.lease = Lease(session_s, around.gate, around.state, member, self.stand_in)
        # Loop time of the latest request that the coordinator has answered; 0.0: it has none.
        self._last_contact = 0.0
        self.beat_count = 0
        self.failure_count = 0
        # How long the event loop was blocked since then, if that was long.
        self._blocked_s = 0.0

    @abstractmethod
    def hear_of_stand_in(self, outcome: Outcome, sent_at: float) -> None:
        """Take the outcome of a heartbeat that the thread has sent at a loop time."""

    @property
    def last_contact_at(self) -> float | None:
        """Loop time at which the latest answered heartbeat was sent; None: none was answered."""
        return self._last_contact or None

    def _renew(self, asked_at: float) -> None:
        """Note that the coordinator has answered a request that begins a session anew.

        It received the request after this loop time, at which the request was sent. The response
        may have waited for a loop that was blocked.
        """
        self._last_contact = max(self._last_contact, asked_at)
        self.lease.renew(self._last_contact)

    @property
    def _answer_s(self) -> float:
        """How long the coordinator may take to answer a heartbeat.

        At most half a session: the other half is left to find another coordinator.
        """
        return min(self._config.request_timeout_s, self._config.session_timeout_s / 2)

    @property
    def why_silent(self) -> str:
        """Why the coordinator received no heartbeat in time, as far as that is known."""
        if not self._blocked_s:
            return ""
        blocked = f"the event loop was blocked for {self._blocked_s:.1f} s"
        if self.stand_in.is_there:
            return (
                f"{blocked}, and the coordinator received no heartbeats from the heartbeat thread "
                "either (this thread stops if the application requests no records for "
                "max_poll_interval_ms)"
            )
        return f"{blocked} and could not send heartbeats, and {self._why_removed}"

    @property
    @abstractmethod
    def _why_removed(self) -> str:
        """Say when the group removes a member."""

    def _log_failure(self, error: KafkaError) -> None:
        """Log that a heartbeat failed, once in a while."""
        now = self._loop.time()
        if (ending := self._log_limit.let_in("failed", now)) is not None:
            contact = self.last_contact_at
            log.warning(
                "group %s: a heartbeat failed, %s: %s%s",
                self._member.group_id,
                "before any was answered"
                if contact is None
                else f"{now - contact:.1f} s after the coordinator last answered",
                error,
                ending,
            )
