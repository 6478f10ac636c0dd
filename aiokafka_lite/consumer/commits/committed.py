"""Reads what a group has committed: OffsetFetch, tried until all of it is answered."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final

from aiokafka_lite._compat import timeout_at
from aiokafka_lite.client import Cluster
from aiokafka_lite.client.backoff import LONGEST_BACKOFF_S, Backoff
from aiokafka_lite.consumer.assignment.cursor import CommittedPosition
from aiokafka_lite.consumer.assignment.subscription import SubscriptionState
from aiokafka_lite.consumer.commits.requests import (
    LAST_FETCH_BY_NAME,
    FetchedOffset,
    TopicIds,
    fetch_error_code,
    fetch_request,
    fetch_results,
)
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.gate import Gate, Hold
from aiokafka_lite.consumer.membership.coordinator import Coordinator
from aiokafka_lite.consumer.membership.protocol import GroupMember, Identity
from aiokafka_lite.consumer.membership.recovery import Recovery, recovery_for
from aiokafka_lite.errors import (
    KafkaError,
    KafkaTimeoutError,
    TopicAuthorizationFailedError,
    for_code,
)
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

# After these the same question may well be answered.
PASSING: Final = frozenset({Recovery.RETRY, Recovery.REDISCOVER, Recovery.NEW_EPOCH})


class CommittedReader(ABC):
    """The reading half of `Commits`."""

    def __init__(
        self,
        config: ConsumerConfig,
        state: SubscriptionState,
        gate: Gate,
        cluster: Cluster,
        coordinator: Coordinator,
        member: GroupMember,
        rng: random.Random,
    ) -> None:
        self._config = config
        self._state = state
        self._gate = gate
        self._cluster = cluster
        self._coordinator = coordinator
        self._member = member
        self._rng = rng

    @property
    @abstractmethod
    def is_settling(self) -> bool:
        """Commits are still to be made: what is committed is about to change."""

    @abstractmethod
    def alone(self) -> AbstractAsyncContextManager[None]:
        """Return a block within which no commit is sent, whatever the group does meanwhile."""

    def _deadline(self, timeout_s: float | None) -> float:
        if timeout_s is None:
            timeout_s = self._config.request_timeout_s
        return asyncio.get_running_loop().time() + timeout_s

    def _backoff(self) -> Backoff:
        return Backoff(self._config.retry_backoff_s, LONGEST_BACKOFF_S, self._rng)

    async def committed(
        self, partitions: Iterable[TopicPartition], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return what is committed for partitions, in one round trip; None where nothing is.

        Waits for transactions that are about to commit offsets (KIP-447). Cancelling it leaves
        nothing behind.

        Args:
            partitions: They need not be assigned to this consumer.
            timeout_s: How long to try; request_timeout_ms by default.

        Raises:
            KafkaTimeoutError: No complete answer came in time.
            KafkaError: The coordinator refuses.
        """
        return _as_committed(await self._read(partitions, timeout_s))

    async def committed_now(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return what is committed, whatever commits are still to be made; see `committed`."""
        return _as_committed(await self._read(partitions, None, is_for_now=True))

    async def committed_at_rest(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return what is committed, as it still is until the caller awaits anything else.

        No commit and no transaction of this consumer is under way then; see `committed`.
        """
        return _as_committed(await self._read(partitions, None, is_at_rest=True))

    async def positions(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommittedPosition | KafkaError | None]:
        """Return where to go on in partitions, or why that is not known of one; see `committed`."""
        failures: dict[TopicPartition, KafkaError] = {}
        found = await self._read(partitions, None, failures=failures)
        positions = {
            tp: None
            if answer is None
            else CommittedPosition(answer.offset, answer.leader_epoch, answer.metadata)
            for tp, answer in found.items()
        }
        return {**positions, **failures}

    async def _read(
        self,
        partitions: Iterable[TopicPartition],
        timeout_s: float | None,
        *,
        is_for_now: bool = False,
        is_at_rest: bool = False,
        failures: dict[TopicPartition, KafkaError] | None = None,
    ) -> dict[TopicPartition, FetchedOffset | None]:
        """Read until all is answered; errors of partitions are put into `failures`, if given.

        At rest all is answered at once, and between two attempts commits may go on: the answer may
        wait for the end of a transaction, which waits for them.
        """
        deadline = self._deadline(timeout_s)
        asked = set(partitions)
        left = asked.copy()
        found: dict[TopicPartition, FetchedOffset | None] = {}
        backoff = self._backoff()
        last_error: KafkaError | None = None
        while left:
            reader = self._member.reads_as
            try:
                async with timeout_at(deadline):
                    while self.is_settling and not is_for_now:
                        await self._member.wait_for_change()
                        self._cluster.raise_if_closed()
                    reader = self._member.reads_as
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
            if left and not await pause(backoff, deadline):
                break
        if left:
            raise KafkaTimeoutError(
                f"the committed offsets of {sorted(left)} could not be read in time"
                + ("" if last_error is None else f" (latest error: {last_error})")
            ) from last_error
        return found

    def _may_pass(self, error: KafkaError, reader: Identity | None) -> bool:
        """Whether to ask again; what the group says of the reader is the membership's to know.

        A refusal must not be taken for "nothing committed": the member reads again under its next
        epoch, or as whoever it is then.
        """
        recovery = recovery_for(error)
        is_about_reader = recovery is Recovery.NEW_EPOCH or recovery.is_about_membership
        if reader is None or not is_about_reader:
            return recovery in PASSING
        self.note_refusal(reader, error)
        return recovery is not Recovery.FENCED

    def note_refusal(self, sent_as: Identity, error: KafkaError) -> None:
        """Note what the refusal of a request says of the membership; a transaction's, too."""
        if self._member.note_refusal(sent_as, error):
            self._gate.hold(Hold.LOST)  # until the group task has dropped what is lost

    async def _fetch(
        self, partitions: set[TopicPartition], deadline: float
    ) -> dict[TopicPartition, FetchedOffset]:
        ids = TopicIds.of_view(self._cluster.view, partitions)
        response = await self._coordinator.request(
            fetch_request(self._member, partitions, ids),
            error_code=fetch_error_code,
            deadline=deadline,
            max_version=None if ids.are_known else LAST_FETCH_BY_NAME,
        )
        return fetch_results(response, ids)

    def _take_answers(
        self,
        answers: Mapping[TopicPartition, FetchedOffset],
        left: set[TopicPartition],
        found: dict[TopicPartition, FetchedOffset | None],
        failures: dict[TopicPartition, KafkaError] | None,
    ) -> KafkaError | None:
        """Move what was answered from `left` to `found`; return why something is left.

        What the answer leaves out stays left: it must not be taken for "nothing committed".
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
            found[tp] = answer if is_committed else None
            if (partition := self._state.assignment.get(tp)) is not None:
                offset = OffsetAndMetadata(answer.offset, answer.metadata)
                partition.note_committed(
                    offset if is_committed else None, answer.leader_epoch, answer.topic_id
                )
        return why_left


def _as_committed(
    found: Mapping[TopicPartition, FetchedOffset | None],
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    return {
        tp: None if answer is None else OffsetAndMetadata(answer.offset, answer.metadata)
        for tp, answer in found.items()
    }


async def pause(backoff: Backoff, deadline: float) -> bool:
    """Pause before another attempt; False, at the deadline, when there is no time for one."""
    loop = asyncio.get_running_loop()
    delay_s = backoff.next_delay_s()
    remaining_s = deadline - loop.time()
    await asyncio.sleep(max(0.0, min(delay_s, remaining_s)))
    return delay_s < remaining_s
