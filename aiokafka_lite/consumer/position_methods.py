"""The consumer's methods about positions, offsets and topics: its façade's other half."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal, overload

from aiokafka_lite._compat import timeout_at
from aiokafka_lite.consumer.arguments import check_offset, check_partitions
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.engine import Engine
from aiokafka_lite.consumer.state import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    PartitionState,
    SubscriptionState,
)
from aiokafka_lite.errors import IllegalOperation, KafkaTimeoutError
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from aiokafka_lite.structs import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.positions.offsets import FoundOffset
    from aiokafka_lite.consumer.running import Running

CommitOffsets = Mapping[TopicPartition, int | tuple[int, str] | OffsetAndMetadata]


class PositionMethods:
    """Positions, commits, pauses, and what brokers say about offsets and topics."""

    _engine: Engine
    _state: SubscriptionState
    _config: ConsumerConfig
    _loop: asyncio.AbstractEventLoop
    _group_id: str | None

    # --- Positions ------------------------------------------------------------------------
    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Have the next get of the partition start at `offset`; no request is sent.

        What was fetched before is dropped, also what is on its way.

        Raises:
            ValueError: The offset is not an int, or negative.
            TypeError: `partition` is not a TopicPartition.
            IllegalStateError: It is not assigned.
        """
        self._engine.owner.check_now()
        check_partitions((partition,))
        self._state.seek(self._state.partition(partition), check_offset(offset))

    async def seek_to_beginning(self, *partitions: TopicPartition) -> bool:
        """Move to the first offset of the partitions, of all assigned if none is named.

        Returns:
            False if the offsets were not found within request_timeout_ms; the search goes on.

        Raises:
            TypeError: One is not a TopicPartition.
            IllegalStateError: One is not assigned.
        """
        return await self._reset(partitions, EARLIEST_TIMESTAMP)

    async def seek_to_end(self, *partitions: TopicPartition) -> bool:
        """Move behind the last record of the partitions; otherwise as `seek_to_beginning`."""
        return await self._reset(partitions, LATEST_TIMESTAMP)

    async def _reset(self, partitions: tuple[TopicPartition, ...], timestamp: int) -> bool:
        self._engine.owner.check()
        self._engine.raise_if_unusable()
        states = self._states(partitions)
        for state in states:
            self._state.request_reset(state, timestamp)
        return await self._engine.wait_until(
            lambda: all(state.position is not None or not state.is_assigned for state in states),
            self._request_deadline(),
        )

    async def seek_to_committed(
        self, *partitions: TopicPartition
    ) -> dict[TopicPartition, int | None]:
        """Move to the committed offsets; partitions without one stay where they are.

        Returns:
            The committed offset of each partition, None where there is none.

        Raises:
            IllegalOperation: The consumer has no group.
            TypeError: One is not a TopicPartition.
            IllegalStateError: One is not assigned.
        """
        self._engine.owner.check()
        self._require_group()
        states = self._states(partitions)
        with self._engine.until_stopped() as running:
            committed = await running.commits.committed([state.tp for state in states])
        result: dict[TopicPartition, int | None] = {}
        for state in states:
            offset = committed[state.tp]
            result[state.tp] = None if offset is None else offset.offset
            if offset is not None and state.is_assigned:
                self._state.seek(state, offset.offset)
        return result

    @overload
    async def position(self, partition: TopicPartition) -> int: ...
    @overload
    async def position(
        self, partition: TopicPartition, second: TopicPartition, /, *others: TopicPartition
    ) -> dict[TopicPartition, int]: ...
    async def position(
        self, partition: TopicPartition, *others: TopicPartition
    ) -> int | dict[TopicPartition, int]:
        """Return the offset of the next record to be handed out, waiting until it is known.

        Cancelling it leaves nothing behind.

        Args:
            partition: When it is the only one, its offset alone is returned, as by aiokafka.
            others: With more of them, the result is a dict by partition, as of one moment.

        Raises:
            TypeError: One is not a TopicPartition.
            IllegalStateError: One is not assigned, or was taken away meanwhile.
            KafkaTimeoutError: They were not all found within request_timeout_ms.
            KafkaError: What keeps one from being found.
        """
        self._engine.owner.check()
        self._engine.raise_if_unusable()
        wanted = check_partitions((partition, *others))
        states = [self._state.partition(tp) for tp in wanted]

        def are_known() -> bool:
            for state in states:
                if state.position is not None:
                    continue
                if (error := self._engine.queue.sticky_error(state)) is not None:
                    raise error.with_traceback(None)
            return all(state.position is not None or not state.is_assigned for state in states)

        await self._engine.wait_until(are_known, self._request_deadline())
        self._state.settle()
        positions: dict[TopicPartition, int] = {}
        for tp in wanted:
            state = self._state.partition(tp)
            if state.position is None:
                raise KafkaTimeoutError(
                    f"the position of {tp} was not found within "
                    f"{self._config.request_timeout_ms} ms: {state.retry_reason or 'no answer'}"
                ).at(tp)
            positions[tp] = state.position
        return positions if others else positions[partition]

    # --- Commits --------------------------------------------------------------------------
    async def commit(self, offsets: CommitOffsets | None = None) -> None:
        """Commit offsets, by default the positions: all that was handed out.

        Args:
            offsets: For each partition the next offset to read, or that and a string.

        Raises:
            IllegalOperation: The consumer has no group.
            IllegalStateError: A partition is not assigned.
            CommitFailedError: The group has given the partitions to another member.
            ValueError, TypeError: `offsets` has another shape.
            KafkaError: The broker refused, or could not be reached in time.
        """
        self._engine.owner.check()
        self._require_group()
        with self._engine.until_stopped() as running:
            await running.commits.commit(offsets)

    @overload
    async def committed(
        self, partition: TopicPartition, *, metadata: Literal[False] = False
    ) -> int | None: ...
    @overload
    async def committed(
        self, partition: TopicPartition, *, metadata: Literal[True]
    ) -> OffsetAndMetadata | None: ...
    @overload
    async def committed(
        self,
        partition: TopicPartition,
        second: TopicPartition,
        /,
        *others: TopicPartition,
        metadata: Literal[False] = False,
    ) -> dict[TopicPartition, int | None]: ...
    @overload
    async def committed(
        self,
        partition: TopicPartition,
        second: TopicPartition,
        /,
        *others: TopicPartition,
        metadata: Literal[True],
    ) -> dict[TopicPartition, OffsetAndMetadata | None]: ...
    async def committed(
        self, partition: TopicPartition, *others: TopicPartition, metadata: bool = False
    ) -> object:
        """Return what the group has committed of partitions, assigned or not, in one round trip.

        Args:
            partition: When it is the only one, its offset alone is returned, as by aiokafka.
            others: With more of them, the result is a dict by partition.
            metadata: Return `OffsetAndMetadata` instead of the offsets.

        Returns:
            None for a partition, where nothing is committed.

        Raises:
            IllegalOperation: The consumer has no group.
            TypeError: One is not a TopicPartition.
            KafkaError: The coordinator refused, or could not be reached in time.
        """
        self._engine.owner.check()
        self._require_group()
        wanted = check_partitions((partition, *others))
        with self._engine.until_stopped() as running:
            found = await running.commits.committed(wanted)
        answers: dict[TopicPartition, int | OffsetAndMetadata | None] = {}
        for tp in wanted:
            offset = found[tp]
            answers[tp] = offset if metadata or offset is None else offset.offset
        return answers if others else answers[partition]

    def _require_group(self) -> None:
        if self._group_id is None:
            raise IllegalOperation("offsets are committed in a group: give a group_id")

    # --- Assignment, changed in part -------------------------------------------------------
    def incremental_assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, too, without the group sharing them out.

        Those assigned already go on as they are, with what is buffered of them.

        Raises:
            IllegalStateError: Topics or a pattern are subscribed.
            TypeError: One is not a TopicPartition.
        """
        self._engine.owner.check_now()
        self._state.add_from_user(check_partitions(partitions))

    def incremental_unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions no more; the others go on as they are.

        What is buffered of them is dropped. With auto-commit, what was handed out of them before
        the latest get is committed right after; for the latest get's records `commit` first.

        Raises:
            IllegalStateError: One is not assigned, in which case nothing is changed; or the
                partitions come from a subscription.
            TypeError: One is not a TopicPartition.
        """
        self._engine.owner.check_now()
        self._state.remove_from_user(check_partitions(partitions))

    # --- Pauses ---------------------------------------------------------------------------
    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out and fetch no more of the partitions; what is buffered stays.

        Raises:
            TypeError: One is not a TopicPartition.
            IllegalStateError: One is not assigned.
        """
        self._engine.owner.check_now()
        for tp in check_partitions(partitions):
            self._state.pause(self._state.partition(tp))

    def resume(self, *partitions: TopicPartition) -> None:
        """Hand out and fetch the partitions again; raises as `pause` does."""
        self._engine.owner.check_now()
        for tp in check_partitions(partitions):
            self._state.resume(self._state.partition(tp))

    def paused(self) -> set[TopicPartition]:
        """Return the partitions that are paused."""
        return {tp for tp, state in self._state.assignment.items() if state.is_paused}

    # --- What the last answers said -------------------------------------------------------
    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the offset behind the last record, as last heard; None if never.

        Raises:
            AssertionError: The partition is not assigned.
        """
        return self._assigned(partition).high_watermark

    def last_stable_offset(self, partition: TopicPartition) -> int | None:
        """Return the end of what no open transaction holds back; -1 in read_uncommitted.

        Raises:
            AssertionError: The partition is not assigned.
        """
        offset = self._assigned(partition).last_stable_offset
        return -1 if offset is not None and not self._config.is_read_committed else offset

    def last_poll_timestamp(self, partition: TopicPartition) -> int | None:
        """Return when a broker last answered about the partition, in ms since the epoch.

        Raises:
            AssertionError: The partition is not assigned.
        """
        answered_at = self._assigned(partition).last_fetch_at
        if answered_at is None:
            return None
        return int((time.time() - (self._loop.time() - answered_at)) * 1000)

    def _assigned(self, partition: TopicPartition) -> PartitionState:
        state = self._state.assignment.get(partition)
        if state is None:
            raise AssertionError(f"partition {partition} is not assigned")
        return state

    # --- Offsets and topics of the cluster ------------------------------------------------
    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each partition, assigned or not.

        Raises:
            KafkaTimeoutError: They were not all found within request_timeout_ms.
        """
        return await self._bounds(partitions, EARLIEST_TIMESTAMP)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset behind the last record, or the last stable in read_committed."""
        return await self._bounds(partitions, LATEST_TIMESTAMP)

    async def _bounds(
        self, partitions: Iterable[TopicPartition], timestamp: int
    ) -> dict[TopicPartition, int]:
        self._engine.owner.check()
        checked = check_partitions(partitions)
        found = await self._find(dict.fromkeys(checked, timestamp))
        return {tp: found[tp].offset for tp in checked}

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return for each partition the first record at or after a time (ms since the epoch).

        Raises:
            ValueError: A time is negative.
            KafkaTimeoutError: They were not all found within request_timeout_ms.
        """
        self._engine.owner.check()
        check_partitions(timestamps)
        for tp, timestamp in timestamps.items():
            if timestamp < 0:
                raise ValueError(f"the time for {tp} is negative: {timestamp}")
        found = await self._find(timestamps)
        return {
            tp: OffsetAndTimestamp(found[tp].offset, found[tp].timestamp)
            if found[tp].offset >= 0
            else None
            for tp in timestamps
        }

    async def _find(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, FoundOffset]:
        if not timestamps:
            return {}
        with self._engine.until_stopped() as running:
            return await self._look_up(running, timestamps)

    async def _look_up(
        self, running: Running, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, FoundOffset]:
        deadline = self._request_deadline()
        view = running.cluster.view
        if any(view.leader(tp) is None for tp in timestamps):
            running.cluster.watch({tp.topic for tp in timestamps} | self._engine.state.topics)
            try:
                async with timeout_at(deadline):
                    await running.cluster.refresh()
            except asyncio.TimeoutError:
                raise KafkaTimeoutError("no metadata came in time") from None
        return await running.lookup.find(timestamps, deadline)

    async def topics(self) -> set[str]:
        """Return the names of all topics that may be read, internal ones left out."""
        self._engine.owner.check()
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        with self._engine.until_stopped() as running:
            response = await running.cluster.request_any(request)
        return {
            topic.name
            for topic in response.topics
            if topic.name and not topic.is_internal and not topic.error_code
        }

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the partition numbers of a topic, None if it is not in the metadata."""
        partitions = self._engine.running.cluster.view.partitions_for_topic(topic)
        return None if partitions is None else set(partitions)

    # --- Shared ---------------------------------------------------------------------------
    def _states(self, partitions: tuple[TopicPartition, ...]) -> list[PartitionState]:
        if not partitions:
            return list(self._state.assignment.values())
        return [self._state.partition(tp) for tp in check_partitions(partitions)]

    def _request_deadline(self) -> float:
        return self._loop.time() + self._config.request_timeout_s
