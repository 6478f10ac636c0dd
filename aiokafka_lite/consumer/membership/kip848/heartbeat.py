"""The task "heartbeat": sends a member's heartbeats, and posts to it what the answers say."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Final, Protocol

from aiokafka_lite._compat import Never, timeout_at
from aiokafka_lite.client.backoff import Backoff
from aiokafka_lite.consumer.config import CONSUMER_SESSION_S
from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.consumer.membership.group_task import Surroundings
from aiokafka_lite.consumer.membership.heartbeat import MemberHeartbeat
from aiokafka_lite.consumer.membership.kip848.beats import (
    Beats,
    BriefVoice,
    Said,
    Wish,
    target_in,
)
from aiokafka_lite.consumer.membership.kip848.member import (
    JOIN_EPOCH,
    LOSS_BY_RECOVERY,
    ConsumerMember,
    MemberState,
)
from aiokafka_lite.consumer.membership.kip848.target import Held
from aiokafka_lite.consumer.membership.recovery import KEPT_CLASSIC, Recovery, recovery_for
from aiokafka_lite.consumer.membership.stand_in import Outcome
from aiokafka_lite.errors import (
    BrokerResponseError,
    IncompatibleBrokerVersion,
    InvalidRegularExpressionError,
    KafkaError,
    UnknownError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
    UnsupportedVersionError,
)
from aiokafka_lite.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

log = logging.getLogger(__name__)

# Longest pause before another asks for an instance id that is not released yet.
UNRELEASED_BACKOFF_MAX_S: Final = 5.0
# Between two attempts at what only the application, or an operator, can mend.
SURFACED_PAUSE_S: Final = 1.0
# This protocol is not to be had here, or not for this group.
NOT_OFFERED: Final = (UnsupportedVersionError, *KEPT_CLASSIC)


class Inbox(Protocol):
    """The membership, as far as its heartbeats ask it and report to it. Nothing waits."""

    @property
    def wish(self) -> Wish:
        """What is subscribed now."""

    @property
    def held(self) -> Held:
        """What the member owns now."""

    @property
    def idle_s(self) -> float:
        """How long the application has asked for no records."""

    def surface(self, error: KafkaError) -> None:
        """Note an error that does not pass by itself."""

    def match_here(self) -> None:
        """Note that the coordinator does not take the expression of the wish."""

    def fall_back(self, error: KafkaError) -> bool:
        """Note that the group cannot be joined by this protocol; whether another takes over."""


class Heartbeat(MemberHeartbeat[ConsumerMember]):
    """Sends what `Beats` makes while the member is to be heard of: one at a time.

    Args:
        around: The parts of the membership.
        member: The member.
        beats: Makes the heartbeats.
        inbox: The membership.
    """

    def __init__(
        self, around: Surroundings, member: ConsumerMember, beats: Beats, inbox: Inbox
    ) -> None:
        super().__init__(around, member, around.config.group_session_s)
        self._beats = beats
        self._inbox = inbox
        # The latest outcome of the thread that it has heard of.
        self._outcome: Outcome | None = None
        self._unreleased = Backoff(
            self._config.retry_backoff_s, UNRELEASED_BACKOFF_MAX_S, around.rng
        )
        # Loop times: the last one was sent; before this none is, whatever there is to tell.
        self._sent_at = 0.0
        self._not_before = 0.0
        # What keeps the member from joining or staying, in a sentence; "": nothing.
        self.trouble = ""
        self.trouble_since = 0.0
        # The latest request to be let in was refused: the coordinator knows of no such member.
        self.is_refused = False

    async def run(self) -> Never:
        """Send heartbeats while the member is to be heard of, until cancelled."""
        while True:
            if not self._member.is_heard:
                self.stand_in.rest()
                await self._member.wait_for_change()
            elif (due_at := self._due_at()) > self._loop.time():
                self._note_next(due_at - self._loop.time())
                try:
                    async with timeout_at(due_at):
                        await self._member.wait_for_change()
                except asyncio.TimeoutError:
                    self._note_lateness(due_at)
            else:
                await self._beat()

    def _note_lateness(self, due_at: float) -> None:
        """Note that a heartbeat is late because nothing ran, if it is late by much."""
        late_s = self._loop.time() - due_at
        if late_s > self._session_s / 2:
            self._blocked_s = late_s

    def _due_at(self) -> float:
        """Return the loop time at which the next heartbeat is due, as far as is known now."""
        member, beats = self._member, self._beats
        if not member.is_member or member.is_epoch_stale or beats.has_news(self._inbox.wish):
            return self._not_before
        return max(self._sent_at + self._interval_s(), self._not_before)

    def _interval_s(self) -> float:
        return self._beats.interval_s(
            self._loop.time(), is_unsettled=self._member.state is MemberState.RECONCILING
        )

    # --- The thread that stands in --------------------------------------------------------
    def _note_next(self, next_s: float) -> bool:
        """Tell it when the loop will be heard next; return whether the loop may speak now."""
        member = self._member
        if not self.stand_in.is_there:
            return True
        if not member.is_member:
            self.stand_in.rest()  # it joins: no thread does
            return True
        return self.stand_in.note_next(
            BriefVoice(member.group_id, member.group_instance_id, tuple(self._inbox.held)),
            member.identity,
            self._coordinator.node,
            next_s=next_s,
            interval_s=self._beats.settled_s,
            left_s=self._config.max_poll_interval_s - self._inbox.idle_s,
        )

    def hear_of_stand_in(self, outcome: Outcome, sent_at: float) -> None:
        """Take what became of a heartbeat of the thread; the next one of the loop says all.

        So an assignment that the thread was answered is asked for again, whatever is made of this.
        """
        member, error = self._member, outcome.error
        self._outcome = outcome
        self._beats.note_failure()
        if error is None:
            self.beat_count += 1
            answer = outcome.answer
            target = None
            if isinstance(answer, ConsumerGroupHeartbeatResponse):
                target = target_in(answer)
            if member.take_late_answer(outcome.identity, target):
                self._renew(sent_at)
        else:
            self.failure_count += 1
            loss = LOSS_BY_RECOVERY.get(recovery_for(error))
            if loss is not None and member.drop(outcome.sent_as, loss, str(error)):
                self._gate.hold(Hold.LOST)  # until the group task has dropped what is lost
        member.notify()

    async def _beat(self) -> None:
        await self.stand_in.wait_for_turn(
            lambda: self._note_next(self._interval_s()), self._member.wait_for_change
        )
        if not self._member.is_heard:
            return
        said = self._beats.next(self._inbox.wish, self._inbox.held)
        self.is_refused = False
        self._sent_at = sent_at = self._loop.time()
        outcome = self._outcome
        try:
            answer = await self._send(said.request)
            identity, target = self._beats.answered(said, answer, self._loop.time())
        except KafkaError as error:
            self._beats.note_failure()
            self._failed(said, error)
            return
        self.beat_count += 1
        self._backoff.reset()
        self._unreleased.reset()
        self.trouble = ""
        self._blocked_s = 0.0
        if said.sent_as.generation != identity.generation:
            self._beats.note_unsettled(self._loop.time())
        if outcome is not self._outcome:
            # The thread's answers may be newer than this one, which has waited to be read.
            self._beats.note_failure()
            target = None
        if self._member.take_answer(said.sent_as, identity, target):
            self._renew(sent_at)

    async def _send(self, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
        if request.member_epoch == JOIN_EPOCH and not self._coordinator.has_topic_ids:
            raise IncompatibleBrokerVersion(
                "KIP-848 needs topic ids, but the broker supports only versions of Metadata below "
                "10, which have no topic ids"
            )
        answer_s = self._answer_s
        return await self._coordinator.request(
            request,
            error_code=lambda response: response.error_code,
            error_message=lambda response: response.error_message,
            deadline=self._loop.time() + answer_s,
            answer_s=answer_s,
        )

    # --- What goes wrong ------------------------------------------------------------------
    def _failed(self, said: Said, error: KafkaError) -> None:
        self.failure_count += 1
        member, recovery = self._member, recovery_for(error)
        is_joining = said.sent_as == member.identity and not member.is_member
        if self._is_refused_regex(said, error):
            self._inbox.match_here()
            return
        if isinstance(error, UnreleasedInstanceIdError):
            self._wait_for_release()
            return
        self._pause(self._backoff.next_delay_s())
        if is_joining and isinstance(error, NOT_OFFERED):
            if self._inbox.fall_back(error):
                self._not_before = math.inf  # also if going over takes longer than the pause
            else:
                self._note_refusal(error)
            return
        if (loss := LOSS_BY_RECOVERY.get(recovery)) is not None and (
            not is_joining or recovery is Recovery.FENCED or isinstance(error, UnknownMemberIdError)
        ):
            if member.drop(said.sent_as, loss, self.why_silent or str(error)):
                self._gate.hold(Hold.LOST)  # until the group task has dropped what is lost
        elif recovery is Recovery.SURFACE:
            # An error without a name may come after the member was counted in.
            is_named = isinstance(error, BrokerResponseError) and not isinstance(
                error, UnknownError
            )
            self.is_refused = is_joining and is_named
            self._note_trouble(str(error))
            self._pause(SURFACED_PAUSE_S)
            self._inbox.surface(error)
        self._log_failure(error)

    def _note_refusal(self, error: KafkaError) -> None:
        """Say what is refused and what to do about it; ask again later, as brokers may change."""
        self.is_refused = True
        group_id = self._member.group_id
        reason = (
            f"group {group_id} has members that use the classic protocol, and the broker does not "
            "allow converting the group to KIP-848"
            if isinstance(error, KEPT_CLASSIC)
            else f"group {group_id} cannot be joined with the consumer protocol (KIP-848), because "
            "the broker does not offer this protocol"
        )
        detail = error.args[0] if error.args else error
        text = (
            f'{reason}: {detail}. Use group_protocol="auto" to join with the classic protocol '
            "instead"
        )
        refusal = type(error)(text)
        self._note_trouble(str(refusal))
        self._pause(SURFACED_PAUSE_S)
        self._inbox.surface(refusal)
        if (ending := self._log_limit.let_in("refused", self._loop.time())) is not None:
            log.warning("%s%s", refusal, ending)

    def _is_refused_regex(self, said: Said, error: KafkaError) -> bool:
        """Whether it is the expression that is not taken, or that cannot be said."""
        if said.request.subscribed_topic_regex is None:
            return False
        return isinstance(error, (InvalidRegularExpressionError, UnsupportedVersionError))

    @property
    def _why_removed(self) -> str:
        return (
            "the group removes a member after a session timeout without heartbeats. Run blocking "
            "code in a thread (asyncio.to_thread)"
        )

    def _wait_for_release(self) -> None:
        """Ask again later for an instance id that is another's; say so once that one must live."""
        text = (
            f"group_instance_id {self._member.group_instance_id!r} still belongs to a member "
            "that has not left: waiting until it leaves or its session times out. Every "
            "consumer needs a group_instance_id of its own"
        )
        self._note_trouble(text)
        self._pause(self._unreleased.next_delay_s())
        error = UnreleasedInstanceIdError(f"group {self._member.group_id}: {text}")
        # The session of one that has died is over by then, unless brokers have another than Kafka's
        # default: `session_timeout_ms` says nothing about it.
        session_s = max(self._session_s, CONSUMER_SESSION_S)
        if self._loop.time() - self.trouble_since > session_s:
            self._inbox.surface(error)
        self._log_failure(error)

    def _note_trouble(self, text: str) -> None:
        if not self.trouble:
            self.trouble_since = self._loop.time()
        self.trouble = text

    def _pause(self, delay_s: float) -> None:
        self._not_before = self._loop.time() + delay_s
