"""Implements the member's side of the classic group protocol, without I/O.

Theory. A group's coordinator (a broker) shares the partitions out anew whenever its members, or
what they want, change. A rebalance takes two requests, at which all members meet: JoinGroup
tells who is there and names a leader, SyncGroup carries what the leader assigned to each. Each
rebalance makes a new generation; what a member of an older generation asks is refused. That is
how two members never commit for one partition.

==========  ============================================  ==========================
state       meaning                                       leaves when
==========  ============================================  ==========================
UNJOINED    holds nothing, asks for nothing               topics are subscribed
PREPARING   gives its partitions back: commits, tells     that is done
            the listener; the old generation still
            counts, unless it was lost
JOINING     JoinGroup is on its way                       the answer names a
                                                          generation
SYNCING     of the new generation, SyncGroup is on its    the answer brings an
            way; the coordinator takes no commits         assignment
STABLE      holds its assignment, heartbeats              something interrupts it
FENCED      another process uses its instance id: final   the consumer stops
LEAVING     last commit, LeaveGroup                       both are done or too late
LEFT        no more a member: final
==========  ============================================  ==========================

What it holds it holds as `assigned_as`, from one STABLE to the next: in SYNCING the member is of a
new generation already, and its partitions are those of the one before. What is committed of them is
committed as `assigned_as`, never as a member of a generation whose assignment is not known yet.
What the application has given up by then goes over to that generation once SyncGroup is answered,
if nobody else can have had it: what this member is assigned again, and what it has kept all along.

What an answer means is data as well: RECOVERIES, and INTERRUPTION_BY_RECOVERY for this protocol.
A membership can be lost in two ways: the generation is over (the member id stays good), or the
coordinator forgot the member (it needs a new id). In both the partitions belong to others already,
and nothing may be committed.

One writer: the group task calls everything here that changes something. There are two exceptions,
`interrupt` and `note_refusal`: heartbeats and commits post there what they were told about a
generation. What concerns an older generation than the present one is dropped.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from aiokafka_lite._compat import Self
from aiokafka_lite.consumer.membership.protocol import Identity
from aiokafka_lite.consumer.membership.recovery import Recovery, recovery_for, taken_over
from aiokafka_lite.consumer.membership.stateful import StatefulMember
from aiokafka_lite.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    KafkaError,
    MaxPollIntervalError,
)
from aiokafka_lite.structs import TopicPartition


class MemberState(enum.Enum):
    """Says where a member is; the table is in the module's docstring."""

    UNJOINED = enum.auto()
    PREPARING = enum.auto()
    JOINING = enum.auto()
    SYNCING = enum.auto()
    STABLE = enum.auto()
    FENCED = enum.auto()
    LEAVING = enum.auto()
    LEFT = enum.auto()


LEGAL_TRANSITIONS: Final[Mapping[MemberState, frozenset[MemberState]]] = MappingProxyType(
    {
        MemberState.UNJOINED: frozenset({MemberState.PREPARING, MemberState.LEAVING}),
        MemberState.PREPARING: frozenset(
            {MemberState.JOINING, MemberState.UNJOINED, MemberState.FENCED, MemberState.LEAVING}
        ),
        MemberState.JOINING: frozenset(
            {
                MemberState.JOINING,
                MemberState.SYNCING,
                MemberState.UNJOINED,
                MemberState.FENCED,
                MemberState.LEAVING,
            }
        ),
        MemberState.SYNCING: frozenset(
            {
                MemberState.STABLE,
                MemberState.JOINING,
                MemberState.UNJOINED,
                MemberState.FENCED,
                MemberState.LEAVING,
            }
        ),
        MemberState.STABLE: frozenset(
            {MemberState.PREPARING, MemberState.FENCED, MemberState.LEAVING}
        ),
        MemberState.FENCED: frozenset({MemberState.LEAVING}),
        MemberState.LEAVING: frozenset({MemberState.LEFT}),
        MemberState.LEFT: frozenset(),
    }
)

# Between two assignments.
REBALANCING: Final = frozenset({MemberState.JOINING, MemberState.SYNCING})
BEFORE_STABLE: Final = REBALANCING | {MemberState.PREPARING}


class Interruption(enum.IntEnum):
    """Why a stable membership ends, from the least to the gravest.

    When several things interrupt at once, the gravest decides what is left of the membership. The
    text is sent as the reason of JoinGroup (KIP-800).
    """

    SUBSCRIPTION_CHANGED = 0, "the subscription has changed"
    PARTITIONS_CHANGED = 1, "partitions of the group's topics were added, removed or moved"
    PARTITIONS_REVOKED = 2, "partitions were revoked so that other members can take them"
    GROUP_REBALANCES = 3, "the group rebalances"
    POLL_INTERVAL_EXCEEDED = 4, "the application requested no records within max_poll_interval_ms"
    LOST_GENERATION = 5, "the generation is over"
    LOST_MEMBERSHIP = 6, "the coordinator no longer knows the member"
    FENCED = 7, "another member uses the same group_instance_id"

    text: str

    def __new__(cls, gravity: int, text: str) -> Self:
        """Make a member whose value is its gravity."""
        member = int.__new__(cls, gravity)
        member._value_ = gravity
        member.text = text
        return member

    @property
    def is_loss(self) -> bool:
        """Whether the partitions are others' at once."""
        return self >= Interruption.LOST_GENERATION


INTERRUPTION_BY_RECOVERY: Final[Mapping[Recovery, Interruption]] = MappingProxyType(
    {
        Recovery.REBALANCE: Interruption.GROUP_REBALANCES,
        Recovery.LOST_GENERATION: Interruption.LOST_GENERATION,
        Recovery.LOST_MEMBERSHIP: Interruption.LOST_MEMBERSHIP,
        Recovery.FENCED: Interruption.FENCED,
    }
)


def interruption_by(error: KafkaError) -> Interruption | None:
    """Return what an error of the coordinator interrupts; None: nothing."""
    return INTERRUPTION_BY_RECOVERY.get(recovery_for(error))


class Member(StatefulMember[MemberState]):
    """One member of one group; see the module's docstring for the states and who writes.

    Args:
        group_id: The group.
        group_instance_id: The name of a static member.
        is_cooperative: It keeps its partitions through a rebalance (KIP-429).
    """

    def __init__(
        self,
        group_id: str,
        group_instance_id: str | None = None,
        *,
        is_cooperative: bool = False,
        member_id: str = "",
    ) -> None:
        super().__init__(
            group_id,
            group_instance_id,
            Identity(member_id),
            MemberState.UNJOINED,
            LEGAL_TRANSITIONS,
        )
        self.is_cooperative: Final = is_cooperative
        # As whom the partitions assigned were given; None while there are none, or they are lost.
        self.assigned_as: Identity | None = None
        # The generation since which partitions that it has kept have been nobody else's.
        self._unbroken_since: float = math.inf
        # What is the same member's in the generation that a rebalance began with, and in the next;
        # None: the rebalance goes on, and that is not known.
        self._kept_partitions: frozenset[TopicPartition] | None = frozenset()
        self.protocol_name: str | None = None
        self.is_leader = False
        # Why there is no generation any more, and what is known about it; None while there is one.
        self.lost_by: Interruption | None = None
        self.lost_because = ""
        self._interruption: Interruption | None = None

    @property
    def is_of_the_next_generation(self) -> bool:
        """Whether no generation was in between, so that nobody else had the same partitions."""
        before, identity = self.assigned_as, self.identity
        return (
            before is not None
            and before.member_id == identity.member_id
            and identity.generation <= before.generation + 1
        )

    @property
    def hands_out(self) -> bool:
        """Whether it holds partitions that the application is handed records of."""
        if self.assigned_as is None:
            return False
        keeps = self.is_cooperative and self.state in BEFORE_STABLE
        return keeps or self.state is MemberState.STABLE

    @property
    def is_fenced(self) -> bool:
        """Whether another consumer has taken its place under the same instance id: final."""
        return Interruption.FENCED in (self._interruption, self.lost_by)

    # --- For commits ----------------------------------------------------------------------
    @property
    def reads_as(self) -> None:
        """None: the classic protocol lets everybody read what a group has committed."""

    def takes_commits(self, *, was_put_off: bool = False, is_departed: bool = False) -> bool:
        """Whether the coordinator takes commits now, as far as known; see GroupMember."""
        if is_departed:
            # While others are to join it takes one of the generation before; if that comes a
            # moment late, the rebalance goes on until it takes one of the next.
            is_joining = self.state is MemberState.JOINING and not was_put_off
            return self.state not in REBALANCING or is_joining or self._kept_partitions is not None
        # Until all have joined it would take one of the generation before, also of a cooperative
        # member that keeps its partitions. But a commit that comes a moment later is refused as of
        # an old generation (ILLEGAL_GENERATION), which cannot be told from a member that is lost.
        if self.state in REBALANCING:
            return False
        if not was_put_off:
            return True
        is_rebalancing = self.state is MemberState.STABLE and self.interruption is not None
        return not is_rebalancing and self.state is not MemberState.PREPARING

    def commits_as(
        self, made_as: Identity, *, has_waited: bool, is_departed: bool
    ) -> Identity | None:
        """Return as whom to send a commit now; None: the partitions may be another member's."""
        if is_departed:
            is_next = self.identity == made_as._replace(generation=made_as.generation + 1)
            return (
                self.identity
                if made_as == self.identity or (is_next and self._kept_partitions)
                else None
            )
        holder = self.assigned_as
        if holder is None or holder.member_id != made_as.member_id:
            return None
        # Only a commit that waited may go over to the next generation: reads wait for it, and
        # nobody else has had the partitions in between.
        is_broken = made_as.generation < self._unbroken_since
        if is_broken and holder.generation > made_as.generation + has_waited:
            return None
        # Otherwise a newer generation shares the partitions out at this moment.
        return holder if holder == self.identity else None

    def has_kept(self, tp: TopicPartition, made_as: Identity) -> bool:
        """Whether nobody else can have had a partition between `made_as` and now."""
        return made_as == self.identity or (
            self._kept_partitions is not None and tp in self._kept_partitions
        )

    def note_refusal(self, sent_as: Identity, error: KafkaError) -> bool:
        """Post what the refusal of a commit interrupts; whether the partitions are lost by it."""
        if (interruption := interruption_by(error)) is None:
            return False
        is_lost = interruption.is_loss and sent_as == self.identity and self.hands_out
        self.interrupt(sent_as, interruption)
        return is_lost

    def why_lost(self) -> CommitFailedError | FencedInstanceIdError:
        """Return the error for commits that come too late, with what is known of the reason."""
        if self.is_fenced:
            return taken_over(self.group_id, self.group_instance_id)
        because = self.lost_because
        if self.lost_by is Interruption.POLL_INTERVAL_EXCEEDED:
            text = (
                f"{because}, so the partitions were revoked. To avoid this, "
                f"{MaxPollIntervalError.remedy}"
            )
            return MaxPollIntervalError(text)
        if because:
            return CommitFailedError(
                f"{because}: run blocking code in a thread (asyncio.to_thread)"
            )
        return CommitFailedError()

    # --- Steps of the group task ----------------------------------------------------------
    def begin_rebalance(self) -> None:
        """Begin to take part in a rebalance."""
        self._kept_partitions = None
        self.enter(MemberState.JOINING)

    def end_rebalance(self, kept: Iterable[TopicPartition]) -> None:
        """Note how a rebalance has ended, though it may not be heard yet (GroupMember.has_kept).

        Args:
            kept: What this member has kept in it, or was assigned.
        """
        self._kept_partitions = frozenset(kept)
        self.notify()

    def take_member_id(self, member_id: str) -> None:
        """Keep the id that the coordinator wants to see in a second JoinGroup (KIP-394)."""
        self.identity = Identity(member_id)

    def take_generation(
        self, identity: Identity, *, protocol_name: str | None, leader_id: str
    ) -> None:
        """Become one of a new generation, as JoinGroup's answer says."""
        self.identity = identity
        self.protocol_name = protocol_name
        self.is_leader = identity.member_id == leader_id
        self.lost_by, self.lost_because = None, ""
        self._interruption = None
        self.enter(MemberState.SYNCING)

    def take_assignment(self, *, keeps: bool = False) -> None:
        """Hold what the present generation's leader assigned to this member.

        Args:
            keeps: It has kept through the rebalance what it had and has again.
        """
        if not keeps or self.assigned_as is None:
            self._unbroken_since = self.identity.generation
        self.assigned_as = self.identity
        self.enter(MemberState.STABLE)

    def lose_generation(self, lost_by: Interruption | None = None, because: str = "") -> None:
        """Be of no generation any more; the member id stays good."""
        self.identity = Identity(self.identity.member_id)
        self.assigned_as = None
        self.lost_by, self.lost_because = lost_by, because
        self.notify()

    def lose_membership(self, lost_by: Interruption | None = None, because: str = "") -> None:
        """Be nobody: the next JoinGroup asks for a new member id."""
        self.identity = Identity()
        self.assigned_as = None
        self.lost_by, self.lost_because = lost_by, because
        self.notify()

    # --- Interruptions --------------------------------------------------------------------
    @property
    def interruption(self) -> Interruption | None:
        """What was posted about the present generation."""
        return self._interruption

    def interrupt(self, identity: Identity, interruption: Interruption) -> None:
        """Post what an answer said about `identity`; ignored when that is not the present one.

        Answers may arrive after a newer generation has formed, and say nothing about it.
        """
        if identity != self.identity or not self.is_member:
            return
        before = self._interruption
        self._interruption = interruption if before is None else max(before, interruption)
        self.notify()

    def settle_interruption(self) -> None:
        """Drop generation or member id, if what was posted says so, and forget it."""
        if self._interruption is Interruption.LOST_GENERATION:
            self.lose_generation(self._interruption)
        elif self._interruption in (Interruption.LOST_MEMBERSHIP, Interruption.FENCED):
            self.lose_membership(self._interruption)
        self._interruption = None
