"""Heartbeats: tell the coordinator that the member lives, and hear from it what has changed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from aiokafka_lite._compat import Never
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client.backoff import Backoff
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.group.coordinator import Coordinator
from aiokafka_lite.consumer.group.member import (
    INTERRUPTION_BY_RECOVERY,
    LOSSES,
    Interruption,
    Member,
    Recovery,
    recovery_for,
)
from aiokafka_lite.consumer.state import SubscriptionState
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.protocol.messages.heartbeat import HeartbeatRequest

log = logging.getLogger(__name__)


class Heartbeat:
    """The timer of one member, kept across generations: joining and syncing are beats as well.

    The task "heartbeat" runs `beat` while there is a membership: `start` for a stable member,
    `kept_alive` around whatever else has to be done. It changes nothing of the member but
    returns why the membership has to be looked after.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        member: Member,
        coordinator: Coordinator,
        state: SubscriptionState,
        backoff: Backoff,
        *,
        scope: TaskScope,
        on_error: Callable[[KafkaError], None],
    ) -> None:
        self._config = config
        self._member = member
        self._coordinator = coordinator
        self._state = state
        self._backoff = backoff
        self._scope = scope
        self._on_error = on_error
        # Loop times. The coordinator heard of this member last, and will hear next.
        self._last_contact = 0.0
        self._next_beat = 0.0
        self.beat_count = 0
        self.failure_count = 0
        # How long the event loop was blocked since then, if that was long.
        self._blocked_s = 0.0

    @property
    def why_silent(self) -> str:
        """Why the coordinator did not hear of the member in time, as far as that is known."""
        if not self._blocked_s:
            return ""
        return (
            f"the event loop was blocked for {self._blocked_s:.1f} s, and heartbeats are sent from "
            f"it: after session_timeout_ms={self._config.session_timeout_ms} without one, the "
            "group drops a member"
        )

    def note_contact(self) -> None:
        """Note that the coordinator has just heard of the member."""
        self._last_contact = asyncio.get_running_loop().time()
        self._blocked_s = 0.0
        self._next_beat = self._last_contact + self._config.heartbeat_interval_s
        self._backoff.reset()

    def start(self) -> asyncio.Task[Interruption]:
        """Send heartbeats for a stable member, until the task returned is cancelled or done."""
        task = self._scope.supervise(lambda: self.beat(is_rebalancing=False), name="heartbeat")
        task.add_done_callback(lambda _: self._member.notify())
        return task

    @contextlib.asynccontextmanager
    async def kept_alive(self) -> AsyncIterator[None]:
        """Send heartbeats while something else is done; a loss of the membership is posted."""
        member = self._member
        if not member.is_member or self._scope.failure is not None:
            yield
            return
        identity = member.identity

        def post(task: asyncio.Task[Interruption]) -> None:
            if not task.cancelled() and task.exception() is None:
                member.interrupt(identity, task.result())

        task = self._scope.supervise(lambda: self.beat(is_rebalancing=True), name="heartbeat")
        task.add_done_callback(post)
        try:
            yield
        finally:
            await stop(self._scope, task)

    async def beat(self, *, is_rebalancing: bool) -> Interruption:
        """Send heartbeats until something interrupts the membership.

        Args:
            is_rebalancing: A rebalance has been noticed, and the member is busy preparing for
                it: only the loss of the membership is news.
        """
        identity = self._member.identity
        while True:
            if not is_rebalancing and self._poll_time_left_s() <= 0:
                return Interruption.POLL_INTERVAL_EXCEEDED
            if not await self._sleep_until_due(is_rebalancing):
                continue
            try:
                await self._send(identity.member_id, identity.generation)
            except KafkaError as error:
                self.failure_count += 1
                interruption = self._judge(error)
                if interruption is None:
                    self._next_beat = (
                        asyncio.get_running_loop().time() + self._backoff.next_delay_s()
                    )
                elif interruption is Interruption.GROUP_REBALANCES and is_rebalancing:
                    self.note_contact()
                else:
                    if interruption in LOSSES and not is_rebalancing:
                        self._state.hold_hand_outs()  # until the group task has dropped it all
                    return interruption
            else:
                self.beat_count += 1
                self.note_contact()
            if not is_rebalancing:
                self._state.release_hand_outs()

    @property
    def last_contact_at(self) -> float | None:
        """Loop time at which the coordinator last answered this member; None: not yet."""
        return self._last_contact or None

    def _poll_time_left_s(self) -> float:
        now = asyncio.get_running_loop().time()
        return self._config.max_poll_interval_s - self._state.idle_s(now)

    async def _sleep_until_due(self, is_rebalancing: bool) -> bool:
        """Sleep to the next beat or to the end of the poll interval; return whether to beat."""
        loop = asyncio.get_running_loop()
        wake_at = self._next_beat
        if not is_rebalancing:
            wake_at = min(wake_at, loop.time() + self._poll_time_left_s())
        wake_at = max(wake_at, loop.time())
        await asyncio.sleep(wake_at - loop.time())
        late_s = loop.time() - wake_at
        if late_s > self._config.session_timeout_s / 2:
            self._blocked_s = late_s
            log.warning("group %s: %s", self._member.group_id, self.why_silent)
        if late_s > self._config.session_timeout_s and not is_rebalancing:
            # Perhaps others have the partitions by now: what is buffered waits for the answer to
            # this beat, or is lost with the partitions.
            self._state.hold_hand_outs()
        return loop.time() >= self._next_beat

    async def _send(self, member_id: str, generation: int) -> None:
        request = HeartbeatRequest(
            group_id=self._member.group_id,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=self._member.group_instance_id,
        )
        # Half the session: a silent coordinator has to be left while there is time to find out
        # that it has moved.
        answer_s = min(self._config.request_timeout_s, self._config.session_timeout_s / 2)
        await self._coordinator.request(
            request,
            error_code=lambda response: response.error_code,
            deadline=asyncio.get_running_loop().time() + answer_s,
            answer_s=answer_s,
        )

    def _judge(self, error: KafkaError) -> Interruption | None:
        """Return what the error interrupts; None when the next beat may well succeed."""
        recovery = recovery_for(error)
        if (interruption := INTERRUPTION_BY_RECOVERY.get(recovery)) is not None:
            return interruption
        if recovery is Recovery.SURFACE:
            self._on_error(error)
        silence_s = asyncio.get_running_loop().time() - self._last_contact
        log.log(
            logging.WARNING if silence_s > self._config.session_timeout_s else logging.INFO,
            "group %s: heartbeat failed, %.1f s since the last contact: %s",
            self._member.group_id,
            silence_s,
            error,
        )
        return None


async def stop(
    scope: TaskScope, task: asyncio.Task[Interruption] | asyncio.Task[Never] | None
) -> None:
    """Cancel a task and wait for its end, whatever that is."""
    if task is not None and not task.done():
        scope.cancel(task)
        await asyncio.wait({task})
