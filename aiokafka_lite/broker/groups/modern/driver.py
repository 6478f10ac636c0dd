"""Drives the machine of groups whose members have epochs: stores its results, sets timers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from aiokafka_lite.broker.groups.coordinator_log import CoordinatorRecord, ErrorType
from aiokafka_lite.broker.groups.modern.machine import AnyGroup, GroupChange, ModernMachine
from aiokafka_lite.errors import GroupIdNotFound, NoError

MachineT = TypeVar("MachineT", bound="ModernMachine[Any, Any, Any]")

# Delay after a timer whose effect could not be stored.
RETRY_S = 0.5


@dataclass(eq=False)
class ModernDriver(Generic[AnyGroup, MachineT]):
    """Only the coordinator writes `groups`, of all types, when `append` replays records."""

    group_type: type[AnyGroup]
    machine: MachineT
    groups: Mapping[str, object]
    append: Callable[[str, Sequence[CoordinatorRecord]], ErrorType]
    arm: Callable[[AnyGroup], None]

    # -- events of a group -----------------------------------------------------------------------

    def expire(self, group: AnyGroup, now: float) -> None:
        timer = min(group.deadlines, key=lambda timer: group.deadlines[timer].at)
        deadline = group.deadlines.pop(timer)
        change = new_change(group)
        self.machine.expire(change, timer[1], deadline)
        if self._store(change) is not NoError:
            group.deadlines[timer] = deadline._replace(at=now + RETRY_S)
            self.arm(group)

    def expire_session(self, group: AnyGroup, member_id: str) -> None:
        change = new_change(group)
        self.machine.fence(change, [member_id])
        self._store_or_raise(change)

    def restored(self, group: AnyGroup) -> None:
        change = new_change(group)
        self.machine.restored(change)
        self._store(change)

    def _stored(self, group_id: str, what: str = "Group") -> AnyGroup:
        group = self.groups.get(group_id)
        if group is None:
            raise GroupIdNotFound(f"{what} {group_id} not found.")
        if not isinstance(group, self.group_type):
            raise GroupIdNotFound(f"Group {group_id} is not a {self.group_type.type} group.")
        return group

    # -- changes -------------------------------------------------------------------------------

    def _store_or_raise(self, change: GroupChange[AnyGroup]) -> None:
        error = self._store(change)
        if error is not NoError:
            group_id = change.group.group_id
            raise error(f"the broker could not store the new state of group {group_id!r}")

    def _store(self, change: GroupChange[AnyGroup]) -> ErrorType:
        """Store a change's records. Its timers are set only if that succeeds."""
        group_id = change.group.group_id
        error = self.append(group_id, change.records)
        group = self.groups.get(group_id)
        if error is not NoError or not isinstance(group, self.group_type):
            return error
        for timer, deadline in change.deadlines.items():
            if deadline is None:
                group.deadlines.pop(timer, None)
            else:
                group.deadlines[timer] = deadline
        if change.metadata_version is not None:
            group.metadata_version = change.metadata_version
        self.arm(group)
        return error


def new_change(group: AnyGroup) -> GroupChange[AnyGroup]:
    return GroupChange(group, asyncio.get_running_loop().time())
