"""Committing a group's offsets within a producer's transaction (KIP-98, KIP-447)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from aiokafka_lite.broker.groups.coordinator_log import CoordinatorLog, CoordinatorRecord
from aiokafka_lite.broker.groups.kip848.driver import Group
from aiokafka_lite.broker.groups.kip848.group import ConsumerGroup
from aiokafka_lite.broker.groups.kip848.topic_hash import Topics
from aiokafka_lite.broker.groups.offsets.cache import (
    OffsetCommitEntry,
    OffsetManager,
    OpenTransaction,
)
from aiokafka_lite.broker.groups.values import ErrorType
from aiokafka_lite.broker.log.producers import NO_PRODUCER, ProducerIdentity
from aiokafka_lite.errors import IllegalGenerationError, NoError, StaleMemberEpochError
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.structs import TopicPartition


class Committer(NamedTuple):
    """Which member commits; old clients do not say.

    Attributes:
        generation: The generation or epoch it believes in, negative for no member.
    """

    member_id: str = ""
    instance_id: str | None = None
    generation: int = -1

    @property
    def is_unknown(self) -> bool:
        return self.generation < 0 and not self.member_id and self.instance_id is None


class TransactionalOffsets:
    """The part of the group coordinator that transactions see.

    Args:
        groups: Those that are coordinated here.
        offsets: What they have committed.
        log: Where that is stored.
        topics: What exists: the requests name topics, members of KIP-848 have them by id.
        check: Says whether a group can be answered for.
        append: Appends records of a group to the log, and replays them.
    """

    def __init__(
        self,
        groups: Mapping[str, Group],
        offsets: OffsetManager,
        log: CoordinatorLog,
        topics: Topics,
        *,
        check: Callable[[str], ErrorType],
        append: Callable[[str, Sequence[CoordinatorRecord]], ErrorType],
    ) -> None:
        self._groups = groups
        self._offsets = offsets
        self._log = log
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
        """Commit offsets that count once the transaction does; return one error type for each.

        That the group's partition is part of the producer's transaction has been checked.
        """
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
        return group.check_transactional_commit(member_id, instance_id, generation)

    def opened(self, group_id: str, producer: ProducerIdentity) -> OpenTransaction | None:
        """Return the transaction in which a producer commits for a group, None for no producer."""
        if producer == NO_PRODUCER:
            return None
        return OpenTransaction(self._log.partition_for(group_id), producer.producer_id)

    def end(self, partition: int, producer_id: int, is_commit: bool) -> None:
        """Do what a marker says that is in a partition of the offsets topic."""
        self._offsets.end_transaction(partition, producer_id, is_commit=is_commit)
