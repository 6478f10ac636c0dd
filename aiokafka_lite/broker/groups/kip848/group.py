"""The stored state of one KIP-848 group, which changes only in `replay`.

The state of a group is derived (Kafka: ConsumerGroup.java):

Empty: no members.
Assigning: the group's epoch is newer than the target assignment's.
Reconciling: some members have not reached their target assignment.
Stable: all members have reached it.

The group's epoch grows with every change of members, subscriptions or topics.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from aiokafka_lite.broker.groups.kip848.assignors import Assignment
from aiokafka_lite.broker.groups.kip848.member import (
    NOT_OWNED,
    ClassicSide,
    ConsumerGroupMember,
    ConsumerGroupMemberState,
    PartitionEpochs,
)
from aiokafka_lite.broker.groups.values import ErrorType
from aiokafka_lite.errors import (
    IllegalGenerationError,
    NoError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnsupportedVersionError,
)
from aiokafka_lite.protocol.messages import coordinator_records as stored

FIRST_EPOCH: Final = 1


class ConsumerGroupState(enum.Enum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class MemberTimer(enum.Enum):
    SESSION = enum.auto()  # to send a request
    REBALANCE = enum.auto()  # to revoke partitions
    JOIN = enum.auto()  # a classic member, to join again
    SYNC = enum.auto()  # a classic member, to fetch its assignment


class Deadline(NamedTuple):
    """A deadline in seconds of the driver's clock. Applies only in `epoch`, if given."""

    at: float
    epoch: int | None = None


class ResolvedRegex(NamedTuple):
    """The topics that a regular expression matches, in a version of the metadata."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


class ConsumerGroup:
    """Only the driver writes deadlines and metadata_version.

    Attributes:
        metadata_version: Topics version to which `metadata_hash` was compared.
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.members: dict[str, ConsumerGroupMember] = {}
        self.target_epoch = FIRST_EPOCH
        self.target_timestamp_ms = 0
        self.targets: dict[str, Assignment] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        # A record of brokers before 4.1, removed with the next change.
        self.has_partition_metadata_record = False
        self.deadlines: dict[tuple[MemberTimer, str], Deadline] = {}
        self.metadata_version: int | None = None
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

    @property
    def is_empty(self) -> bool:
        return not self.members

    def next_deadline(self) -> float | None:
        return min((deadline.at for deadline in self.deadlines.values()), default=None)

    def check_commit(
        self,
        member_id: str,
        epoch: int,
        partitions: Iterable[tuple[bytes, int]],
        *,
        knows_epochs: bool = True,
    ) -> ErrorType:
        """Return NoError if a member may commit offsets.

        A commit in an older epoch is accepted for partitions that the member has owned since then
        (KIP-1251), because the commit may have been in flight when the epoch changed.
        """
        if epoch < 0 and not self.members:
            return NoError
        member = self.members.get(member_id)
        if member is None:
            return UnknownMemberIdError
        if not member.is_classic and not knows_epochs:
            return UnsupportedVersionError
        if epoch == member.epoch:
            return NoError
        stale: ErrorType = IllegalGenerationError if member.is_classic else StaleMemberEpochError
        for tp in partitions:
            since = member.epoch_of(*tp)
            if since is None or not since <= epoch < member.epoch:
                return stale
        return NoError

    def has_session(self, member_id: str) -> bool:
        return member_id in self.members

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

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in self.topics_of(member) for member in self.members.values())

    def retention_start_ms(self, committed: stored.OffsetCommitValue) -> int:
        return committed.commit_timestamp

    def topics_of(self, member: ConsumerGroupMember) -> frozenset[str]:
        """Return the topic names of a member's subscription, including topics that do not exist."""
        resolved = self.regexes.get(member.topic_regex or "")
        return member.topic_names if resolved is None else member.topic_names | resolved.topics

    def topics_of_all(
        self,
        *,
        without: Iterable[str] = (),
        changed: ConsumerGroupMember | None = None,
        regexes: Mapping[str, ResolvedRegex] | None = None,
    ) -> frozenset[str]:
        gone = {*without}
        members = [member for member in self.members.values() if member.member_id not in gone]
        if changed is not None:
            members = [m for m in members if m.member_id != changed.member_id] + [changed]
        resolved = self.regexes if regexes is None else regexes
        names = set[str]().union(*(member.topic_names for member in members))
        for regex in dict.fromkeys(m.topic_regex for m in members if m.topic_regex):
            if regex in resolved:
                names |= resolved[regex].topics
        return frozenset(names)

    def regex_users(self) -> Counter[str]:
        return Counter(m.topic_regex for m in self.members.values() if m.topic_regex)

    # -- the log -------------------------------------------------------------------------------

    def replay(self, key: stored.ConsumerGroupKey, value: stored.ConsumerGroupValue | None) -> None:
        match key, value:
            case stored.ConsumerGroupMetadataKey(), stored.ConsumerGroupMetadataValue():
                self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
            case stored.ConsumerGroupPartitionMetadataKey(), _:
                self.has_partition_metadata_record = value is not None
            case stored.ConsumerGroupMemberMetadataKey(), stored.ConsumerGroupMemberMetadataValue():
                self._replay_member(key.member_id, value)
            case stored.ConsumerGroupMemberMetadataKey(), None:
                self._remove(key.member_id)
            case (
                stored.ConsumerGroupTargetAssignmentMetadataKey(),
                stored.ConsumerGroupTargetAssignmentMetadataValue(),
            ):
                self.target_epoch = value.assignment_epoch
                self.target_timestamp_ms = value.assignment_timestamp
            case (
                stored.ConsumerGroupTargetAssignmentMemberKey(),
                stored.ConsumerGroupTargetAssignmentMemberValue(),
            ):
                self.targets[key.member_id] = {
                    topic.topic_id: frozenset(topic.partitions) for topic in value.topic_partitions
                }
            case stored.ConsumerGroupTargetAssignmentMemberKey(), None:
                self.targets.pop(key.member_id, None)
            case (
                stored.ConsumerGroupCurrentMemberAssignmentKey(),
                stored.ConsumerGroupCurrentMemberAssignmentValue(),
            ):
                self._replay_assignment(key.member_id, value)
            case (
                stored.ConsumerGroupTargetAssignmentMetadataKey()
                | stored.ConsumerGroupCurrentMemberAssignmentKey(),
                None,
            ):
                pass  # the end of the group, or of the member, follows
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
                raise TypeError(
                    f"a group's record has a key of type {type(key).__name__}, "
                    f"but a value of type {type(value).__name__}"
                )

    def _replay_member(
        self, member_id: str, value: stored.ConsumerGroupMemberMetadataValue
    ) -> None:
        known = self.members.get(member_id, ConsumerGroupMember(member_id))
        classic = value.classic_member_metadata
        self._put(
            dataclasses.replace(
                known,
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
        )

    def _replay_assignment(
        self, member_id: str, value: stored.ConsumerGroupCurrentMemberAssignmentValue
    ) -> None:
        known = self.members.get(member_id, ConsumerGroupMember(member_id))
        self._put(
            dataclasses.replace(
                known,
                epoch=value.member_epoch,
                previous_epoch=value.previous_member_epoch,
                state=ConsumerGroupMemberState(value.state),
                assigned=_with_epochs(value.assigned_partitions, value.member_epoch),
                pending_revocation=_with_epochs(
                    value.partitions_pending_revocation, value.member_epoch
                ),
            )
        )

    def _put(self, member: ConsumerGroupMember) -> None:
        self._release(self.members.get(member.member_id))
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._static_ids[member.instance_id] = member.member_id
        for tp in _partitions(member):
            # If two members claim it, the one in the newer epoch has it.
            self._held_in[tp] = max(member.epoch, self._held_in.get(tp, member.epoch))

    def _remove(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
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
