"""The stored state of a group whose members have epochs, which changes only in `replay`.

The group's epoch grows with every change of members, subscriptions or topics. A target assignment
is then computed for this epoch, and each member reaches it by heartbeats. Kafka:
org.apache.kafka.coordinator.group.modern.ModernGroup."""

from __future__ import annotations

import dataclasses
import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Generic, NamedTuple, TypeAlias, TypeVar

from aiokafka_lite._compat import Self
from aiokafka_lite.broker.groups.coordinator_log import CoordinatorRecord
from aiokafka_lite.errors import FencedMemberEpochError
from aiokafka_lite.protocol.messages import coordinator_records as stored
from aiokafka_lite.protocol.messages import group_members

# Epochs with a special meaning.
JOINING: Final = 0
LEAVING: Final = -1
FIRST_EPOCH: Final = 1

# Partitions by topic id.
Assignment: TypeAlias = Mapping[bytes, frozenset[int]]


class MemberTimer(enum.Enum):
    SESSION = enum.auto()  # to send a request
    REBALANCE = enum.auto()  # to revoke partitions
    JOIN = enum.auto()  # a classic member, to join again
    SYNC = enum.auto()  # a classic member, to fetch its assignment


class Deadline(NamedTuple):
    """A deadline in seconds of the driver's clock. Applies only in `epoch`, if given."""

    at: float
    epoch: int | None = None


@dataclass(frozen=True)
class ModernMember:
    """One member. Every change makes a new object."""

    member_id: str
    epoch: int = JOINING
    previous_epoch: int = -1
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()

    def changed_to(self, **attributes: object) -> Self:
        """Return this member if it has these attributes, otherwise a new object with them."""
        if all(getattr(self, name) == value for name, value in attributes.items()):
            return self
        return dataclasses.replace(self, **attributes)  # type: ignore[arg-type]


def fenced(kind: str, member: ModernMember, epoch: int, why: str = "") -> FencedMemberEpochError:
    """Return Kafka's error for a member that sends an epoch other than its own."""
    return FencedMemberEpochError(
        f"The {kind} group member has a {'greater' if epoch > member.epoch else 'smaller'} member "
        f"epoch ({epoch}) than the one known by the group coordinator ({member.epoch}){why}. The "
        "member must abandon all its partitions and rejoin."
    )


class RecordKinds(NamedTuple):
    """The classes of a group's records."""

    epoch: Callable[..., stored.ModernGroupKey]
    epoch_value: Callable[..., stored.ModernGroupValue]
    member: Callable[..., stored.ModernGroupKey]
    target_epoch: Callable[..., stored.ModernGroupKey]
    target: Callable[..., stored.ModernGroupKey]
    current: Callable[..., stored.ModernGroupKey]


MemberT = TypeVar("MemberT", bound=ModernMember)


class ModernGroup(ABC, Generic[MemberT]):
    """Only the driver writes deadlines and metadata_version."""

    type: ClassVar[str]  # as in ListGroups
    kinds: ClassVar[RecordKinds]
    member_type: Callable[[str], MemberT]

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.members: dict[str, MemberT] = {}
        self.target_epoch = FIRST_EPOCH
        self.target_timestamp_ms = 0
        self.targets: dict[str, Assignment] = {}
        self.deadlines: dict[tuple[MemberTimer, str], Deadline] = {}
        # Topics version to which `metadata_hash` was compared.
        self.metadata_version: int | None = None

    @property
    def is_empty(self) -> bool:
        return not self.members

    def next_deadline(self) -> float | None:
        return min((deadline.at for deadline in self.deadlines.values()), default=None)

    def has_session(self, member_id: str) -> bool:
        return member_id in self.members

    def target_of(self, member: MemberT) -> Assignment:
        return self.targets.get(member.member_id, {})

    def is_subscribed_to(self, topic: str) -> bool:
        return any(topic in self.topics_of(member) for member in self.members.values())

    def topics_of(self, member: MemberT) -> frozenset[str]:
        """Return the topic names of a member's subscription, including topics that do not exist."""
        return member.topic_names

    def members_after(
        self, *, without: Iterable[str] = (), changed: MemberT | None = None
    ) -> list[MemberT]:
        """Return the members after some have left, and one has joined or changed."""
        gone = {*without}
        members = [member for member in self.members.values() if member.member_id not in gone]
        if changed is not None:
            members = [m for m in members if m.member_id != changed.member_id] + [changed]
        return members

    def topics_of_all(
        self, *, without: Iterable[str] = (), changed: MemberT | None = None
    ) -> frozenset[str]:
        members = self.members_after(without=without, changed=changed)
        return frozenset[str]().union(*(member.topic_names for member in members))

    # -- the log -------------------------------------------------------------------------------

    def replay(self, key: stored.ModernGroupKey, value: stored.ModernGroupValue | None) -> None:
        match key, value:
            case (
                stored.ConsumerGroupMetadataKey() | stored.ShareGroupMetadataKey(),
                stored.ConsumerGroupMetadataValue() | stored.ShareGroupMetadataValue(),
            ):
                self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
            case (
                stored.ConsumerGroupMemberMetadataKey() | stored.ShareGroupMemberMetadataKey(),
                None,
            ):
                self._remove(key.member_id)
            case (
                stored.ConsumerGroupTargetAssignmentMetadataKey()
                | stored.ShareGroupTargetAssignmentMetadataKey(),
                stored.ConsumerGroupTargetAssignmentMetadataValue(),
            ):
                self.target_epoch = value.assignment_epoch
                self.target_timestamp_ms = value.assignment_timestamp
            case (
                stored.ConsumerGroupTargetAssignmentMemberKey()
                | stored.ShareGroupTargetAssignmentMemberKey(),
                stored.ConsumerGroupTargetAssignmentMemberValue(),
            ):
                self.targets[key.member_id] = {
                    topic.topic_id: frozenset(topic.partitions) for topic in value.topic_partitions
                }
            case (
                stored.ConsumerGroupTargetAssignmentMemberKey()
                | stored.ShareGroupTargetAssignmentMemberKey(),
                None,
            ):
                self.targets.pop(key.member_id, None)
            case (
                stored.ConsumerGroupTargetAssignmentMetadataKey()
                | stored.ShareGroupTargetAssignmentMetadataKey()
                | stored.ConsumerGroupCurrentMemberAssignmentKey()
                | stored.ShareGroupCurrentMemberAssignmentKey(),
                None,
            ):
                pass  # the end of the group, or of the member, follows
            case _:
                raise TypeError(
                    f"a group's record has a key of type {type(key).__name__}, "
                    f"but a value of type {type(value).__name__}"
                )

    def member(self, member_id: str) -> MemberT:
        """Return a member, which may be new."""
        return self.members.get(member_id) or self.member_type(member_id)

    def _change(self, member_id: str, **attributes: object) -> None:
        self._put(self.member(member_id).changed_to(**attributes))

    def _put(self, member: MemberT) -> None:
        self.members[member.member_id] = member

    def _remove(self, member_id: str) -> None:
        self.members.pop(member_id, None)

    # -- its records (Kafka: GroupCoordinatorRecordHelpers.java) --------------------------------

    @abstractmethod
    def member_record(self, member: MemberT) -> CoordinatorRecord: ...

    @abstractmethod
    def assignment_record(self, member: MemberT) -> CoordinatorRecord: ...

    def _record(
        self,
        kind: Callable[..., stored.ModernGroupKey],
        value: stored.ModernGroupValue | None,
        **ids: str,
    ) -> CoordinatorRecord:
        return CoordinatorRecord(kind(group_id=self.group_id, **ids), value)

    def epoch_record(self, epoch: int, metadata_hash: int) -> CoordinatorRecord:
        value = self.kinds.epoch_value(epoch=epoch, metadata_hash=metadata_hash)
        return self._record(self.kinds.epoch, value)

    def target_record(self, member_id: str, target: Assignment) -> CoordinatorRecord:
        value = stored.ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=topic_partitions(target)
        )
        return self._record(self.kinds.target, value, member_id=member_id)

    def target_epoch_record(self, epoch: int, timestamp_ms: int) -> CoordinatorRecord:
        value = stored.ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=epoch, assignment_timestamp=timestamp_ms
        )
        return self._record(self.kinds.target_epoch, value)

    def member_tombstones(self, member_id: str) -> list[CoordinatorRecord]:
        """Remove a member, the latest record first."""
        kinds = (self.kinds.current, self.kinds.target, self.kinds.member)
        return [self._record(kind, None, member_id=member_id) for kind in kinds]

    def tombstones(self) -> list[CoordinatorRecord]:
        """Remove all records of a group, in Kafka's order."""
        of_members = [self.member_tombstones(member_id) for member_id in self.members]
        current, target, metadata = ([each[place] for each in of_members] for place in range(3))
        return [
            *current,
            *target,
            self._record(self.kinds.target_epoch, None),
            *metadata,
            *self._other_tombstones(),
            self._record(self.kinds.epoch, None),
        ]

    def _other_tombstones(self) -> list[CoordinatorRecord]:
        return []


def topic_partitions(
    assigned: Mapping[bytes, Collection[int]],
) -> list[group_members.TopicPartitions]:
    return [
        group_members.TopicPartitions(topic_id=topic_id, partitions=sorted(held))
        for topic_id, held in assigned.items()
    ]


def assignment_of(assigned: Mapping[bytes, Collection[int]]) -> group_members.Assignment:
    """Return a member's partitions as responses to heartbeats have them."""
    return group_members.Assignment(topic_partitions=topic_partitions(assigned))


def in_java_order(texts: Collection[str]) -> list[str]:
    """Sort like Java's String.compareTo, by UTF-16 units."""
    if "".join(texts).isascii():  # the same order, in a fifth of the time
        return sorted(texts)
    return sorted(texts, key=lambda text: text.encode("utf-16-be", "surrogatepass"))
