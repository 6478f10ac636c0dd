"""Commits offsets, as the only sender of OffsetCommit, and reads the committed ones.

- One commit is sent at a time. A retry leaves out offsets that a later commit has replaced, so a
  committed offset decreases only by a later call of the application.
- A commit keeps the topic id under which its records were read, and is never sent under another
  one. Offsets of deleted topics are left out of commits of positions.
- A commit carries the identity at the assignment (`GroupMember.assigned_as`). A commit of the
  application that is refused because of a rebalance, also one that this member's own JoinGroup has
  just begun, waits. It is sent again in the next generation, and after another refusal in the one
  after that, while the partitions are assigned again: then they had no other owner. Commits of
  auto-commit and of a rebalance listener, and any other commit of an old assignment, fail.
- `committed` waits for waiting commits, so that a new assignment does not start before them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from functools import cached_property, partial
from typing import Final

from aiokafka_lite._compat import timeout_at
from aiokafka_lite._tasks import TaskScope, sleep_before
from aiokafka_lite._transaction import transaction_around
from aiokafka_lite.client.arguments import check_offsets
from aiokafka_lite.client.backoff import Backoff
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.offset_commits import (
    TopicIds,
    commit_request,
    commit_results,
    fetch_request,
    fetch_results,
)
from aiokafka_lite.client.offsets import CommittedOffset
from aiokafka_lite.consumer.assignment.assignment import SubscriptionMode, of_another_log
from aiokafka_lite.consumer.assignment.cursor import NO_EPOCH, NO_IDS, Cursor
from aiokafka_lite.consumer.assignment.finished import is_ours, shortened, united
from aiokafka_lite.consumer.commits.auto_commit import AutoCommit
from aiokafka_lite.consumer.commits.pending import CommitKind, PendingCommit
from aiokafka_lite.consumer.core import Core
from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.consumer.membership.coordinator import Coordinator
from aiokafka_lite.consumer.membership.protocol import NO_GENERATION, NO_IDENTITY, Identity, Offsets
from aiokafka_lite.consumer.membership.recovery import Recovery, is_about_the_group, recovery_for
from aiokafka_lite.consumer.membership.stateful import GroupMember
from aiokafka_lite.consumer.positions.topic_changes import ConfirmedTopics, is_gone
from aiokafka_lite.errors import (
    CommitFailedError,
    IllegalOperation,
    KafkaError,
    KafkaTimeoutError,
    OffsetMetadataTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka_lite.events import CommitFailed
from aiokafka_lite.protocol.messages.offsets import (
    OffsetCommitResponse,
    OffsetFetchResponse,
    OffsetFetchResponsePartitions,
)
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)


PASSING: Final = frozenset({Recovery.RETRY, Recovery.REDISCOVER, Recovery.NEW_EPOCH})
# The coordinator's errors for a deleted topic, or one that it does not know yet.
GONE: Final = (UnknownTopicOrPartitionError, UnknownTopicIdError)


def commit_error_code(response: OffsetCommitResponse) -> int:
    for topic in response.topics:
        for result in topic.partitions:
            if result.error_code and is_about_the_group(result.error_code):
                return result.error_code
    return 0


def fetch_error_code(response: OffsetFetchResponse) -> int:
    for group in response.groups:
        if group.error_code:
            return group.error_code
        for topic in group.topics:  # the oldest version has only codes of partitions
            for found in topic.partitions:
                if found.error_code and is_about_the_group(found.error_code):
                    return found.error_code
    return 0


class Commits:
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
        self._finished, self._events = core.finished, core.events
        self._cluster = cluster
        self._coordinator = coordinator
        self.member = member
        self.group: Final = (member.group_id, member.group_instance_id)
        self.request_timeout_s = core.config.request_timeout_s
        # No other commit is sent while it is held, even during a rebalance.
        self.alone: Final = asyncio.Lock()
        self._sequence = itertools.count()
        # Successful commits, and the time of the latest one's failure.
        self.commit_count = 0
        self.failed_at: float | None = None
        # The latest commit that succeeded, by partition.
        self._latest: dict[TopicPartition, int] = {}
        self._auto_commit: AutoCommit | None = None
        # Of partitions that were given up: to be committed, and those that could not be.
        self._departed: list[PendingCommit] = []
        self._forgone: dict[TopicPartition, OffsetAndMetadata] = {}
        self._pending: dict[PendingCommit, None] = {}

    @cached_property
    def topics(self) -> ConfirmedTopics:
        return ConfirmedTopics(self._cluster, self._core)

    # --- Committing -----------------------------------------------------------------------
    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self.request_timeout_s

    async def commit(self, offsets: object = None) -> None:
        """Commit given offsets, or the positions. See `AIOKafkaConsumer.commit`.

        Auto-commit counts its offsets as processed, even if it fails.
        """
        assigned_as = self.assigned_as
        if self.member.is_fenced:  # committing no partitions would look like success
            raise self.member.why_lost()
        wanted = self._finished.offsets_to_commit() if offsets is None else check_offsets(offsets)
        if offsets is not None and (processing := self._core.reads.processing) is not None:
            processing.as_read(wanted)
        # Also if they are no longer assigned, because the application must know.
        if assigned_as is None and (
            self._state.has_lost_any(wanted) or (wanted and self.member.is_rebalancing)
        ):
            raise self.member.why_lost()
        if not wanted:
            return
        exact: Collection[TopicPartition] = ()
        if offsets is None:
            self._finished.note_finished(wanted)
        else:
            self._refuse_named(wanted)
            wanted, exact = self._finished.finish_named(wanted)
        kind = CommitKind.POSITIONS if offsets is None else CommitKind.NAMED
        await self._commit(self.make(wanted, kind, exact=exact), self._deadline())

    def _refuse_named(self, offsets: Offsets) -> None:
        named = {tp: self._state.partition(tp) for tp in offsets}
        self._state.refuse_former_records(offsets)
        held = sorted(
            tp
            for tp, cursor in named.items()
            if cursor.has_stored_offsets
            or cursor.decided_to(offsets[tp].offset) < offsets[tp].offset
        )
        if held:
            raise IllegalOperation(
                f"an open transaction will commit the offsets of {held}: call commit() when the "
                "transaction has ended"
            )

    async def commit_last(
        self, offsets: Offsets, *, deadline: float
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commit before a revocation. Return the offsets that could not be committed; no error."""
        commit = self.make(self.not_committed_yet(offsets), CommitKind.LAST)
        await self._try_to_commit(commit, deadline)
        return self.not_committed_yet(commit.left)

    async def commit_at_the_end(
        self, offsets: Offsets, *, deadline: float
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commit these and those given up before, after auto-commit. Return those not committed."""
        for departed in tuple(self._departed):
            await self._try_to_commit(departed, deadline)
            self._settle(departed)
        last = self.make(self.not_committed_yet(offsets), CommitKind.DEPARTED)
        await self._try_to_commit(last, deadline)
        uncommitted = self.not_committed_yet(last.left)
        await self._until_answered(deadline)
        return {**self._forgone, **uncommitted}

    async def _until_answered(self, deadline: float) -> None:
        awaited = [*self._pending]  # later ones would never end, if tasks commit again and again
        while any(each in self._pending and self._is_under_way(each) for each in awaited):
            if not await self.member.wait_for_change(deadline):
                return  # they fail by themselves

    async def _try_to_commit(self, commit: PendingCommit, deadline: float) -> None:
        offsets = dict(commit.left)
        if not offsets:
            return
        try:
            await self._commit(commit, deadline)
        except KafkaError as error:
            log.warning(
                "group %s: the offsets %s were not committed: %s",
                self.member.group_id,
                offsets,
                error,
            )

    async def settle_departed(self, deadline: float) -> None:
        """Wait for pending commits of partitions that were given up. They fail at the deadline."""
        while self._departed:
            if await self.member.wait_for_change(deadline):
                continue
            for departed in tuple(self._departed):
                log.warning(
                    "group %s: the offsets %s were not committed in time. Their partitions are no "
                    "longer assigned to this member, so the records may be processed again",
                    self.member.group_id,
                    departed.left,
                )
                self._settle(departed)

    def depart(self, offsets: Offsets) -> None:
        """Have auto-commit commit the offsets of partitions that were given up."""
        self._departed.append(self.make(offsets, CommitKind.DEPARTED))

    async def commit_next_departed(self) -> None:
        departed = self._departed[0]
        await self.commit_departed(departed)
        self._settle(departed)

    def forget_returned(self) -> None:
        for tp in [tp for tp in self._forgone if tp in self._cursors]:
            del self._forgone[tp]

    def _settle(self, departed: PendingCommit) -> None:
        if departed in self._departed:
            self._departed.remove(departed)
            self._forgone.update(departed.left)
            self.member.notify()

    def next_number(self) -> int:
        """Return a number between those of earlier and of later commits."""
        return next(self._sequence)

    def is_committing(self, partitions: Collection[TopicPartition], before: int) -> bool:
        """Whether a commit of theirs by the application is in flight, and was not put off.

        Tasks may commit again and again: only lower numbers, and higher offsets, count.
        """
        return any(
            self._is_under_way(commit)
            and any(
                commit.sequence < before or self._is_ahead(commit, tp)
                for tp in partitions
                if tp in commit.left
            )
            for commit in self._pending
        )

    @staticmethod
    def _is_ahead(commit: PendingCommit, tp: TopicPartition) -> bool:
        cursor = commit.cursors[tp]
        return cursor is not None and cursor.has_uncommitted(commit.left[tp].offset)

    def _is_under_way(self, commit: PendingCommit) -> bool:
        return commit.is_asked_for and (not commit.has_waited or self._is_taken(commit))

    @property
    def has_departed(self) -> bool:
        return bool(self._departed)

    def left_to_commit(self, offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
        departed = (item for each in self._departed for item in each.left.items())
        return self.not_committed_yet({**self._forgone, **dict(departed), **offsets})

    def held(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Return a block for commits by other ways (transactional.py). Others wait for its end."""
        return self._turn(lambda: not self.member.is_rebalancing)

    @contextlib.asynccontextmanager
    async def _turn(self, may_begin: Callable[[], bool]) -> AsyncIterator[None]:
        """Send no other commit within the block, which begins when it may."""
        while True:
            while not may_begin():
                await self.member.wait_for_change()
                self._cluster.raise_if_closed()
            async with self.alone:
                if may_begin():  # still
                    yield
                    return

    async def commit_held(self, offsets: Offsets) -> None:
        await self._attempt(self.make(offsets), self._deadline())

    def start_auto_commit(self, scope: TaskScope) -> None:
        if self._config.enable_auto_commit:
            self._auto_commit = AutoCommit(self._core, self, scope)

    async def stop_auto_commit(self) -> None:
        if self._auto_commit is not None:
            await self._auto_commit.stop()

    async def commit_by_itself(self, offsets: Offsets) -> Offsets:
        """Make an automatic commit, and return what was not committed. Reads raise its errors."""
        return await self.commit_departed(self.make(offsets))

    async def commit_departed(self, commit: PendingCommit) -> Offsets:
        try:
            await self._commit(commit, self._deadline())
        except (CommitFailedError, KafkaTimeoutError) as error:
            log.warning("group %s: auto-commit failed: %s", self.member.group_id, error)
        except KafkaError as error:
            self._gate.post(error)
        return commit.left

    @property
    def assigned_as(self) -> Identity | None:
        if self._state.mode is SubscriptionMode.ASSIGNED:
            return NO_IDENTITY  # the group only keeps the offsets
        return self.member.assigned_as

    def not_committed_yet(self, offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            tp: offset
            for tp, offset in offsets.items()
            if (cursor := self._cursors.get(tp)) is None or not cursor.is_committed(offset)
        }

    def make(
        self,
        offsets: Offsets,
        kind: CommitKind = CommitKind.AUTOMATIC,
        *,
        exact: Collection[TopicPartition] = (),
    ) -> PendingCommit:
        return PendingCommit(
            next(self._sequence),
            offsets,
            self.assigned_as,
            kind,
            cursors=self._cursors,
            cluster=self._cluster,
            exact=exact,
        )

    async def _commit(self, commit: PendingCommit, deadline: float) -> None:
        self._pending[commit] = None
        try:
            await self._carry_through(commit, deadline)
            if commit.revoked:
                raise CommitFailedError(
                    f"the offsets of {sorted(commit.revoked)} were not committed: the partitions "
                    "are no longer assigned to this member"
                )
        except KafkaError as error:
            left = {**commit.left, **commit.revoked}
            failed = CommitFailed(left, error, is_auto=not commit.is_asked_for)
            self.failed_at = failed.at_s
            self._events.publish(failed)
            raise
        else:
            self.commit_count += 1
            self.failed_at = None
        finally:
            self._pending.pop(commit, None)
            if commit.is_asked_for:  # others do not wait, and have no waiters
                self.member.notify()

    @property
    def is_settling(self) -> bool:
        has_waited = any(commit.has_waited for commit in self._pending)
        return has_waited or bool(self._departed)

    async def _carry_through(self, commit: PendingCommit, deadline: float) -> None:
        """Retry until all offsets are committed, or replaced by later commits, or the deadline."""
        backoff: Backoff | None = None
        last_error: KafkaError | None = None
        while True:
            try:
                async with timeout_at(deadline), self._turn(partial(self._may_begin, commit)):
                    await self._attempt(commit, deadline)
            except asyncio.TimeoutError:
                break
            except KafkaError as error:
                last_error = error
                if isinstance(error, OffsetMetadataTooLargeError) and self._shorten(commit):
                    continue
                if not self._is_worth_another_try(commit, error):
                    raise
                if isinstance(error, GONE) and await self._is_all_gone(commit, deadline):
                    return
            else:
                return
            backoff = backoff or self._core.new_backoff()
            if not await sleep_before(deadline, backoff.next_delay_s()):
                break
        raise KafkaTimeoutError(
            f"the commit timed out: the offsets of {len(commit.left)} partitions were not committed"
            + ("" if last_error is None else f" (latest error: {last_error})")
        ) from last_error

    def _shorten(self, commit: PendingCommit) -> bool:
        offsets = {tp: offset for tp, offset in commit.left.items() if is_ours(offset.metadata)}
        if not offsets:
            return False
        self._finished.limit_metadata(max(len(offset.metadata) for offset in offsets.values()))
        most = self._finished.most_metadata
        for tp, (offset, metadata) in offsets.items():
            short = shortened(commit.topic_ids[tp], offset, metadata, most)
            commit.left[tp] = OffsetAndMetadata(offset, short)
        return True

    async def _attempt(self, commit: PendingCommit, deadline: float) -> None:
        """Refused offsets stay in `commit.left`."""
        for tp, said_at in commit.said_at.items():
            if self._latest.get(tp, said_at) > said_at:
                commit.left.pop(tp, None)
        assigned_as = self.assigned_as
        if commit.is_asked_for:
            self._catch_up_with_later_ones(commit)
        else:
            commit.left = self.not_committed_yet(commit.left)
            for tp in [tp for tp in commit.left if is_gone(self._cluster.view, tp.topic)]:
                del commit.left[tp]
            if not commit.is_departed and commit.made_as == assigned_as:
                self._keep_in_step(commit)
            self._say_what_was_asked_for(commit)
        self._leave_out_former_logs(commit)
        if commit.kind is not CommitKind.NAMED:
            self._leave_out_what_is_in_doubt(commit)
            if assigned_as is not None:
                self._leave_out_what_went(commit)
        self._say_what_is_finished(commit)
        self._leave_out_what_was_truncated(commit)
        if not commit.left:
            return
        identity = self._identity_for(commit, assigned_as)
        ids = TopicIds({tp: commit.topic_ids[tp] for tp in commit.left})
        entries = {
            tp: CommittedOffset(*offset, self._leader_epoch(commit, tp))
            for tp, offset in commit.left.items()
            if not commit.is_departed or self._has_kept(commit, tp)
        }
        if not entries:
            raise self.member.why_lost()
        commit.was_sent = True
        group_id, instance_id = self.group
        try:
            response = await self._coordinator.request(
                commit_request(
                    group_id,
                    entries,
                    ids,
                    member_id=identity.member_id,
                    generation=identity.generation,
                    instance_id=instance_id,
                ),
                error_code=commit_error_code,
                deadline=deadline,
            )
        except KafkaError as error:
            self.note_refusal(identity, error)
            if self.member.is_fenced:
                raise self.member.why_lost() from error
            raise
        codes = commit_results(response, ids)
        for tp, entry in entries.items():
            if codes.get(tp) == 0:
                self._note_committed(commit, tp, entry.leader_epoch)
        self._raise_refusals(commit, codes, entries)
        if commit.left:
            raise self.member.why_lost()

    def _has_kept(self, commit: PendingCommit, tp: TopicPartition) -> bool:
        made_as = commit.made_as
        return made_as is None or made_as == NO_IDENTITY or self.member.has_kept(tp, made_as)

    def _leave_out_former_logs(self, commit: PendingCommit) -> None:
        """Leave out offsets of recreated topics; CommitFailedError if the application named one."""
        view = self._cluster.view
        former = [
            tp
            for tp in commit.left
            if view.topic_names.get(commit.topic_ids[tp]) != tp.topic
            and commit.topic_ids[tp] not in NO_IDS
            and view.topic_id(tp.topic) not in (None, commit.topic_ids[tp])
        ]
        if not former:
            return
        if commit.kind is CommitKind.NAMED:
            raise of_another_log(f"the offsets of {sorted(former)}")
        log.warning(
            "group %s: these offsets were not committed, because their topics were deleted and "
            "recreated: %s",
            self.member.group_id,
            {tp: commit.left.pop(tp).offset for tp in sorted(former)},
        )

    def overtake(self, cursor: Cursor, committed: OffsetAndMetadata | None) -> None:
        """Update waiting commits after a transaction has committed offsets, which they would undo.

        After a seek back, and if records are finished one by one, the next attempt computes its
        offsets. If the outcome is unknown (None), the cursor's waiting commits are dropped.
        """
        tp, position = cursor.tp, cursor.position
        if cursor.is_assigned and (
            cursor.progress is not None
            or (committed is not None and position is not None and position < committed.offset)
        ):
            return
        for commit in dict.fromkeys((*self._pending, *self._departed)):
            if commit.cursors.get(tp) is not cursor:
                continue
            offset = commit.left.pop(tp, None)
            if offset is None or committed is None:
                continue
            if (more := self._beyond(cursor, committed, offset)) is not None:
                commit.left[tp] = more

    def _beyond(
        self, cursor: Cursor, committed: OffsetAndMetadata, offset: OffsetAndMetadata
    ) -> OffsetAndMetadata | None:
        if cursor.progress is None:
            return offset if offset.offset > committed.offset else None
        most = self._finished.most_metadata
        both = united(cursor.topic_id, committed, offset, most)
        return None if both == united(cursor.topic_id, committed, committed, most) else both

    @staticmethod
    def _leave_out_what_is_in_doubt(commit: PendingCommit) -> None:
        for tp, cursor in commit.cursors.items():
            if cursor is not None and (cursor.is_in_doubt or cursor.has_stored_offsets):
                commit.left.pop(tp, None)

    def _leave_out_what_went(self, commit: PendingCommit) -> None:
        """Leave revoked partitions out of a `commit()`, which fails if one was not committed."""
        if not commit.is_asked_for:
            return
        has_waited = commit.has_waited
        for tp in tuple(commit.left):
            cursor = commit.cursors[tp]
            if tp in self._cursors and (has_waited or self._cursors[tp] is cursor):
                continue
            offset = commit.left.pop(tp)
            if cursor is not None and not self._is_settled(cursor, offset):
                commit.revoked[tp] = offset

    def _is_settled(self, cursor: Cursor, offset: OffsetAndMetadata) -> bool:
        committed, end = cursor.committed, offset.offset
        if (committed is None or committed.offset <= end) and not cursor.has_uncommitted(end):
            return True
        return any(
            departed.cursors.get(cursor.tp) is cursor
            and cursor.tp in departed.left
            and departed.left[cursor.tp].offset >= end
            for departed in self._departed
        )

    @staticmethod
    def _leave_out_what_was_truncated(commit: PendingCommit) -> None:
        for tp, offset in tuple(commit.left.items()):
            if (end := commit.end_of_log(tp)) < offset.offset:
                commit.left[tp] = OffsetAndMetadata(int(end), "")

    def _catch_up_with_later_ones(self, commit: PendingCommit) -> None:
        """Take the offsets of later commits that may have arrived, to never decrease."""
        for other in [each for each in self._pending if each.was_sent]:
            for tp in [tp for tp in commit.left if tp in other.left]:
                if other.said_at[tp] > commit.said_at[tp]:
                    commit.take_over(tp, other)

    def _keep_in_step(self, commit: PendingCommit) -> None:
        """Replace the offsets by those processed by now. Leave out partitions after a seek back."""
        processed = self._finished.processed_offsets()
        for tp, offset in tuple(commit.left.items()):
            partition = self._cursors.get(tp)
            if partition is None or partition.position is None:
                continue
            if partition.position < offset.offset:
                del commit.left[tp]
            elif tp in processed and processed[tp].offset > offset.offset:
                commit.say(tp, processed[tp], next(self._sequence))

    def _say_what_is_finished(self, commit: PendingCommit) -> None:
        """Add records that handlers have finished since: a transaction may have committed them."""
        processed: Offsets = {}
        for tp, cursor in commit.cursors.items():
            if cursor is None or cursor.progress is None or not cursor.is_assigned:
                continue
            if tp in commit.left.keys() - commit.exact:
                processed = processed or self._finished.processed_offsets()
                if tp in processed and processed[tp].offset >= commit.left[tp].offset:
                    commit.say(tp, processed[tp], next(self._sequence))

    def _say_what_was_asked_for(self, commit: PendingCommit) -> None:
        for asked in self._pending:
            if asked.is_asked_for:
                for tp, offset in tuple(commit.left.items()):
                    if tp in asked.left and offset.offset == asked.left[tp].offset:
                        commit.take_over(tp, asked)

    def _identity_for(self, commit: PendingCommit, assigned_as: Identity | None) -> Identity:
        made_as, sender = commit.made_as, None
        is_no_member = assigned_as == NO_IDENTITY and not commit.is_departed
        has_waited = commit.has_waited
        if made_as == NO_IDENTITY and (commit.is_departed or is_no_member):
            return NO_IDENTITY
        if made_as is not None and not is_no_member:
            sender = self.member.commits_as(
                made_as, has_waited=has_waited, is_departed=commit.is_departed
            )
        if sender is None:
            raise self.member.why_lost()
        if not commit.is_departed:
            commit.made_as = sender
            if gone := sorted(
                tp
                for tp in commit.left
                if tp not in self._cursors
                or not (has_waited or self._cursors[tp] is commit.cursors[tp])
            ):
                raise CommitFailedError(
                    f"the group has rebalanced, so offsets of {gone} cannot be committed: the "
                    "partitions are no longer assigned to this member"
                )
        return sender

    @staticmethod
    def _leader_epoch(commit: PendingCommit, tp: TopicPartition) -> int:
        cursor = commit.cursors[tp]
        return NO_EPOCH if cursor is None else cursor.epoch_before(commit.left[tp].offset)

    def _note_committed(self, commit: PendingCommit, tp: TopicPartition, leader_epoch: int) -> None:
        self._latest[tp] = commit.said_at[tp]
        if (offset := commit.left.pop(tp, None)) is None:
            return  # a transaction has replaced it
        for partition in dict.fromkeys((self._cursors.get(tp), commit.cursors[tp])):
            if partition is not None:
                partition.note_committed(offset, leader_epoch, commit.topic_ids[tp])

    @staticmethod
    def _raise_refusals(
        commit: PendingCommit, codes: Mapping[TopicPartition, int], sent: Collection[TopicPartition]
    ) -> None:
        """Raise the gravest error. A missing partition counts as a timeout."""
        refused = {
            tp: for_code(codes[tp]) if tp in codes else KafkaTimeoutError
            for tp in sorted(commit.left.keys() & sent)
        }
        if not refused:
            return
        unauthorized = {
            tp.topic for tp, kind in refused.items() if kind is TopicAuthorizationFailedError
        }
        if unauthorized:
            raise TopicAuthorizationFailedError(unauthorized)
        tp, kind = min(refused.items(), key=lambda item: item[1].retriable)
        if kind is UnknownTopicIdError:  # the same with topic names
            kind = UnknownTopicOrPartitionError
        raise kind(f"commit of {tp}").at(tp, commit.left[tp].offset)

    def _is_worth_another_try(self, commit: PendingCommit, error: KafkaError) -> bool:
        recovery = recovery_for(error)
        if commit.is_departed or commit.can_wait:
            if recovery is Recovery.REBALANCE and commit.is_asked_for:
                commit.put_off()
                self.member.notify()
                return True
            is_of_another = recovery in (Recovery.REBALANCE, Recovery.LOST_GENERATION)
            if is_of_another and self._is_between_generations(commit):
                if commit.is_departed:
                    commit.put_off()
                return True
        if recovery is Recovery.FENCED and commit.is_departed:
            return False
        if self.is_over(commit.made_as, error):
            raise self._rejection(commit) from error
        if error.invalid_metadata:
            self._cluster.invalidate()
            if error.tp is not None and is_gone(self._cluster.view, error.tp.topic):
                return False
        return recovery not in (Recovery.FENCED, Recovery.SURFACE)

    def is_over(self, made_as: Identity | None, error: KafkaError) -> bool:
        """Whether a refused member's generation is over, and this consumer may join again."""
        recovery = recovery_for(error)
        if recovery is Recovery.FENCED:
            return made_as not in (None, NO_IDENTITY) and not self.member.is_fenced
        return recovery.is_about_membership

    def _rejection(self, commit: PendingCommit) -> CommitFailedError:
        if commit.made_as != NO_IDENTITY:
            return CommitFailedError()
        return CommitFailedError(
            f"group {self.member.group_id} has members that subscribe to topics, so the broker "
            "rejects commits of a consumer that calls assign(): use another group_id"
        )

    def _is_between_generations(self, commit: PendingCommit) -> bool:
        is_over = self.member.takes_commits(was_put_off=True, is_departed=True)
        return not is_over or self.assigned_as not in (None, commit.made_as)

    async def _is_all_gone(self, commit: PendingCommit, deadline: float) -> bool:
        if commit.kind is CommitKind.NAMED:
            return False
        try:
            async with timeout_at(deadline):
                view = await self._cluster.refresh()
        except (asyncio.TimeoutError, KafkaError):
            return False
        gone = {tp for tp in commit.left if is_gone(view, tp.topic)}
        if gone:
            log.warning(
                "group %s: these offsets were not committed, because their topics were deleted: %s",
                self.member.group_id,
                {tp: commit.left.pop(tp).offset for tp in sorted(gone)},
            )
        return not commit.left

    def _may_begin(self, commit: PendingCommit) -> bool:
        """Whether it waits neither for a rebalance that would refuse it nor for a transaction."""
        if self._is_taken(commit):
            return not self._waits_for_transaction(commit)
        commit.has_waited = True
        return False

    @staticmethod
    def _waits_for_transaction(commit: PendingCommit) -> bool:
        """Whether a NAMED, LAST or DEPARTED commit waits for another task's transaction."""
        return (
            commit.kind in (CommitKind.NAMED, CommitKind.LAST, CommitKind.DEPARTED)
            and any(
                each is not None and each.has_stored_offsets for each in commit.cursors.values()
            )
            and transaction_around() is None
        )

    def _is_taken(self, commit: PendingCommit) -> bool:
        """Whether the coordinator accepts a commit now, as far as known, or it cannot wait."""
        was_put_off, is_departed = commit.was_put_off, commit.is_departed
        return (
            not (self.member.is_rebalancing or was_put_off)
            or self.member.takes_commits(was_put_off=was_put_off, is_departed=is_departed)
            or not commit.can_wait
        )

    # --- Reading committed offsets --------------------------------------------------------
    def become(self, member: GroupMember) -> None:
        """Commit as another member from now on, which replaces one without an assignment."""
        before, self.member = self.member, member
        before.notify()  # its waiters wait for the new member

    async def committed(
        self,
        partitions: Iterable[TopicPartition],
        *,
        is_for_now: bool = False,
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets, in one round trip. See `AIOKafkaConsumer.committed`.

        Waits for transactions that are about to commit offsets (KIP-447), and unless `is_for_now`
        for commits of this consumer.
        """
        found = await self._read(partitions, is_for_now=is_for_now)
        return {
            tp: None if answer is None else OffsetAndMetadata(answer.offset, answer.metadata)
            for tp, answer in found.items()
        }

    async def committed_at_rest(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """As `committed`, with leader epochs, while no commit or transaction is in flight.

        The result is valid until the caller's next `await`.
        """
        return await self._read(partitions, is_at_rest=True)

    async def positions(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset | KafkaError | None]:
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
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """Read until all partitions are answered, with their errors in `failures`, if given.

        At rest, each attempt asks for all partitions. Commits may continue between attempts: an
        answer may wait for a transaction that waits for them.
        """
        deadline = self._deadline()
        asked = set(partitions)
        left = asked.copy()
        found: dict[TopicPartition, CommittedOffset | None] = {}
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
                    async with self.alone if is_at_rest else contextlib.nullcontext():
                        left |= asked if is_at_rest else set()
                        ids = TopicIds.of_view(self._cluster.view, left)
                        answers = await self._fetch(left, ids, deadline)
            except asyncio.TimeoutError:
                break
            except KafkaError as error:
                if not self._may_pass(error, reader):
                    raise
                last_error = error
            else:
                last_error = self._take_answers(answers, ids, left, found, failures)
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
        self, partitions: set[TopicPartition], ids: TopicIds, deadline: float
    ) -> dict[TopicPartition, OffsetFetchResponsePartitions]:
        reader = self.member.reads_as
        request = fetch_request(
            self.group[0],
            partitions,
            ids,
            member_id=None if reader is None else reader.member_id,
            member_epoch=NO_GENERATION if reader is None else reader.generation,
        )
        response = await self._coordinator.request(
            request, error_code=fetch_error_code, deadline=deadline
        )
        return fetch_results(response, ids)

    def _take_answers(
        self,
        answers: Mapping[TopicPartition, OffsetFetchResponsePartitions],
        ids: TopicIds,
        left: set[TopicPartition],
        found: dict[TopicPartition, CommittedOffset | None],
        failures: dict[TopicPartition, KafkaError] | None,
    ) -> KafkaError | None:
        """Move answered partitions from `left` to `found`, and return the error of those left."""
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
            epoch, metadata = answer.committed_leader_epoch, answer.metadata or ""
            position = CommittedOffset(answer.committed_offset, metadata, epoch)
            found[tp] = position if position.offset >= 0 else None
            if (partition := self._cursors.get(tp)) is not None:
                offset = OffsetAndMetadata(position.offset, metadata)
                partition.note_committed(offset if found[tp] else None, epoch, ids.id_of(tp))
        return why_left
