"""The requests to groups whose members have epochs, without I/O.

Methods fill a `GroupChange`. The group changes only when the driver has stored the records and
replays them. Each heartbeat stores the member's new subscription, bumps the group's epoch if the
subscription or the topics changed, computes a target assignment for the new epoch, and moves this
member towards its target (Kafka: GroupMetadataManager.java)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from aiokafka_lite.broker.catalog import TopicCatalog
from aiokafka_lite.broker.configs import GroupSettings
from aiokafka_lite.broker.groups.coordinator_log import CoordinatorRecord
from aiokafka_lite.broker.groups.modern.group import (
    Assignment,
    Deadline,
    MemberT,
    MemberTimer,
    ModernGroup,
)
from aiokafka_lite.errors import GroupMaxSizeReachedError, UnknownMemberIdError

AnyGroup = TypeVar("AnyGroup", bound="ModernGroup[Any]")
SettingsT = TypeVar("SettingsT", bound=GroupSettings)


@dataclass
class GroupChange(Generic[AnyGroup]):
    """The outcome of a request to a group."""

    group: AnyGroup
    now: float
    records: list[CoordinatorRecord] = field(default_factory=list)
    # Timers to set, or to stop (None), by timer and member id.
    deadlines: dict[tuple[MemberTimer, str], Deadline | None] = field(default_factory=dict)
    # Topics version that the stored hash matches, None if unchanged.
    metadata_version: int | None = None
    # Of KIP-848 groups:
    must_resolve: bool = False  # the group's regular expressions must be resolved next
    must_rebalance: bool = False  # the records make the group a classic one, which must rebalance

    def start(
        self, timer: MemberTimer, member_id: str, timeout_ms: int, epoch: int | None = None
    ) -> None:
        self.deadlines[timer, member_id] = Deadline(self.now + timeout_ms / 1000, epoch)

    def stop(self, member_id: str, *timers: MemberTimer) -> None:
        for timer in timers:
            self.deadlines[timer, member_id] = None


@dataclass(eq=False)
class ModernMachine(ABC, Generic[AnyGroup, MemberT, SettingsT]):
    settings_of: Callable[[str], SettingsT]
    catalog: TopicCatalog
    clock: Callable[[], int]

    @abstractmethod
    def _assign(self, group: AnyGroup, members: Mapping[str, MemberT]) -> Mapping[str, Assignment]:
        """Return a new target of each member."""

    # -- members -------------------------------------------------------------------------------

    def check_room(self, group: AnyGroup, member_id: str) -> None:
        max_size = self.settings_of(group.group_id).max_size
        if len(group.members) >= max_size and member_id not in group.members:
            raise GroupMaxSizeReachedError(
                f"The {group.type} group has reached its maximum capacity of {max_size} members."
            )

    def known_member(self, group: AnyGroup, member_id: str) -> MemberT:
        member: MemberT | None = group.members.get(member_id)
        if member is None:
            raise UnknownMemberIdError(
                f"Member {member_id} is not a member of group {group.group_id}."
            )
        return member

    def remove(self, change: GroupChange[AnyGroup], member_ids: Sequence[str]) -> None:
        for member_id in member_ids:
            change.records += change.group.member_tombstones(member_id)
            change.stop(member_id, *MemberTimer)

    def follow_topics(
        self, change: GroupChange[AnyGroup], names: frozenset[str], *, must_bump: bool
    ) -> int:
        """Begin the group's next epoch if its topics have changed. Return the epoch."""
        group = change.group
        new_hash = self.catalog.metadata_hash(names)
        change.metadata_version = self.catalog.version
        if not must_bump and new_hash == group.metadata_hash:
            return group.epoch
        change.records.append(group.epoch_record(group.epoch + 1, new_hash))
        return group.epoch + 1

    def expire(self, change: GroupChange[AnyGroup], member_id: str, deadline: Deadline) -> None:
        member = change.group.members.get(member_id)
        if member is not None and deadline.epoch in (None, member.epoch):
            self.fence(change, [member_id])

    @abstractmethod
    def fence(self, change: GroupChange[AnyGroup], member_ids: Sequence[str]) -> None:
        """Remove members, and begin the group's next epoch."""

    def restored(self, change: GroupChange[AnyGroup]) -> None:
        """Start the sessions of the members of a group that was loaded."""
        for member_id in change.group.members:
            self.start_session(change, member_id)

    def start_session(self, change: GroupChange[AnyGroup], member_id: str) -> None:
        settings = self.settings_of(change.group.group_id)
        change.start(MemberTimer.SESSION, member_id, settings.session_timeout_ms)

    # -- the target assignment -----------------------------------------------------------------

    def compute_target(
        self, change: GroupChange[AnyGroup], epoch: int, updated: MemberT, *, without: str = ""
    ) -> tuple[int, Assignment]:
        """Return the target's epoch and the member's part. May compute a new target."""
        group = change.group
        interval_ms = self.settings_of(group.group_id).assignment_interval_ms
        now_ms = self.clock()
        # False if the clock was set back.
        is_too_early = 0 <= now_ms - group.target_timestamp_ms < interval_ms
        if group.target_epoch >= epoch or is_too_early:
            return group.target_epoch, group.target_of(updated)
        members = {**group.members, updated.member_id: updated}
        members.pop(without, None)
        assigned = self._assign(group, members)
        for member_id in members:
            if group.targets.get(member_id) != assigned[member_id]:
                change.records.append(group.target_record(member_id, assigned[member_id]))
        change.records.append(group.target_epoch_record(epoch, now_ms))
        return epoch, assigned[updated.member_id]
