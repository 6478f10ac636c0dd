"""One member of a KIP-848 group, and its steps from one assignment to the next.

States of a member (Kafka: MemberState.java, CurrentAssignmentBuilder.java):

STABLE: has its target assignment, in the epoch of that assignment.
UNREVOKED_PARTITIONS: must revoke partitions and has not confirmed. It stays in its epoch, and the
    partitions are not reassigned. Its rebalance timeout runs.
UNRELEASED_PARTITIONS: in the target's epoch, but waits for partitions that others must revoke.
UNKNOWN: a newer broker wrote another state. The member must join again.

Members leave with the epoch -1, static members that will return with -2, which keeps their place.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from aiokafka_lite.broker.groups.kip848.assignors import Assignment
from aiokafka_lite.broker.groups.values import Protocols
from aiokafka_lite.errors import FencedMemberEpochError

# Epochs with a special meaning.
JOINING: Final = 0
LEAVING: Final = -1
LEAVING_FOR_NOW: Final = -2
NOT_OWNED: Final = -1

# Partitions by topic id, each with the epoch in which the member got it (KIP-1251).
PartitionEpochs: TypeAlias = Mapping[bytes, Mapping[int, int]]
# The partitions that a member reports as owned, None if it does not report any.
Owned: TypeAlias = "Mapping[bytes, Collection[int]] | None"


class ConsumerGroupMemberState(enum.IntEnum):
    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127

    @classmethod
    def _missing_(cls, value: object) -> ConsumerGroupMemberState:
        return cls.UNKNOWN


STABLE: Final = ConsumerGroupMemberState.STABLE
UNREVOKED: Final = ConsumerGroupMemberState.UNREVOKED_PARTITIONS
UNRELEASED: Final = ConsumerGroupMemberState.UNRELEASED_PARTITIONS
UNKNOWN: Final = ConsumerGroupMemberState.UNKNOWN


@dataclass(frozen=True)
class ClassicSide:
    session_timeout_ms: int
    protocols: Protocols


@dataclass(frozen=True)
class ConsumerGroupMember:
    """One member. Every change makes a new object. Without a regex, `topic_regex` is "" or None."""

    member_id: str
    epoch: int = JOINING
    previous_epoch: int = -1
    state: ConsumerGroupMemberState = STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    topic_regex: str | None = ""
    server_assignor: str | None = None
    assigned: PartitionEpochs = field(default_factory=dict)
    pending_revocation: PartitionEpochs = field(default_factory=dict)
    classic: ClassicSide | None = None

    @property
    def is_classic(self) -> bool:
        return self.classic is not None

    def is_reconciled_to(self, target_epoch: int) -> bool:
        return self.state is STABLE and self.epoch == target_epoch

    def epoch_of(self, topic_id: bytes, partition: int) -> int | None:
        """Return the epoch in which it got a partition that it has, or must still revoke."""
        found = self.assigned.get(topic_id, {}).get(partition)
        if found is None:
            found = self.pending_revocation.get(topic_id, {}).get(partition)
        return found

    def changed_to(self, **attributes: object) -> ConsumerGroupMember:
        """Return this member if it has these attributes, otherwise a new object with them."""
        if all(getattr(self, name) == value for name, value in attributes.items()):
            return self
        return dataclasses.replace(self, **attributes)  # type: ignore[arg-type]

    def left_for_now(self) -> ConsumerGroupMember:
        kept = {topic: dict.fromkeys(held, 0) for topic, held in self.assigned.items()}
        return dataclasses.replace(
            self, epoch=LEAVING_FOR_NOW, assigned=kept, pending_revocation={}
        )

    def under_new_id(self, member_id: str) -> ConsumerGroupMember:
        return dataclasses.replace(self, member_id=member_id, epoch=0, previous_epoch=0)


@dataclass(frozen=True)
class MemberTarget:
    """One member's part of the target assignment.

    Attributes:
        topic_ids: The existing topics of its subscription.
        held_in: Returns the epoch of a partition's holder, or NOT_OWNED.
    """

    epoch: int
    partitions: Assignment
    topic_ids: Set[bytes]
    held_in: Callable[[bytes, int], int]


def reconcile(
    member: ConsumerGroupMember, target: MemberTarget, owned: Owned, *, has_new_subscription: bool
) -> ConsumerGroupMember:
    """Return the member's next step towards the target, or the unchanged member."""
    if not has_new_subscription and member.is_reconciled_to(target.epoch):
        return member
    if member.state is STABLE and member.epoch == target.epoch:
        return _without_unsubscribed(member, target, owned)
    if member.state is UNREVOKED and _owns_any(owned, member.pending_revocation):
        return _without_unsubscribed(member, target, owned) if has_new_subscription else member
    epoch = member.epoch
    if member.state is UNKNOWN:
        if owned is None or owned:
            raise FencedMemberEpochError(
                "The consumer group member is in a unknown state. "
                "The member must abandon all its partitions and rejoin."
            )
        epoch = target.epoch
    return _next(member, epoch, target, owned)


def _next(
    member: ConsumerGroupMember, epoch: int, target: MemberTarget, owned: Owned
) -> ConsumerGroupMember:
    """Revoke first: the member gets no partitions and no new epoch before that."""
    kept: dict[bytes, Mapping[int, int]] = {}
    to_revoke: dict[bytes, Mapping[int, int]] = {}
    to_add: dict[bytes, list[int]] = {}
    is_waiting = False
    for topic_id in sorted({*target.partitions, *member.assigned}):
        wanted: Set[int] = target.partitions.get(topic_id, frozenset())
        if topic_id not in target.topic_ids:
            wanted = frozenset()
        held = member.assigned.get(topic_id, {})
        own_revoked = member.pending_revocation.get(topic_id, {})
        keeping = {p: since for p, since in held.items() if p in wanted}
        leaving = {p: since for p, since in held.items() if p not in wanted}
        missing = sorted(wanted - keeping.keys())
        free = [p for p in missing if target.held_in(topic_id, p) == NOT_OWNED or p in own_revoked]
        is_waiting = is_waiting or len(free) < len(missing)
        for partitions, part in ((kept, keeping), (to_revoke, leaving)):
            if part:
                partitions[topic_id] = part
        if free:
            to_add[topic_id] = free
    if to_revoke and _owns_any(owned, to_revoke):
        return _moved(member, UNREVOKED, epoch, kept, to_revoke)
    for topic_id, free in to_add.items():
        kept[topic_id] = {**kept.get(topic_id, {}), **dict.fromkeys(free, target.epoch)}
    return _moved(member, UNRELEASED if is_waiting else STABLE, target.epoch, kept, {})


def _without_unsubscribed(
    member: ConsumerGroupMember, target: MemberTarget, owned: Owned
) -> ConsumerGroupMember:
    """Revoke topics that are no longer subscribed to, before any new target."""
    gone = {t: held for t, held in member.assigned.items() if t not in target.topic_ids}
    if not gone:
        return member
    kept = {t: held for t, held in member.assigned.items() if t in target.topic_ids}
    to_revoke = {t: dict(held) for t, held in member.pending_revocation.items()}
    for topic_id, held in gone.items():
        to_revoke.setdefault(topic_id, {}).update(held)
    if _owns_any(owned, to_revoke):
        return _moved(member, UNREVOKED, member.epoch, kept, to_revoke)
    return _moved(member, member.state, member.epoch, kept, member.pending_revocation)


def _moved(
    member: ConsumerGroupMember,
    state: ConsumerGroupMemberState,
    epoch: int,
    assigned: PartitionEpochs,
    pending_revocation: PartitionEpochs,
) -> ConsumerGroupMember:
    return dataclasses.replace(
        member,
        state=state,
        epoch=epoch,
        previous_epoch=member.epoch,
        assigned=assigned,
        pending_revocation=pending_revocation,
    )


def _owns_any(owned: Owned, partitions: PartitionEpochs) -> bool:
    """Return whether a member may own some of these: it does until it reports otherwise."""
    if owned is None:
        return True
    return any(
        partition in partitions.get(topic_id, {})
        for topic_id, held in owned.items()
        for partition in held
    )
