"""The member's side of the classic group protocol, without I/O.

In a rebalance, all members send JoinGroup, whose response names a leader, and SyncGroup, which
carries the leader's assignment. Each rebalance makes a new generation, and requests of older
generations are refused, so that two members never commit for one partition.

==========  ============================================  ==========================
state       meaning                                       leaves when
==========  ============================================  ==========================
UNJOINED    holds no partitions                           topics are subscribed
PREPARING   revokes partitions, in the old generation     that is done
            unless it was lost
JOINING     JoinGroup is in flight                        the response has a
                                                          generation
SYNCING     of the new generation; SyncGroup is in        the response has an
            flight. The coordinator refuses commits       assignment
STABLE      holds its assignment, sends heartbeats        something interrupts it
FENCED      another consumer has its instance id          the consumer stops
LEAVING     last commit, LeaveGroup                       both are done or too late
LEFT        final
==========  ============================================  ==========================

From one STABLE to the next, partitions are held and committed as `assigned_as`. In SYNCING,
`identity` is of the new generation already. Partitions that the application has given up are
committed in that generation after SyncGroup, if this member has kept them or is assigned them
again.

If the generation is over, the member id stays valid. If the coordinator forgot the member, it needs
a new id. Both lose the partitions.

One writer, the group task, except that heartbeats and commits call `interrupt` and `note_refusal`,
which ignore errors of older generations.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from aiokafka_lite._compat import override
from aiokafka_lite.consumer.membership.protocol import Identity
from aiokafka_lite.consumer.membership.recovery import Interruption, interruption_by
from aiokafka_lite.consumer.membership.stateful import StatefulMember
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.structs import TopicPartition


class MemberState(enum.Enum):
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

REBALANCING: Final = frozenset({MemberState.JOINING, MemberState.SYNCING})
BEFORE_STABLE: Final = REBALANCING | {MemberState.PREPARING}


class Member(StatefulMember[MemberState]):
    """One member of one group. `member_id` is that of an earlier start."""

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
        # The first generation since which kept partitions had no other owner.
        self._unbroken_since: float = math.inf
        # Owned before and after the latest rebalance. None: a rebalance is in progress.
        self._kept_partitions: frozenset[TopicPartition] | None = frozenset()
        self.protocol_name: str | None = None
        self.is_leader = False
        self.interruption: Interruption | None = None

    @property
    def is_of_the_next_generation(self) -> bool:
        """Whether no generation was in between, so that its partitions had no other owner."""
        before, identity = self.assigned_as, self.identity
        return (
            before is not None
            and before.member_id == identity.member_id
            and identity.generation <= before.generation + 1
        )

    @property
    def delivers(self) -> bool:
        if self.assigned_as is None:
            return False
        if self.state is MemberState.STABLE:
            return True
        return self.is_cooperative and self.state in BEFORE_STABLE

    @property
    def is_heard(self) -> bool:
        is_lost = self.interruption is not None and self.interruption.is_loss
        is_joining = self.state is MemberState.JOINING and not self.delivers
        return self.is_member and not is_lost and not is_joining

    @override
    def enter(self, state: MemberState) -> None:
        super().enter(state)
        self.is_rebalancing = state in REBALANCING

    # --- For commits ----------------------------------------------------------------------
    @property
    def reads_as(self) -> None:
        """None: the classic protocol lets every client read a group's committed offsets."""

    def takes_commits(self, *, was_put_off: bool = False, is_departed: bool = False) -> bool:
        state = self.state
        if is_departed:
            # Until all have joined, the coordinator accepts commits of the old generation.
            is_joining = state is MemberState.JOINING and not was_put_off
            return not self.is_rebalancing or is_joining or self._kept_partitions is not None
        # Until all have joined it would accept this commit, too. A moment later it answers
        # ILLEGAL_GENERATION, which is also the answer to a member that was removed.
        if self.is_rebalancing or not was_put_off:
            return not self.is_rebalancing
        is_interrupted = state is MemberState.STABLE and self.interruption is not None
        return not is_interrupted and state is not MemberState.PREPARING

    def commits_as(
        self, made_as: Identity, *, has_waited: bool, is_departed: bool
    ) -> Identity | None:
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
        # Only a commit that waited may be sent in the next generation: reads wait for it, and the
        # partitions had no other owner.
        is_broken = made_as.generation < self._unbroken_since
        if is_broken and holder.generation > made_as.generation + has_waited:
            return None
        # Otherwise the assignment of a newer generation is being computed.
        return holder if holder == self.identity else None

    def has_kept(self, tp: TopicPartition, made_as: Identity) -> bool:
        return made_as == self.identity or (
            self._kept_partitions is not None and tp in self._kept_partitions
        )

    def note_refusal(self, sent_as: Identity, error: KafkaError) -> bool:
        if (interruption := interruption_by(error)) is None:
            return False
        is_lost = interruption.is_loss and sent_as == self.identity and self.delivers
        self.interrupt(sent_as, interruption)
        return is_lost

    # --- Steps of the group task ----------------------------------------------------------
    def begin_rebalance(self) -> None:
        self._kept_partitions = None
        self.enter(MemberState.JOINING)

    def end_rebalance(self, kept: Iterable[TopicPartition]) -> None:
        self._kept_partitions = frozenset(kept)
        self.notify()

    def take_member_id(self, member_id: str) -> None:
        """Keep the id for the second JoinGroup (KIP-394)."""
        self.identity = Identity(member_id)

    def take_generation(
        self, identity: Identity, *, protocol_name: str | None, leader_id: str
    ) -> None:
        self.identity = identity
        self.protocol_name = protocol_name
        self.is_leader = identity.member_id == leader_id
        self.note_loss(None)
        self.is_fenced = False
        self.interruption = None
        self.enter(MemberState.SYNCING)

    def take_assignment(self, *, keeps: bool = False) -> None:
        """Hold the assignment; `keeps`: partitions that are assigned again were kept."""
        if not keeps or self.assigned_as is None:
            self._unbroken_since = self.identity.generation
        self.assigned_as = self.identity
        self.enter(MemberState.STABLE)

    def lose_generation(self, lost_by: Interruption | None = None, because: str = "") -> None:
        self.lose(Identity(self.identity.member_id), lost_by, because)

    def lose_membership(self, lost_by: Interruption | None = None, because: str = "") -> None:
        self.lose(Identity(), lost_by, because)

    # --- Interruptions --------------------------------------------------------------------
    def interrupt(self, identity: Identity, interruption: Interruption) -> None:
        """Note an interruption; ignored if `identity` is no longer the present one."""
        if identity != self.identity or not self.is_member:
            return
        before = self.interruption
        self.interruption = interruption if before is None else max(before, interruption)
        self.is_fenced = self.interruption is Interruption.FENCED
        self.notify()

    def settle_interruption(self) -> None:
        if self.interruption is Interruption.LOST_GENERATION:
            self.lose_generation(self.interruption)
        elif self.interruption in (Interruption.LOST_MEMBERSHIP, Interruption.FENCED):
            self.lose_membership(self.interruption)
        self.interruption = None
