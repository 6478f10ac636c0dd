"""Commits of a group's offsets in a producer's transaction (KIP-98, KIP-447)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from aiokafka_lite.broker.groups.coordinator_log import CoordinatorRecord
from aiokafka_lite.broker.groups.kip848.driver import Group
from aiokafka_lite.broker.groups.kip848.group import ConsumerGroup
from aiokafka_lite.broker.groups.kip848.topic_hash import Topics
from aiokafka_lite.broker.groups.offsets.cache import (
    OffsetCommitEntry,
    OffsetManager,
)
from aiokafka_lite.broker.groups.values import ErrorType
from aiokafka_lite.broker.log.producers import ProducerIdentity
from aiokafka_lite.errors import IllegalGenerationError, NoError, StaleMemberEpochError
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.structs import TopicPartition


class Committer(NamedTuple):
    """The committing member. Old clients send no member.

    Attributes:
        generation: The member's generation or epoch, negative for no member.
    """

    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1

    @property
    def is_unknown(self) -> bool:
        return self.generation < 0 and not self.member_id and self.instance_id is None


class TransactionalOffsets:
    """The part of the group coordinator that handles transactions.

    Requests name topics, which `topics` maps to the topic ids of KIP-848 members.
    """

    def __init__(
        self,
        groups: Mapping[str, Group],
        offsets: OffsetManager,
        topics: Topics,
        *,
        check: Callable[[str], ErrorType],
        append: Callable[[str, Sequence[CoordinatorRecord]], ErrorType],
    ) -> None:
        self._groups = groups
        self._offsets = offsets
        self._topics = topics
        self._check = check
        self._append = append

    def commit(
        self,
        group_id: str,
        offsets: Sequence[OffsetCommitEntry],
        producer: ProducerIdentity,
        committer: Committer,
    ) -> list[ErrorType]:
        """Append offsets of an open transaction. Return one error type per offset."""
        error = self._check(group_id)
        if error is NoError:
            error = self._check_committer(
                self._groups.get(group_id), committer, [item.tp for item in offsets]
            )
        if error is not NoError:
            return [error] * len(offsets)
        errors, records = self._offsets.commit(group_id, offsets)
        error = self._append(group_id, [record._replace(producer=producer) for record in records])
        return errors if error is NoError else [error] * len(offsets)

    def _check_committer(
        self, group: Group | None, committer: Committer, tps: Sequence[TopicPartition]
    ) -> ErrorType:
        member_id, instance_id, generation = committer
        if group is None:
            return NoError if generation < 0 else IllegalGenerationError
        if committer.is_unknown or (generation < 0 and group.is_empty):
            return NoError
        if isinstance(group, ConsumerGroup):
            topics = ((self._topics.by_name(tp.topic), tp.partition) for tp in tps)
            partitions = [
                (ZERO_UUID if topic is None else topic.topic_id, partition)
                for topic, partition in topics
            ]
            error = group.check_commit(member_id, generation, partitions)
            return IllegalGenerationError if error is StaleMemberEpochError else error
        return group.check_member(member_id, instance_id, generation)
