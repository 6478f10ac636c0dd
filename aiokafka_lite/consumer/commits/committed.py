"""Reads a group's committed offsets: OffsetFetch, with retries until all are answered."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Final

from aiokafka_lite._compat import timeout_at
from aiokafka_lite._tasks import sleep_before
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.consumer.assignment.cursor import CommittedPosition
from aiokafka_lite.consumer.commits.requests import (
    FetchedOffset,
    TopicIds,
    fetch_error_code,
    fetch_request,
    fetch_results,
)
from aiokafka_lite.consumer.core import Core
from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.consumer.membership.protocol import Identity
from aiokafka_lite.consumer.membership.recovery import Recovery, recovery_for
from aiokafka_lite.consumer.membership.stateful import GroupMember
from aiokafka_lite.errors import (
    KafkaError,
    KafkaTimeoutError,
    TopicAuthorizationFailedError,
    for_code,
)
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.membership.coordinator import Coordinator

PASSING: Final = frozenset({Recovery.RETRY, Recovery.REDISCOVER, Recovery.NEW_EPOCH})


class CommittedReader(ABC):
    def __init__(
        self,
        core: Core,
        cluster: Cluster,
        coordinator: Coordinator,
        member: GroupMember,
    ) -> None:
        self._core = core
        self._config, self._state, self._gate = core.config, core.state, core.gate
        self._cursors = core.state.assignment
        self._cluster = cluster
        self._coordinator = coordinator
        self.member = member
        self.group: Final = (member.group_id, member.group_instance_id)
        self.request_timeout_s = core.config.request_timeout_s

    @property
    @abstractmethod
    def is_settling(self) -> bool: ...

    @abstractmethod
    def alone(self) -> AbstractAsyncContextManager[None]: ...

    def become(self, member: GroupMember) -> None:
        """Commit as another member from now on, which replaces one without an assignment."""
        before, self.member = self.member, member
        before.notify()  # its waiters wait for the new member

    async def committed(
        self,
        partitions: Iterable[TopicPartition],
        *,
        is_for_now: bool = False,
        is_at_rest: bool = False,
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets, in one round trip. See `AIOKafkaConsumer.committed`.

        Waits for transactions that are about to commit offsets (KIP-447), and unless `is_for_now`
        for commits of this consumer. `is_at_rest`: no commit or transaction is in flight, so the
        result is valid until the caller's next `await`.
        """
        found = await self._read(partitions, is_for_now=is_for_now, is_at_rest=is_at_rest)
        return {
            tp: None if answer is None else OffsetAndMetadata(answer.offset, answer.metadata)
            for tp, answer in found.items()
        }

    async def positions(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommittedPosition | KafkaError | None]:
        """As `committed`, with leader epochs, and the errors of single partitions."""
        failures: dict[TopicPartition, KafkaError] = {}
        return {**await self._read(partitions, failures=failures), **failures}

    async def _read(
        self,
        partitions: Iterable[TopicPartition],
        *,
        is_for_now: bool = False,
        is_at_rest: bool = False,
        failures: dict[TopicPartition, KafkaError] | None = None,
    ) -> dict[TopicPartition, CommittedPosition | None]:
        """Read until all partitions are answered.

        Errors of single partitions are put into `failures`, if given. At rest, each attempt asks
        for all partitions. Commits may continue between attempts, because an answer may wait for a
        transaction that waits for them.
        """
        deadline = asyncio.get_running_loop().time() + self.request_timeout_s
        asked = set(partitions)
        left = asked.copy()
        found: dict[TopicPartition, CommittedPosition | None] = {}
        backoff = self._core.new_backoff()
        last_error: KafkaError | None = None
        while left:
            reader = self.member.reads_as
            try:
                async with timeout_at(deadline):
                    while self.is_settling and not is_for_now:
                        await self.member.wait_for_change()
                        self._cluster.raise_if_closed()
                    reader = self.member.reads_as
                    async with self.alone() if is_at_rest else nullcontext():
                        left |= asked if is_at_rest else set()
                        answers = await self._fetch(left, deadline)
            except asyncio.TimeoutError:
                break
            except KafkaError as error:
                if not self._may_pass(error, reader):
                    raise
                last_error = error
            else:
                last_error = self._take_answers(answers, left, found, failures)
            if left and not await sleep_before(deadline, backoff.next_delay_s()):
                break
        if left:
            raise KafkaTimeoutError(
                f"the committed offsets of {sorted(left)} could not be read in time"
                + ("" if last_error is None else f" (latest error: {last_error})")
            ) from last_error
        return found

    def _may_pass(self, error: KafkaError, reader: Identity | None) -> bool:
        """Whether to retry. A refused member reads again with its next identity."""
        recovery = recovery_for(error)
        is_about_reader = recovery is Recovery.NEW_EPOCH or recovery.is_about_membership
        if reader is None or not is_about_reader:
            return recovery in PASSING
        self.note_refusal(reader, error)
        return recovery is not Recovery.FENCED

    def note_refusal(self, sent_as: Identity, error: KafkaError) -> None:
        if self.member.note_refusal(sent_as, error):
            self._gate.hold(Hold.LOST)  # until the group task has dropped the partitions

    async def _fetch(
        self, partitions: set[TopicPartition], deadline: float
    ) -> dict[TopicPartition, FetchedOffset]:
        ids = TopicIds.of_view(self._cluster.view, partitions)
        response = await self._coordinator.request(
            fetch_request(self.group[0], self.member.reads_as, partitions, ids),
            error_code=fetch_error_code,
            deadline=deadline,
        )
        return fetch_results(response, ids)

    def _take_answers(
        self,
        answers: Mapping[TopicPartition, FetchedOffset],
        left: set[TopicPartition],
        found: dict[TopicPartition, CommittedPosition | None],
        failures: dict[TopicPartition, KafkaError] | None,
    ) -> KafkaError | None:
        """Move answered partitions from `left` to `found`, and return the error of those left.

        A partition that is missing from the response stays left: it may have a committed offset.
        """
        why_left: KafkaError | None = None
        for tp in sorted(left):
            if (answer := answers.get(tp)) is None:
                if failures is not None:
                    failures[tp] = KafkaTimeoutError(
                        f"the coordinator's OffsetFetch response does not contain {tp}"
                    ).at(tp)
                    left.discard(tp)
                continue
            if answer.error_code:
                error_class = for_code(answer.error_code)
                is_refusal = error_class is TopicAuthorizationFailedError
                error = error_class({tp.topic} if is_refusal else f"committed offset of {tp}")
                if error.invalid_metadata:
                    self._cluster.invalidate()
                if failures is not None:
                    failures[tp] = error.at(tp)
                    left.discard(tp)
                elif not error.retriable:
                    raise error.at(tp)
                why_left = error
                continue
            left.discard(tp)
            is_committed = answer.offset >= 0
            position = CommittedPosition(answer.offset, answer.leader_epoch, answer.metadata)
            found[tp] = position if is_committed else None
            if (partition := self._cursors.get(tp)) is not None:
                offset = OffsetAndMetadata(answer.offset, answer.metadata)
                partition.note_committed(
                    offset if is_committed else None, answer.leader_epoch, answer.topic_id
                )
        return why_left
