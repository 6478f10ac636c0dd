"""How committed offsets go: on request, with their topic, or when they have lapsed (KIP-211)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from aiokafka_lite.broker.groups.classic.machine import ClassicGroup
from aiokafka_lite.broker.groups.coordinator_log import CoordinatorRecord
from aiokafka_lite.broker.groups.kip848.driver import Group
from aiokafka_lite.broker.groups.offsets.cache import OffsetManager
from aiokafka_lite.broker.groups.offsets.expiry import end_of, expired
from aiokafka_lite.broker.groups.offsets.subscription import consumed_of
from aiokafka_lite.broker.groups.values import ErrorType
from aiokafka_lite.errors import (
    GroupIdNotFound,
    GroupSubscribedToTopicError,
    NoError,
    NonEmptyGroup,
)
from aiokafka_lite.protocol.source import Steps
from aiokafka_lite.structs import TopicPartition


class OffsetRemoval:
    """The part of `GroupCoordinator` that forgets offsets.

    Args:
        groups: All that are loaded, by id.
        offsets: What they have committed.
        clock: Returns the wall-clock time in milliseconds.
        check: Says whether requests about a group can be answered.
        availability: Likewise, for any id.
        append: Appends records of a group, and replays them.
    """

    def __init__(
        self,
        groups: Mapping[str, Group],
        offsets: OffsetManager,
        *,
        clock: Callable[[], int],
        check: Callable[[str], ErrorType],
        availability: Callable[[str], ErrorType],
        append: Callable[[str, Sequence[CoordinatorRecord]], ErrorType],
    ) -> None:
        self._groups = groups
        self._offsets = offsets
        self._clock = clock
        self._check = check
        self._availability = availability
        self._append = append

    def delete(
        self, group_id: str, tps: Sequence[TopicPartition]
    ) -> tuple[ErrorType, Sequence[ErrorType]]:
        """Forget offsets of topics that the group does not consume now."""
        error = self._check(group_id)
        if error is not NoError:
            return error, ()
        group = self._groups.get(group_id)
        if group is None:
            return GroupIdNotFound, ()
        if isinstance(group, ClassicGroup) and not (group.is_empty or group.is_consumer_group):
            return NonEmptyGroup, ()
        consumed = consumed_of(group, (tp.topic for tp in tps))
        records = self._offsets.delete(group_id, [tp for tp in tps if tp.topic not in consumed])
        error = self._append(group_id, records)
        if error is not NoError:
            return error, ()
        return NoError, [
            GroupSubscribedToTopicError if tp.topic in consumed else NoError for tp in tps
        ]

    def topic_deleted(self, topic: str, topic_id: bytes) -> None:
        """Forget what was committed for a topic that exists no more."""
        for group_id, records in self._offsets.delete_topic(topic, topic_id).items():
            self._append(group_id, records)

    def expire(self, retention_ms: int) -> Steps[None]:
        """Forget offsets that have lapsed, and empty groups without any; a group a step."""
        now_ms = self._clock()
        for group_id, group in tuple(self._groups.items()):
            if self._availability(group_id) is NoError and self._groups.get(group_id) is group:
                lapsed = list(expired(group, group_id, self._offsets, now_ms, retention_ms))
                self._append(group_id, self._offsets.delete(group_id, lapsed))
                is_needed = self._offsets.has_offsets(group_id) or self._offsets.has_pending(
                    group_id
                )
                if group.is_empty and not is_needed:
                    self._append(group_id, end_of(group))
            yield
