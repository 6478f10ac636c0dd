"""The stored state of a share group and its members, which changes only in `replay`.

A group is Empty or Stable. Members have no states, because no partition is revoked before others
get it: each member takes its target as soon as it sends a heartbeat (Kafka: ShareGroup.java)."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Final

from aiokafka_lite.broker.groups.coordinator_log import CoordinatorRecord
from aiokafka_lite.broker.groups.modern.group import (
    Assignment,
    ModernGroup,
    ModernMember,
    RecordKinds,
    assignment_of,
    in_java_order,
)
from aiokafka_lite.protocol.messages import coordinator_records as stored

STABLE: Final = 0  # the only state of a member that Kafka stores


class ShareGroupState(enum.Enum):
    EMPTY = "Empty"
    STABLE = "Stable"


@dataclass(frozen=True)
class ShareGroupMember(ModernMember):
    assigned: Assignment = field(default_factory=dict)

    def reconciled(
        self, epoch: int, target: Assignment, topic_ids: Set[bytes], *, has_new_subscription: bool
    ) -> ShareGroupMember:
        """Return the member in the target's epoch, without topics that it does not subscribe to."""
        if epoch == self.epoch and not has_new_subscription:
            return self
        if epoch == self.epoch:
            target = self.assigned
        assigned = {topic_id: held for topic_id, held in target.items() if topic_id in topic_ids}
        previous = self.previous_epoch if epoch == self.epoch else self.epoch
        return dataclasses.replace(self, epoch=epoch, previous_epoch=previous, assigned=assigned)


class ShareGroup(ModernGroup[ShareGroupMember]):
    type = "share"
    member_type = ShareGroupMember
    kinds = RecordKinds(
        stored.ShareGroupMetadataKey,
        stored.ShareGroupMetadataValue,
        stored.ShareGroupMemberMetadataKey,
        stored.ShareGroupTargetAssignmentMetadataKey,
        stored.ShareGroupTargetAssignmentMemberKey,
        stored.ShareGroupCurrentMemberAssignmentKey,
    )

    @property
    def state(self) -> ShareGroupState:
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    def replay(self, key: stored.ModernGroupKey, value: stored.ModernGroupValue | None) -> None:
        match key, value:
            case stored.ShareGroupMemberMetadataKey(), stored.ShareGroupMemberMetadataValue():
                self._change(
                    key.member_id,
                    rack_id=value.rack_id,
                    client_id=value.client_id,
                    client_host=value.client_host,
                    topic_names=frozenset(value.subscribed_topic_names),
                )
            case (
                stored.ShareGroupCurrentMemberAssignmentKey(),
                stored.ShareGroupCurrentMemberAssignmentValue(),
            ):
                self._change(
                    key.member_id,
                    epoch=value.member_epoch,
                    previous_epoch=value.previous_member_epoch,
                    assigned={
                        topic.topic_id: frozenset(topic.partitions)
                        for topic in value.assigned_partitions
                    },
                )
            case _:
                super().replay(key, value)

    def member_record(self, member: ShareGroupMember) -> CoordinatorRecord:
        value = stored.ShareGroupMemberMetadataValue(
            rack_id=member.rack_id,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=in_java_order(member.topic_names),
        )
        return self._record(self.kinds.member, value, member_id=member.member_id)

    def assignment_record(self, member: ShareGroupMember) -> CoordinatorRecord:
        value = stored.ShareGroupCurrentMemberAssignmentValue(
            member_epoch=member.epoch,
            previous_member_epoch=member.previous_epoch,
            state=STABLE,
            assigned_partitions=assignment_of(member.assigned).topic_partitions,
        )
        return self._record(self.kinds.current, value, member_id=member.member_id)
