"""The member's side of the consumer protocol (KIP-848), without I/O.

Theory. The coordinator computes the assignment, and each member is led to its part of it by the
answers to its heartbeats. There is no barrier at which members meet: whoever has to give something
up does so and says so, and only then does the next owner get it. One request says it all: join
(epoch 0), stay, what is owned, leave (epoch -1; -2 for a static member that will be back).

===========  ===========================================  ==========================
state        meaning                                      leaves when
===========  ===========================================  ==========================
UNJOINED     is no member, and does not want to be        topics are subscribed
JOINING      heartbeats with epoch 0 ask to be let in     an answer brings an epoch
RECONCILING  holds something else than it was given:      it holds what it was given
             it gives back, it takes, or it does not
             know a topic's name yet
STABLE       holds what it was given                      it is given something else
DROPPED      the group does not count it in any more:     the listener was told
             all is lost
REFUSED      another process uses its instance id: final  the consumer stops
LEAVING      last commit, last heartbeat                  both are done or too late
LEFT         is no member any more: final
===========  ===========================================  ==========================

The epoch counts the assignments that the member was led to. It moves while partitions stay: so a
commit is made as whoever the member is when it is sent (`commits_as`), and one that is told that
its epoch is stale is sent again under the next. Whether a partition was held without a break is
not seen from the epoch; commits look at the cursor for that.

A member is dropped in two ways: its epoch is over (FENCED_MEMBER_EPOCH: the same id joins again,
as with another the coordinator would keep the partitions for the former until its session ends),
or it is unknown (UNKNOWN_MEMBER_ID: it takes a new id).

Writers: the group task changes the state, but for what answers say. The heartbeat posts those
here (`take_answer`, `drop`), and so do commits and reads of committed offsets (`note_refusal`);
what concerns another identity than the present one is dropped.

References: KIP-848, KIP-1082 (ids made by clients), Kafka's AbstractMembershipManager.java.
"""

from __future__ import annotations

import base64
import enum
import uuid
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from aiokafka_lite.consumer.membership.protocol import NO_GENERATION, Identity
from aiokafka_lite.consumer.membership.recovery import Recovery, recovery_for, taken_over
from aiokafka_lite.consumer.membership.stateful import StatefulMember
from aiokafka_lite.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    KafkaError,
    MaxPollIntervalError,
)
from aiokafka_lite.structs import TopicPartition

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
LEAVE_FOR_NOW_EPOCH: Final = -2


class MemberState(enum.Enum):
    """Where a member stands; the table is in the module's docstring."""

    UNJOINED = enum.auto()
    JOINING = enum.auto()
    RECONCILING = enum.auto()
    STABLE = enum.auto()
    DROPPED = enum.auto()
    REFUSED = enum.auto()
    LEAVING = enum.auto()
    LEFT = enum.auto()


LEGAL_TRANSITIONS: Final[Mapping[MemberState, frozenset[MemberState]]] = MappingProxyType(
    {
        MemberState.UNJOINED: frozenset({MemberState.JOINING, MemberState.LEAVING}),
        MemberState.JOINING: frozenset(
            {MemberState.RECONCILING, MemberState.DROPPED, MemberState.LEAVING}
        ),
        MemberState.RECONCILING: frozenset(
            {MemberState.STABLE, MemberState.DROPPED, MemberState.LEAVING}
        ),
        MemberState.STABLE: frozenset(
            {MemberState.RECONCILING, MemberState.DROPPED, MemberState.LEAVING}
        ),
        MemberState.DROPPED: frozenset(
            {MemberState.UNJOINED, MemberState.REFUSED, MemberState.LEAVING}
        ),
        MemberState.REFUSED: frozenset({MemberState.LEAVING}),
        MemberState.LEAVING: frozenset({MemberState.UNJOINED, MemberState.LEFT}),
        MemberState.LEFT: frozenset(),
    }
)

# The group counts it in, as far as known, and it tells that it lives.
PRESENT: Final = frozenset({MemberState.RECONCILING, MemberState.STABLE})


class Loss(enum.Enum):
    """Why the group does not count a member in any more; the values say it in a sentence."""

    EPOCH = "the coordinator has fenced this member, because the member epoch is no longer valid"
    MEMBERSHIP = "the coordinator no longer knows the member"
    INSTANCE = "another member uses the same group_instance_id"
    POLL_INTERVAL = "the application requested no records within max_poll_interval_ms"


LOSS_BY_RECOVERY: Final[Mapping[Recovery, Loss]] = MappingProxyType(
    {
        Recovery.LOST_GENERATION: Loss.EPOCH,
        Recovery.LOST_MEMBERSHIP: Loss.MEMBERSHIP,
        Recovery.FENCED: Loss.INSTANCE,
    }
)


class PartitionId(NamedTuple):
    """A partition by its topic's id, as this protocol names it."""

    topic_id: bytes
    number: int


Target = frozenset[PartitionId]


def new_member_id() -> str:
    """Make an id as Java's client does: 16 random bytes in URL-safe base 64 (KIP-1082)."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes)[:22].decode()


class ConsumerMember(StatefulMember[MemberState]):
    """One member of one group; see the module's docstring for the states and who writes.

    Args:
        group_id: The group.
        group_instance_id: The name of a static member.
        member_id: Its id; empty: a new one.
    """

    def __init__(
        self,
        group_id: str,
        group_instance_id: str | None = None,
        *,
        member_id: str = "",
    ) -> None:
        super().__init__(
            group_id,
            group_instance_id,
            Identity(member_id or new_member_id()),
            MemberState.UNJOINED,
            LEGAL_TRANSITIONS,
        )
        # What it was given last, also while that is not known by name; None: nothing was said.
        self.target: Target | None = None
        # The epoch in which it was let in: what was held before that may have been another's since.
        self._joined_in = NO_GENERATION
        # Why the group does not count it in any more, and what is known about that.
        self.lost_by: Loss | None = None
        self.lost_because = ""
        # Somebody was told that the epoch is stale: the next heartbeat brings the new one.
        self.is_epoch_stale = False

    @property
    def is_fenced(self) -> bool:
        """Whether another consumer has taken its place under the same instance id: final."""
        return self.lost_by is Loss.INSTANCE

    @property
    def is_heard(self) -> bool:
        """Whether heartbeats are to be sent for it: it wants to be a member, or is one."""
        return self.state is MemberState.JOINING or self.is_member

    @property
    def hands_out(self) -> bool:
        """Whether reads return records of the partitions that it holds."""
        return self.is_member

    # --- For commits ----------------------------------------------------------------------
    @property
    def assigned_as(self) -> Identity | None:
        """As whom the assigned partitions are held; None: there are none, or they are lost."""
        return self.identity if self.is_member else None

    @property
    def reads_as(self) -> Identity | None:
        """The same: the group refuses who reads under an epoch that is over."""
        return self.assigned_as

    def takes_commits(self, *, was_put_off: bool = False, is_departed: bool = False) -> bool:
        """Whether the coordinator takes commits now: it does all the while."""
        return True

    def commits_as(
        self, made_as: Identity, *, has_waited: bool, is_departed: bool
    ) -> Identity | None:
        """Return as whom to send a commit now: under the present epoch, if it never was dropped."""
        holder = self.assigned_as
        if holder is None or holder.member_id != made_as.member_id:
            return None
        return holder if made_as.generation >= self._joined_in else None

    def has_kept(self, tp: TopicPartition, made_as: Identity) -> bool:
        """Whether nobody else can have had a partition since: until this member gives it back."""
        return True

    def note_refusal(self, sent_as: Identity, error: KafkaError) -> bool:
        """Post what a refused commit or read says of the member; whether all is lost by it."""
        recovery = recovery_for(error)
        if recovery is Recovery.NEW_EPOCH:
            if sent_as == self.identity:
                self.is_epoch_stale = True
                self.notify()
            return False
        loss = LOSS_BY_RECOVERY.get(recovery)
        return loss is not None and self.drop(sent_as, loss, str(error))

    def why_lost(self) -> CommitFailedError | FencedInstanceIdError:
        """Return the error for commits that come too late, with what is known of the reason."""
        if self.is_fenced:
            return taken_over(self.group_id, self.group_instance_id)
        because = self.lost_because
        if self.lost_by is Loss.POLL_INTERVAL:
            text = (
                f"{because}, so the partitions were revoked. To avoid this, "
                f"{MaxPollIntervalError.remedy}"
            )
            return MaxPollIntervalError(text)
        return CommitFailedError(because) if because else CommitFailedError()

    # --- Steps of the group task ----------------------------------------------------------
    def reconciled(self, *, is_done: bool) -> None:
        """Note whether the member holds what it was given; nothing while it is not present."""
        state = MemberState.STABLE if is_done else MemberState.RECONCILING
        if self.state in PRESENT and self.state is not state:
            self.enter(state)

    def be_nobody(self, *, keeps_id: bool) -> None:
        """Be no member; the next time it joins, it does so under the same id or a new one."""
        self.identity = Identity(self.identity.member_id if keeps_id else new_member_id())
        self.target = None
        self.notify()

    def note_reason(self, loss: Loss, because: str) -> None:
        """Keep in mind why the membership is over, for commits that come too late."""
        self.lost_by, self.lost_because = loss, because

    # --- What answers say -----------------------------------------------------------------
    def take_answer(self, sent_as: Identity, identity: Identity, target: Target | None) -> bool:
        """Be of the epoch that an answer names, and led to what it assigns.

        Args:
            sent_as: As whom the heartbeat was sent.
            identity: As whom the coordinator knows the member.
            target: What it is to hold; None: what it was told before.

        Returns:
            Whether the answer was news of the present membership, and was taken.
        """
        if sent_as != self.identity or not self.is_heard:
            return False
        self.identity = identity
        self.is_epoch_stale = False
        if target is not None:
            self.target = target
        if self.state is MemberState.JOINING:
            self.lost_by, self.lost_because = None, ""
            self._joined_in = identity.generation
            self.enter(MemberState.RECONCILING)
        else:
            self.notify()
        return True

    def take_late_answer(self, identity: Identity, target: Target | None) -> bool:
        """Take what was heard in this member's name meanwhile, unless there is newer news."""
        now = self.identity
        is_newer = identity.member_id == now.member_id and identity.generation >= now.generation
        return self.is_member and is_newer and self.take_answer(now, identity, target)

    def drop(self, sent_as: Identity, loss: Loss, because: str = "") -> bool:
        """Note that the group does not count the member in any more.

        Commits are refused from now on; the group task gives the partitions up.

        Returns:
            Whether this was news of the present membership.
        """
        if sent_as != self.identity or not self.is_heard:
            return False
        keeps_id = loss is not Loss.MEMBERSHIP
        self.note_reason(loss, because)
        self.be_nobody(keeps_id=keeps_id)
        if self.state is not MemberState.LEAVING:
            self.enter(MemberState.DROPPED)
        return True
