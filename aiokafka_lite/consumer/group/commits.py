"""Committed offsets of the group: the only sender of OffsetCommit and OffsetFetch.

What makes commits hard is that they overlap with each other and with rebalances.

- Overlap with each other: one is sent at a time, and a commit that is tried again leaves out
  what a later one has committed meanwhile. So a committed offset goes back only when the
  application says so by a later call.
- Overlap with a topic's end: what no broker knows any more drops out of the commits that the
  consumer makes of its positions, lest they wait for it until their deadline.
- Overlap with a rebalance: while the coordinator waits for the new assignment it takes no
  commits (REBALANCE_IN_PROGRESS). Such a commit waits, and is sent once for the generation right
  after, if the partitions came back: then nobody else has had them in between. Whatever else
  outlives its generation ends with CommitFailedError.
- `committed` waits for commits that wait: the positions of a new assignment must not start
  behind them.

Nothing here waits beyond a deadline.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Final

from aiokafka_lite._compat import timeout_at
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.client import Cluster
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.group.auto_commit import AutoCommit
from aiokafka_lite.consumer.group.committed import CommittedReader, pause
from aiokafka_lite.consumer.group.coordinator import Coordinator
from aiokafka_lite.consumer.group.member import (
    INTERRUPTION_BY_RECOVERY,
    LOSSES,
    REBALANCING,
    Identity,
    Interruption,
    Member,
    MemberState,
    Recovery,
    recovery_for,
)
from aiokafka_lite.consumer.group.offset_requests import (
    LAST_COMMIT_BY_NAME,
    OffsetToCommit,
    TopicIds,
    checked_offsets,
    commit_error_code,
    commit_request,
    commit_results,
)
from aiokafka_lite.consumer.group.pending_commit import PendingCommit
from aiokafka_lite.consumer.monitoring.events import CommitFailed
from aiokafka_lite.consumer.reentry import is_in_callback
from aiokafka_lite.consumer.state import (
    NO_EPOCH,
    PartitionState,
    SubscriptionMode,
    SubscriptionState,
)
from aiokafka_lite.consumer.topic_lives import is_gone
from aiokafka_lite.errors import (
    CommitFailedError,
    KafkaError,
    KafkaTimeoutError,
    MaxPollIntervalError,
    TopicAuthorizationFailedError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]

# What the coordinator says of a topic that was deleted, or that it has not heard of yet.
GONE: Final = (UnknownTopicOrPartitionError, UnknownTopicIdError)


class Commits(CommittedReader):
    """Commits and reads offsets for one consumer.

    Owns `PartitionState.committed`.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        state: SubscriptionState,
        cluster: Cluster,
        coordinator: Coordinator,
        member: Member,
        *,
        rng: random.Random,
        on_error: Callable[[KafkaError], None],
    ) -> None:
        super().__init__(config, state, cluster, coordinator, member, rng)
        self._on_error = on_error
        self._sending = asyncio.Lock()
        self._sequence = 0
        # Commits that came through, and whether the latest one did not.
        self.commit_count = 0
        self.failed_at: float | None = None
        # The latest commit that succeeded, by partition.
        self._latest: dict[TopicPartition, int] = {}
        self._auto_commit = AutoCommit(config, state, member, self)
        # Where an answer was lost the broker has what it says: nothing may go back behind it.
        self._pending: set[PendingCommit] = set()
        # Commits that waited for the end of a rebalance, until they are done.
        self._waiting: set[PendingCommit] = set()

    # --- Committing -----------------------------------------------------------------------
    async def commit(self, offsets: object = None, *, timeout_s: float | None = None) -> None:
        """Commit offsets, or the positions of all assigned partitions.

        When it is cancelled the offsets may or may not have been committed.

        Args:
            offsets: ``{TopicPartition: offset | (offset, metadata) | OffsetAndMetadata}``; None
                for the positions: everything handed out so far.
            timeout_s: How long to try, with all that is tried again meanwhile, as Java's
                default.api.timeout.ms does; request_timeout_ms by default.

        Raises:
            ValueError: The argument has the wrong shape.
            TypeError: A key is no TopicPartition, or metadata is no string.
            IllegalStateError: A partition is not assigned to this consumer.
            CommitFailedError: The group rebalanced: the partitions may have another owner.
            FencedInstanceIdError: Another consumer has taken this one's group_instance_id.
            KafkaTimeoutError: It could not be done in time.
            UnknownTopicOrPartitionError: A topic is gone, and what was of it was not committed.
            KafkaError: The coordinator refuses.
        """
        wanted = self._state.handed_out_offsets() if offsets is None else checked_offsets(offsets)
        if not self.is_between_assignments:
            for tp in wanted:
                self._state.partition(tp)
        elif wanted and not self._member.is_member:
            raise self._lost()
        if wanted:
            await self._commit(
                wanted,
                deadline=self._deadline(timeout_s),
                is_asked_for=True,
                names_partitions=offsets is not None,
            )

    async def commit_last(
        self, offsets: Offsets, *, deadline: float
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commit before partitions are given up, as far as that can be done; raises nothing.

        Returns:
            What could not be committed.
        """
        left = self.left_to_commit(offsets)
        if left:
            try:
                await self._commit(left, deadline=deadline, is_asked_for=False)
            except KafkaError as error:
                log.warning("group %s: %s not committed: %s", self._member.group_id, left, error)
                return self.not_committed_yet(left)
        return {}

    def left_to_commit(self, offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what is to be committed at last and is not yet: of `offsets`, and of what went."""
        return self.not_committed_yet({**self._auto_commit.departed, **offsets})

    def start_auto_commit(self, scope: TaskScope) -> None:
        """Start to commit what was handed out before the latest get, time and again."""
        if self._config.enable_auto_commit:
            self._auto_commit.start(scope)

    async def stop_auto_commit(self) -> None:
        """Stop that, so that what is committed last stays; idempotent."""
        await self._auto_commit.stop()

    async def commit_by_itself(self, offsets: Offsets) -> None:
        """Commit what nobody asked to commit; the next get raises what would fail again.

        Raises:
            asyncio.CancelledError: It may or may not have been committed.
        """
        try:
            await self._commit(offsets, deadline=self._deadline(None), is_asked_for=False)
        except (CommitFailedError, KafkaTimeoutError) as error:
            log.warning("group %s: auto-commit failed: %s", self._member.group_id, error)
        except KafkaError as error:
            self._on_error(error)

    @property
    def is_between_assignments(self) -> bool:
        """Whether the group is in the middle of a rebalance."""
        return self._member.state in REBALANCING

    def not_committed_yet(self, offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return those that there is something to be gained by committing."""
        return {
            tp: offset
            for tp, offset in offsets.items()
            if not self._is_covered(self._state.assignment.get(tp), offset.offset)
            and not any(
                asked.is_asked_for and tp in asked.left and asked.left[tp].offset > offset.offset
                for asked in self._pending
            )
        }

    @staticmethod
    def _is_covered(partition: PartitionState | None, offset: int) -> bool:
        """Whether nothing is gained by committing `offset`.

        A commit by the application of what it was handed later stands: the application knows
        better than "handed out before the latest get". When it has gone back by `seek`, its
        position is below what is committed, and then that is given up.
        """
        if partition is None or partition.committed is None:
            return False
        committed, position = partition.committed.offset, partition.position
        return committed == offset or (position is not None and offset < committed <= position)

    async def _commit(
        self,
        offsets: Offsets,
        *,
        deadline: float,
        is_asked_for: bool,
        names_partitions: bool = False,
    ) -> None:
        self._sequence += 1
        commit = PendingCommit(
            self._sequence,
            offsets,
            self._member.identity,
            is_asked_for=is_asked_for,
            names_partitions=names_partitions,
        )
        self._pending.add(commit)
        try:
            await self._carry_through(commit, deadline)
        except KafkaError as error:
            failed = CommitFailed(dict(commit.left), error, is_auto=not is_asked_for)
            self.failed_at = failed.at_s
            self._state.events.publish(failed)
            raise
        else:
            self.commit_count += 1
            self.failed_at = None
        finally:
            self._pending.discard(commit)
            self._done_waiting(commit)

    @property
    def is_settling(self) -> bool:
        return bool(self._waiting or self._auto_commit.departed)

    def _done_waiting(self, commit: PendingCommit) -> None:
        if commit in self._waiting:
            self._waiting.discard(commit)
            self._member.notify()

    async def _carry_through(self, commit: PendingCommit, deadline: float) -> None:
        """Try until all is committed, or overtaken by later commits, or the deadline."""
        backoff = self._backoff()
        last_error: KafkaError | None = None
        while True:
            try:
                async with timeout_at(deadline):
                    if commit.is_asked_for:
                        await self._wait_until_taken(commit)
                    async with self._sending:
                        await self._attempt(commit, deadline)
            except asyncio.TimeoutError:
                break
            except KafkaError as error:
                last_error = error
                self._done_waiting(commit)
                if not self._is_worth_another_try(commit, error):
                    raise
                if isinstance(error, GONE) and await self._is_all_gone(commit, deadline):
                    return
            else:
                return
            if not await pause(backoff, deadline):
                break
        raise KafkaTimeoutError(
            f"offsets of {len(commit.left)} partitions were not committed in time"
        ) from last_error

    async def _attempt(self, commit: PendingCommit, deadline: float) -> None:
        """Send what is left of a commit once.

        Raises:
            KafkaError: Some or all of it was refused; the rest is no longer in `commit.left`.
        """
        for tp in [tp for tp in commit.left if self._latest.get(tp, 0) > commit.sequence]:
            del commit.left[tp]
        if commit.is_asked_for:
            self._catch_up_with_later_ones(commit)
        else:
            commit.left = self.not_committed_yet(commit.left)
            for tp in [tp for tp in commit.left if is_gone(self._cluster.view, tp.topic)]:
                del commit.left[tp]
        if not commit.left:
            return
        identity = self._identity_for(commit)
        ids = TopicIds(self._cluster.view, {tp.topic for tp in commit.left})
        entries = {
            tp: OffsetToCommit(*offset, self._leader_epoch(tp, offset.offset))
            for tp, offset in commit.left.items()
        }
        commit.was_sent = True
        try:
            response = await self._coordinator.request(
                commit_request(self._member, identity, entries, ids),
                error_code=commit_error_code,
                deadline=deadline,
                max_version=None if ids.are_known else LAST_COMMIT_BY_NAME,
            )
        except KafkaError as error:
            self._note_interruption(identity, error)
            raise
        codes = commit_results(response, ids)
        for tp in entries:
            if codes.get(tp) == 0:
                self._note_committed(commit, tp)
        self._raise_refusals(commit, codes)

    def _catch_up_with_later_ones(self, commit: PendingCommit) -> None:
        """Say what later commits said that are not done but may have arrived: never go back."""
        later = [c for c in self._pending if c.sequence > commit.sequence and c.was_sent]
        for other in sorted(later, key=lambda other: other.sequence):
            commit.left |= {tp: other.left[tp] for tp in commit.left if tp in other.left}

    def _identity_for(self, commit: PendingCommit) -> Identity:
        """Return in whose name to commit.

        Raises:
            CommitFailedError: The partitions may have got another owner since.
        """
        if self._state.mode is SubscriptionMode.ASSIGNED:
            return Identity()  # the group only keeps the offsets
        identity, made_as = self._member.identity, commit.made_as
        # Only a commit that waited may go over to the next generation: reads wait for it, and
        # nobody else has had the partitions in between.
        latest = made_as.generation + (commit in self._waiting)
        if (
            not self._member.is_member
            or identity.member_id != made_as.member_id
            or identity.generation > latest
        ):
            raise self._lost()
        commit.made_as = identity
        if gone := sorted(commit.left.keys() - self._state.assignment.keys()):
            raise CommitFailedError(f"the group rebalanced and took away {gone}")
        return identity

    def _lost(self) -> CommitFailedError:
        because = self._member.lost_because
        if self._member.lost_by is Interruption.POLL_INTERVAL_EXCEEDED:
            text = f"{because}: the partitions were given back; {MaxPollIntervalError.remedy}"
            return MaxPollIntervalError(text)
        if because:
            return CommitFailedError(f"{because}: move what takes so long into a thread")
        return CommitFailedError()

    def _leader_epoch(self, tp: TopicPartition, offset: int) -> int:
        """Return the leader epoch of the record before an offset, where it is still known."""
        partition = self._state.assignment.get(tp)
        if partition is None or partition.position != offset:
            return NO_EPOCH
        return partition.leader_epoch

    def _note_committed(self, commit: PendingCommit, tp: TopicPartition) -> None:
        self._latest[tp] = commit.sequence
        offset = commit.left.pop(tp)
        if (partition := self._state.assignment.get(tp)) is not None:
            partition.committed = offset

    def _note_interruption(self, identity: Identity, error: KafkaError) -> None:
        member = self._member
        interruption = INTERRUPTION_BY_RECOVERY.get(recovery_for(error))
        if interruption is None:
            return
        if (
            interruption in LOSSES
            and identity == member.identity
            and member.state is MemberState.STABLE
        ):
            self._state.hold_hand_outs()  # until the group task has dropped what is lost
        member.interrupt(identity, interruption)

    @staticmethod
    def _raise_refusals(commit: PendingCommit, codes: Mapping[TopicPartition, int]) -> None:
        """Raise the gravest of the partitions' errors; one left out is a request that failed."""
        refused = {
            tp: for_code(codes[tp]) if tp in codes else KafkaTimeoutError
            for tp in sorted(commit.left)
        }
        if not refused:
            return
        unauthorized = {
            tp.topic for tp, kind in refused.items() if kind is TopicAuthorizationFailedError
        }
        if unauthorized:
            raise TopicAuthorizationFailedError(unauthorized)
        tp, kind = min(refused.items(), key=lambda item: item[1].retriable)
        raise kind(f"commit of {tp}").at(tp, commit.left[tp].offset)

    def _is_worth_another_try(self, commit: PendingCommit, error: KafkaError) -> bool:
        recovery = recovery_for(error)
        if recovery is Recovery.REJOIN and commit.is_asked_for and not is_in_callback():
            commit.was_put_off = True
            self._waiting.add(commit)
            return True
        if recovery is Recovery.FENCED:  # not to be mended by reading the records again
            return False
        if recovery in INTERRUPTION_BY_RECOVERY:
            raise CommitFailedError from error
        if error.invalid_metadata:
            self._cluster.invalidate()
            if error.tp is not None and is_gone(self._cluster.view, error.tp.topic):
                return False
        return recovery is not Recovery.SURFACE

    async def _is_all_gone(self, commit: PendingCommit, deadline: float) -> bool:
        """Drop the partitions that brokers and coordinator alike do not know; whether all go."""
        if commit.names_partitions:
            return False
        try:
            async with timeout_at(deadline):
                view = await self._cluster.refresh()
        except (asyncio.TimeoutError, KafkaError):
            return False
        gone = {tp for tp in commit.left if is_gone(view, tp.topic)}
        if gone:
            log.warning(
                "group %s: not committed, the topics are gone: %s",
                self._member.group_id,
                {tp: commit.left.pop(tp).offset for tp in sorted(gone)},
            )
        return not commit.left

    async def _wait_until_taken(self, commit: PendingCommit) -> None:
        """Wait for the end of a rebalance in which the commit would be refused (again)."""
        if is_in_callback():  # the rebalance waits for the callback
            return
        while self._is_refused_now(commit):
            self._waiting.add(commit)
            await self._member.wait_for_change()
            self._cluster.raise_if_closed()

    def _is_refused_now(self, commit: PendingCommit) -> bool:
        member = self._member
        if member.state in REBALANCING:
            return True
        if not commit.was_put_off:
            return False
        return member.state is MemberState.PREPARING or (
            member.state is MemberState.STABLE and member.interruption is not None
        )
