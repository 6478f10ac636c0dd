"""The requests of share groups, and their driver. See `ModernMachine` for the steps of a heartbeat.

Only partitions with a start offset in the group are assigned. The others start after the response
to a heartbeat, and are assigned by a later one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from aiokafka_lite.broker.configs import ShareGroupSettings
from aiokafka_lite.broker.groups.classic.members import GroupClient
from aiokafka_lite.broker.groups.modern.driver import ModernDriver, new_change
from aiokafka_lite.broker.groups.modern.group import JOINING, LEAVING, assignment_of, fenced
from aiokafka_lite.broker.groups.modern.group import Assignment as Partitions
from aiokafka_lite.broker.groups.modern.machine import GroupChange, ModernMachine
from aiokafka_lite.broker.groups.share.assignor import ShareMemberSpec, assign
from aiokafka_lite.broker.groups.share.group import ShareGroup, ShareGroupMember
from aiokafka_lite.errors import NonEmptyGroup
from aiokafka_lite.protocol.messages.share import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

ShareGroupChange: TypeAlias = GroupChange[ShareGroup]


class StartedPartitions(Protocol):
    """The partitions that groups may fetch."""

    def start(self, group_id: str, topic_id: bytes, partition: int) -> None: ...
    def is_started(self, group_id: str, topic_id: bytes, partition: int) -> bool: ...
    def forget(self, *, group_id: str) -> None: ...


@dataclass(eq=False)
class ShareMachine(ModernMachine[ShareGroup, ShareGroupMember, ShareGroupSettings]):
    partitions: StartedPartitions

    # -- requests ------------------------------------------------------------------------------

    def heartbeat(
        self, change: ShareGroupChange, beat: ShareGroupHeartbeatRequest, client: GroupClient
    ) -> ShareGroupHeartbeatResponse:
        """Answer a member that joins (epoch 0) or stays. Raises the error of its response."""
        group, member_id = change.group, beat.member_id
        self.check_room(group, member_id)
        if beat.member_epoch == JOINING:
            member = group.member(member_id)
        else:
            member = self.known_member(group, member_id)
            _check_epoch(member, beat.member_epoch)
        given: dict[str, object] = {"client_id": client.client_id, "client_host": client.host}
        if beat.rack_id is not None:
            given["rack_id"] = beat.rack_id
        if beat.subscribed_topic_names is not None:
            given["topic_names"] = frozenset(beat.subscribed_topic_names)
        updated = self._advance(change, member, member.changed_to(**given))
        self.start_session(change, member_id)
        is_new = beat.member_epoch == JOINING or member.assigned != updated.assigned
        return ShareGroupHeartbeatResponse(
            member_id=member_id,
            member_epoch=updated.epoch,
            heartbeat_interval_ms=self.settings_of(group.group_id).heartbeat_interval_ms,
            assignment=assignment_of(updated.assigned) if is_new else None,
        )

    def leave(
        self, change: ShareGroupChange, beat: ShareGroupHeartbeatRequest
    ) -> ShareGroupHeartbeatResponse:
        self.fence(change, [self.known_member(change.group, beat.member_id).member_id])
        return ShareGroupHeartbeatResponse(member_id=beat.member_id, member_epoch=LEAVING)

    def create(self, change: ShareGroupChange) -> None:
        """Begin a group that has offsets before it has members."""
        group = change.group
        epoch = group.epoch + 1
        change.records += [
            group.epoch_record(epoch, group.metadata_hash),
            group.target_epoch_record(epoch, self.clock()),
        ]

    def fence(self, change: ShareGroupChange, member_ids: Sequence[str]) -> None:
        self.remove(change, member_ids)
        names = change.group.topics_of_all(without=member_ids)
        self.follow_topics(change, names, must_bump=True)

    def start_partitions(self, group: ShareGroup) -> None:
        """Start the partitions of the group's topics. Members get them by their next heartbeats."""
        topic_ids = self.catalog.topic_ids(group.topics_of_all())
        for topic_id in sorted(topic_ids):
            for partition in self._partitions_of(group, topic_id, are_started=False):
                self.partitions.start(group.group_id, topic_id, partition)
                group.metadata_version = None

    # -- the steps of a heartbeat --------------------------------------------------------------

    def _advance(
        self, change: ShareGroupChange, member: ShareGroupMember, updated: ShareGroupMember
    ) -> ShareGroupMember:
        group, epoch = change.group, change.group.epoch
        if updated != member or member.member_id not in group.members:
            change.records.append(group.member_record(updated))
        has_new_names = updated.topic_names != member.topic_names
        if has_new_names or group.metadata_version != self.catalog.version:
            names = group.topics_of_all(changed=updated)
            must_bump = has_new_names or self._has_unassigned(group)
            epoch = self.follow_topics(change, names, must_bump=must_bump)
        target_epoch, target = self.compute_target(change, epoch, updated)
        reconciled = updated.reconciled(
            target_epoch,
            target,
            self.catalog.topic_ids(updated.topic_names),
            has_new_subscription=has_new_names,
        )
        if reconciled != updated:
            change.records.append(group.assignment_record(reconciled))
        return reconciled

    def _has_unassigned(self, group: ShareGroup) -> bool:
        """Return whether partitions have started since the target was computed."""
        assigned = {
            (topic_id, partition)
            for target in group.targets.values()
            for topic_id, partitions in target.items()
            for partition in partitions
        }
        return any(
            (topic_id, partition) not in assigned
            for topic_id in self.catalog.topic_ids(group.topics_of_all())
            for partition in self._partitions_of(group, topic_id, are_started=True)
        )

    def _assign(
        self, group: ShareGroup, members: Mapping[str, ShareGroupMember]
    ) -> Mapping[str, Partitions]:
        specs = {
            member_id: ShareMemberSpec(
                self.catalog.topic_ids(member.topic_names), group.target_of(member)
            )
            for member_id, member in members.items()
        }
        topic_ids = frozenset[bytes]().union(*(spec.topic_ids for spec in specs.values()))
        started = {
            topic_id: self._partitions_of(group, topic_id, are_started=True)
            for topic_id in topic_ids
        }
        return assign(specs, started)

    def _partitions_of(self, group: ShareGroup, topic_id: bytes, *, are_started: bool) -> list[int]:
        topic = self.catalog.by_id(topic_id)
        count = 0 if topic is None else topic.partition_count
        is_started, group_id = self.partitions.is_started, group.group_id
        return [
            partition
            for partition in range(count)
            if is_started(group_id, topic_id, partition) == are_started
        ]


def _check_epoch(member: ShareGroupMember, epoch: int) -> None:
    """Accept the member's epoch, and the previous one if the last response may have been lost."""
    previous = member.previous_epoch
    if epoch not in (member.epoch, previous):
        other = f", and it does not match the previous member epoch ({previous})"
        raise fenced("share", member, epoch, "" if epoch > member.epoch else other)


@dataclass(eq=False)
class ShareDriver(ModernDriver[ShareGroup, ShareMachine]):
    def heartbeat(
        self, beat: ShareGroupHeartbeatRequest, client: GroupClient
    ) -> ShareGroupHeartbeatResponse:
        group_id = beat.group_id
        if beat.member_epoch == LEAVING:
            change = new_change(self._stored(group_id))
            reply = self.machine.leave(change, beat)
        else:
            is_new = beat.member_epoch == JOINING and group_id not in self.groups
            group = ShareGroup(group_id) if is_new else self._stored(group_id, "Share group")
            change = new_change(group)
            reply = self.machine.heartbeat(change, beat, client)
        self._store_or_raise(change)
        # After the response, as in Kafka, where another coordinator starts them.
        asyncio.get_running_loop().call_soon(self._start_partitions, group_id)
        return reply

    def check_empty(self, group_id: str, *, must_exist: bool) -> None:
        if (must_exist or group_id in self.groups) and not self._stored(group_id).is_empty:
            raise NonEmptyGroup(NonEmptyGroup.description)

    def create(self, group_id: str) -> None:
        if group_id not in self.groups:
            change = new_change(ShareGroup(group_id))
            self.machine.create(change)
            self._store_or_raise(change)

    def _start_partitions(self, group_id: str) -> None:
        group = self.groups.get(group_id)
        if isinstance(group, ShareGroup):
            self.machine.start_partitions(group)
