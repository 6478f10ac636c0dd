"""The member's side of the consumer protocol (KIP-848), without I/O.

The responses to heartbeats lead each member to the coordinator's assignment. There is no barrier: a
member revokes partitions and reports that, and then the next owner gets them. The one request joins
(epoch 0), stays, and leaves (epoch -1, or -2 for a static member that will be back).

===========  ===========================================  ==========================
state        meaning                                      leaves when
===========  ===========================================  ==========================
UNJOINED     no member                                    topics are subscribed
JOINING      sends heartbeats with epoch 0                a response has an epoch
RECONCILING  does not hold its target                     it holds the target
STABLE       holds its target                             the target changes
DROPPED      removed: its partitions are lost             the listener has returned
REFUSED      another consumer has its instance id         the consumer stops
LEAVING      last commit, last heartbeat                  both are done or too late
LEFT         final
===========  ===========================================  ==========================

The epoch increases while partitions stay. So a commit carries the present epoch (`commits_as`), and
is sent again if that was stale. Whether a partition was held without a break is seen from its
cursor.

A member is dropped if its epoch is over (FENCED_MEMBER_EPOCH) or it is unknown (UNKNOWN_MEMBER_ID).
In the first case it rejoins with the same id, because its partitions would otherwise wait for the
end of the session.

Writers: the group task, and for responses the heartbeat (`take_answer`, `drop`) and commits
(`note_refusal`). Responses to an older identity are ignored.

References: KIP-848, KIP-1082, Kafka's AbstractMembershipManager.java.
"""

from __future__ import annotations

import base64
import enum
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

from aiokafka_lite._chance import UNSEEDED, Chance
from aiokafka_lite.consumer.membership.protocol import Identity
from aiokafka_lite.consumer.membership.recovery import (
    Interruption,
    Recovery,
    loss_by,
    recovery_for,
)
from aiokafka_lite.consumer.membership.stateful import StatefulMember
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.structs import TopicPartition

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
LEAVE_FOR_NOW_EPOCH: Final = -2


class MemberState(enum.Enum):
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

PRESENT: Final = frozenset({MemberState.RECONCILING, MemberState.STABLE})


class PartitionId(NamedTuple):
    topic_id: bytes
    number: int


Target = frozenset[PartitionId]


def new_member_id(chance: Chance = UNSEEDED) -> str:
    """Make an id as Java's client: a UUID in URL-safe base 64 (KIP-1082)."""
    uuid = UUID(bytes=chance.unguessable_bytes(16), version=4)
    return base64.urlsafe_b64encode(uuid.bytes)[:22].decode()


class ConsumerMember(StatefulMember[MemberState]):
    """One member of one group. `member_id` is that of an earlier start."""

    def __init__(
        self,
        group_id: str,
        group_instance_id: str | None = None,
        *,
        member_id: str = "",
        chance: Chance = UNSEEDED,
    ) -> None:
        self._chance = chance
        super().__init__(
            group_id,
            group_instance_id,
            Identity(member_id or new_member_id(chance)),
            MemberState.UNJOINED,
            LEGAL_TRANSITIONS,
        )
        # The latest assignment. None: there was none.
        self.target: Target | None = None
        # A request was refused with STALE_MEMBER_EPOCH.
        self.is_epoch_stale = False

    @property
    def is_heard(self) -> bool:
        return self.state is MemberState.JOINING or self.is_member

    @property
    def delivers(self) -> bool:
        return self.is_member

    # --- For commits ----------------------------------------------------------------------
    @property
    def reads_as(self) -> Identity | None:
        return self.assigned_as

    def takes_commits(self, *, was_put_off: bool = False, is_departed: bool = False) -> bool:
        return True

    def commits_as(
        self, made_as: Identity, *, has_waited: bool, is_departed: bool
    ) -> Identity | None:
        """Return the present identity, if the member was never dropped since `made_as`."""
        holder = self.assigned_as
        if holder is None or not _is_as_before(holder, made_as):
            return None  # the partitions may have had other owners since
        return holder

    def has_kept(self, tp: TopicPartition, made_as: Identity) -> bool:
        """True: partitions have no other owner until this member revokes them."""
        return True

    def note_refusal(self, sent_as: Identity, error: KafkaError) -> bool:
        if recovery_for(error) is Recovery.NEW_EPOCH:
            if sent_as == self.identity:
                self.is_epoch_stale = True
                self.notify()
            return False
        loss = loss_by(error)
        return loss is not None and self.drop(sent_as, loss, str(error))

    # --- Steps of the group task ----------------------------------------------------------
    def reconciled(self, *, is_done: bool) -> None:
        state = MemberState.STABLE if is_done else MemberState.RECONCILING
        if self.state in PRESENT and self.state is not state:
            self.enter(state)

    def reset(self, *, keeps_id: bool) -> None:
        self.target = None
        member_id = self.identity.member_id if keeps_id else new_member_id(self._chance)
        identity = Identity(member_id, drop_count=self.identity.drop_count + 1)
        self.lose(identity, self.lost_by, self.lost_because)

    # --- Responses ------------------------------------------------------------------------
    def take_answer(self, sent_as: Identity, identity: Identity, target: Target | None) -> bool:
        """Apply a response. Return whether it was for the present identity."""
        if sent_as != self.identity or not self.is_heard:
            return False
        self.identity = self.assigned_as = identity
        self.is_epoch_stale = False
        if target is not None:
            self.target = target
        if self.state is MemberState.JOINING:
            self.note_loss(None)
            self.enter(MemberState.RECONCILING)
        else:
            self.notify()
        return True

    def take_late_answer(self, identity: Identity, target: Target | None) -> bool:
        """Apply a response to the heartbeat thread, unless its epoch is older."""
        now = self.identity
        is_newer = _is_as_before(identity, now) and identity.generation >= now.generation
        return self.is_member and is_newer and self.take_answer(now, identity, target)

    def drop(self, sent_as: Identity, loss: Interruption, because: str = "") -> bool:
        """Note that the group has removed the member, if `sent_as` is still its identity."""
        if sent_as != self.identity or not self.is_heard:
            return False
        self.note_loss(loss, because)
        self.reset(keeps_id=loss is not Interruption.LOST_MEMBERSHIP)
        if self.state is not MemberState.LEAVING:
            self.enter(MemberState.DROPPED)
        return True


def _is_as_before(one: Identity, other: Identity) -> bool:
    """Whether the member was not dropped from one identity to the other."""
    return one._replace(generation=other.generation) == other


Held = Mapping[PartitionId, TopicPartition]


class Reconciliation(NamedTuple):
    """The steps that are left to hold the target."""

    # Not in the target, or of deleted topics; revoked first.
    to_revoke: Held
    # In the target, with known names.
    to_assign: Held
    # Topic ids without a name.
    unknown: frozenset[bytes]

    @property
    def is_empty(self) -> bool:
        return not (self.to_revoke or self.to_assign or self.unknown)


def difference(
    target: Target | None,
    held: Held,
    names: Mapping[bytes, str],
    id_of: Callable[[str], bytes | None],
) -> Reconciliation:
    """Return the next steps from the held partitions to the assigned ones.

    A topic id that is missing from the metadata stays in the target, and is looked up in each new
    view. Partitions held under a former id of their topic are revoked at once: those of the new
    topic may be another member's. Without a target there are no steps.
    """
    if target is None:
        return Reconciliation({}, {}, frozenset())
    to_revoke = {
        each: tp
        for each, tp in held.items()
        if each not in target or id_of(tp.topic) not in (each.topic_id, None)
    }
    held_by_name = set(held.values())
    to_assign: dict[PartitionId, TopicPartition] = {}
    unknown = set[bytes]()
    for each in sorted(target - held.keys()):
        if (name := names.get(each.topic_id)) is None:
            unknown.add(each.topic_id)
            continue
        tp = TopicPartition(name, each.number)
        # Partitions held under a recreated topic's former id are revoked first.
        if tp not in held_by_name:
            to_assign[each] = tp
    return Reconciliation(to_revoke, to_assign, frozenset(unknown))
