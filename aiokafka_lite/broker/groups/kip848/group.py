"""The stored state of one KIP-848 group and its members, which changes only in `replay`.

The state of a group is derived (Kafka: ConsumerGroup.java):

Empty: no members.
Assigning: the group's epoch is newer than the target assignment's.
Reconciling: some members have not reached their target assignment.
Stable: all members have reached it.

The group's epoch grows with every change of members, subscriptions or topics.

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
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from aiokafka_lite.broker.groups.classic.members import Protocols
from aiokafka_lite.broker.groups.coordinator_log import CoordinatorRecord, ErrorType
from aiokafka_lite.broker.groups.modern.group import (
    Assignment,
    ModernGroup,
    ModernMember,
    RecordKinds,
    in_java_order,
)
from aiokafka_lite.errors import (
    FencedMemberEpochError,
    IllegalGenerationError,
    NoError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnsupportedVersionError,
)
from aiokafka_lite.protocol.messages import coordinator_records as stored
from aiokafka_lite.protocol.messages.group_members import JoinGroupRequestProtocol

# A special epoch.
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
class ConsumerGroupMember(ModernMember):
    """One member. Without a regex, `topic_regex` is "" or None."""

    state: ConsumerGroupMemberState = STABLE
    instance_id: str | None = None
    rebalance_timeout_ms: int = -1
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

    def left_for_now(self) -> ConsumerGroupMember:
        kept = {topic: dict.fromkeys(held, 0) for topic, held in self.assigned.items()}
        return dataclasses.replace(
            self, epoch=LEAVING_FOR_NOW, assigned=kept, pending_revocation={}
        )

    def under_new_id(self, member_id: str) -> ConsumerGroupMember:
        return dataclasses.replace(self, member_id=member_id, epoch=0, previous_epoch=0)


@dataclass(frozen=True)
class MemberTarget:
    """One member's part of the target assignment."""

    epoch: int
    partitions: Assignment
    topic_ids: Set[bytes]  # the existing topics of its subscription
    held_in: Callable[[bytes, int], int]  # returns the epoch of a partition's holder, or NOT_OWNED


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


class ConsumerGroupState(enum.Enum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class ResolvedRegex(NamedTuple):
    """The topics that a regular expression matches, in a version of the metadata."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


class ConsumerGroup(ModernGroup[ConsumerGroupMember]):
    type = "consumer"
    member_type = ConsumerGroupMember
    kinds = RecordKinds(
        stored.ConsumerGroupMetadataKey,
        stored.ConsumerGroupMetadataValue,
        stored.ConsumerGroupMemberMetadataKey,
        stored.ConsumerGroupTargetAssignmentMetadataKey,
        stored.ConsumerGroupTargetAssignmentMemberKey,
        stored.ConsumerGroupCurrentMemberAssignmentKey,
    )

    def __init__(self, group_id: str) -> None:
        super().__init__(group_id)
        self.regexes: dict[str, ResolvedRegex] = {}
        # A record of brokers before 4.1, removed with the next change.
        self.has_partition_metadata_record = False
        # Indexes over the members.
        self._static_ids: dict[str, str] = {}
        self._held_in: dict[tuple[bytes, int], int] = {}

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.target_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def check_commit(
        self,
        member_id: str,
        epoch: int,
        partitions: Iterable[tuple[bytes, int]],
        *,
        knows_epochs: bool = True,
    ) -> ErrorType:
        """Return NoError if a member may commit offsets."""
        if epoch < 0 and not self.members:
            return NoError
        member = self.members.get(member_id)
        if member is None:
            return UnknownMemberIdError
        if not member.is_classic and not knows_epochs:
            return UnsupportedVersionError
        if epoch == member.epoch:
            return NoError
        # A commit may have been in flight when the epoch changed (KIP-1251).
        stale: ErrorType = IllegalGenerationError if member.is_classic else StaleMemberEpochError
        for tp in partitions:
            since = member.epoch_of(*tp)
            if since is None or not since <= epoch < member.epoch:
                return stale
        return NoError

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorType:
        if member_id is None and epoch < 0:
            return NoError
        member = self.members.get(member_id or "")
        if member is None:
            return UnknownMemberIdError
        if epoch != member.epoch:
            return IllegalGenerationError if member.is_classic else StaleMemberEpochError
        return NoError

    def static_member(self, instance_id: str | None) -> ConsumerGroupMember | None:
        """Return the member of an instance id, also while it is temporarily away."""
        member_id = None if instance_id is None else self._static_ids.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def held_in(self, topic_id: bytes, partition: int) -> int:
        """Return the epoch of the member that holds a partition or must still revoke it."""
        return self._held_in.get((topic_id, partition), NOT_OWNED)

    def target_of(self, member: ConsumerGroupMember) -> Assignment:
        """Return a member's target. A static member inherits its predecessor's."""
        known = self.static_member(member.instance_id)
        return self.targets.get(member.member_id if known is None else known.member_id, {})

    def retention_start_ms(self, committed: stored.OffsetCommitValue) -> int:
        return committed.commit_timestamp

    def topics_of(self, member: ConsumerGroupMember) -> frozenset[str]:
        resolved = self.regexes.get(member.topic_regex or "")
        return member.topic_names if resolved is None else member.topic_names | resolved.topics

    def topics_of_all(
        self,
        *,
        without: Iterable[str] = (),
        changed: ConsumerGroupMember | None = None,
        regexes: Mapping[str, ResolvedRegex] | None = None,
    ) -> frozenset[str]:
        members = self.members_after(without=without, changed=changed)
        resolved = self.regexes if regexes is None else regexes
        names = set[str]().union(*(member.topic_names for member in members))
        for regex in dict.fromkeys(m.topic_regex for m in members if m.topic_regex):
            if regex in resolved:
                names |= resolved[regex].topics
        return frozenset(names)

    def regex_users(self) -> Counter[str]:
        return Counter(m.topic_regex for m in self.members.values() if m.topic_regex)

    # -- the log -------------------------------------------------------------------------------

    def replay(self, key: stored.ModernGroupKey, value: stored.ModernGroupValue | None) -> None:
        match key, value:
            case stored.ConsumerGroupPartitionMetadataKey(), _:
                self.has_partition_metadata_record = value is not None
            case stored.ConsumerGroupMemberMetadataKey(), stored.ConsumerGroupMemberMetadataValue():
                self._replay_member(key.member_id, value)
            case (
                stored.ConsumerGroupCurrentMemberAssignmentKey(),
                stored.ConsumerGroupCurrentMemberAssignmentValue(),
            ):
                self._replay_assignment(key.member_id, value)
            case (
                stored.ConsumerGroupRegularExpressionKey(),
                stored.ConsumerGroupRegularExpressionValue(),
            ):
                self.regexes[key.regular_expression] = ResolvedRegex(
                    frozenset(value.topics), value.version, value.timestamp
                )
            case stored.ConsumerGroupRegularExpressionKey(), None:
                self.regexes.pop(key.regular_expression, None)
            case _:
                super().replay(key, value)

    def _replay_member(
        self, member_id: str, value: stored.ConsumerGroupMemberMetadataValue
    ) -> None:
        classic = value.classic_member_metadata
        self._change(
            member_id,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topic_names=frozenset(value.subscribed_topic_names),
            topic_regex=value.subscribed_topic_regex,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=None
            if classic is None
            else ClassicSide(
                classic.session_timeout_ms,
                tuple((one.name, one.metadata) for one in classic.supported_protocols),
            ),
        )

    def _replay_assignment(
        self, member_id: str, value: stored.ConsumerGroupCurrentMemberAssignmentValue
    ) -> None:
        self._change(
            member_id,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=ConsumerGroupMemberState(value.state),
            assigned=_with_epochs(value.assigned_partitions, value.member_epoch),
            pending_revocation=_with_epochs(
                value.partitions_pending_revocation, value.member_epoch
            ),
        )

    def _put(self, member: ConsumerGroupMember) -> None:
        self._release(self.members.get(member.member_id))
        super()._put(member)
        if member.instance_id is not None:
            self._static_ids[member.instance_id] = member.member_id
        for tp in _partitions(member):
            # If two members claim it, the one in the newer epoch has it.
            self._held_in[tp] = max(member.epoch, self._held_in.get(tp, member.epoch))

    def _remove(self, member_id: str) -> None:
        member = self.members.get(member_id)
        super()._remove(member_id)
        self._release(member)
        instance_id = None if member is None else member.instance_id
        # A successor may have the instance id already.
        if instance_id is not None and self._static_ids.get(instance_id) == member_id:
            del self._static_ids[instance_id]

    def _release(self, member: ConsumerGroupMember | None) -> None:
        if member is not None:
            for tp in _partitions(member):
                if self._held_in.get(tp) == member.epoch:
                    del self._held_in[tp]

    # -- its records ---------------------------------------------------------------------------

    def partition_metadata_tombstone(self) -> CoordinatorRecord:
        """Remove a record of brokers before 4.1."""
        return self._record(stored.ConsumerGroupPartitionMetadataKey, None)

    def member_record(self, member: ConsumerGroupMember) -> CoordinatorRecord:
        value = stored.ConsumerGroupMemberMetadataValue(
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=in_java_order(member.topic_names),
            subscribed_topic_regex=member.topic_regex,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            server_assignor=member.server_assignor,
        )
        if member.classic is not None:
            value.classic_member_metadata = stored.ClassicMemberMetadata(
                session_timeout_ms=member.classic.session_timeout_ms,
                supported_protocols=[
                    JoinGroupRequestProtocol(name=name, metadata=metadata)
                    for name, metadata in member.classic.protocols
                ],
            )
        return self._record(
            stored.ConsumerGroupMemberMetadataKey, value, member_id=member.member_id
        )

    def assignment_record(self, member: ConsumerGroupMember) -> CoordinatorRecord:
        value = stored.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=member.state.value,
            assigned_partitions=_topic_partitions(member.assigned),
            partitions_pending_revocation=_topic_partitions(member.pending_revocation),
        )
        return self._record(
            stored.ConsumerGroupCurrentMemberAssignmentKey, value, member_id=member.member_id
        )

    def regex_record(self, regex: str, resolved: ResolvedRegex | None) -> CoordinatorRecord:
        """Store a regular expression's topics. None removes it."""
        value = None
        if resolved is not None:
            value = stored.ConsumerGroupRegularExpressionValue(
                topics=in_java_order(resolved.topics),
                version=resolved.version,
                timestamp=resolved.timestamp_ms,
            )
        return self._record(
            stored.ConsumerGroupRegularExpressionKey, value, regular_expression=regex
        )

    def _other_tombstones(self) -> list[CoordinatorRecord]:
        return [
            *(self.regex_record(regex, None) for regex in self.regexes),
            self.partition_metadata_tombstone(),
        ]


def _partitions(member: ConsumerGroupMember) -> Iterable[tuple[bytes, int]]:
    for held in (member.assigned, member.pending_revocation):
        for topic_id, partitions in held.items():
            for partition in partitions:
                yield topic_id, partition


def _with_epochs(topics: Iterable[stored.TopicPartitions], member_epoch: int) -> PartitionEpochs:
    """Return partitions with assignment epochs, which brokers before 4.3 did not store."""
    found: dict[bytes, Mapping[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [max(member_epoch, 0)] * len(topic.partitions)
        found[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return found


def _topic_partitions(assigned: PartitionEpochs) -> list[stored.TopicPartitions]:
    return [
        stored.TopicPartitions(
            topic_id=topic_id,
            partitions=(partitions := sorted(held)),
            assignment_epochs=[held[partition] for partition in partitions],
        )
        for topic_id, held in assigned.items()
    ]
