"""The consumer's methods about positions, offsets and topics: its façade's other half."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal, overload

from aiokafka_lite._compat import timeout_at
from aiokafka_lite.consumer.arguments import (
    NAMED_TUPLES,
    check_offset,
    check_partition,
    check_partitions,
    check_timestamps,
)
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.engine import Engine
from aiokafka_lite.consumer.state import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    PartitionState,
    SubscriptionMode,
    SubscriptionState,
)
from aiokafka_lite.errors import IllegalOperation, IllegalStateError, KafkaTimeoutError
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

        What was fetched before is dropped, also what is on its way. For auto-commit the records in
        hand stay unprocessed until the next get, and only then are those passed over done, too.
        While a rebalance is under way a new position holds if the partition comes back with the
        assignment that ends it; so do those of the other seeks. Where it goes to another member,
        that one starts at what is committed.

        Raises:
            ValueError: The offset is not an int, or negative.
            TypeError: `partition` is not a TopicPartition.
            IllegalStateError: It is not assigned.
            ConsumerStoppedError: The consumer is stopped, or is being stopped.
        """
        self._check_change()
        offset = check_offset(offset)
        self._state.seek(self._state.partition(check_partition(partition)), offset)

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
        tps = [state.tp for state in states]
        return await self._engine.wait_until(
            lambda: not any(map(self._awaits_position, tps)), self._request_deadline()
        )

    def _awaits_position(self, tp: TopicPartition) -> bool:
        # Looked up each time: after a rebalance it is another state of the same partition.
        state = self._state.assignment.get(tp)
        return state is not None and state.position is None

    async def seek_to_committed(
        self, *partitions: TopicPartition
    ) -> dict[TopicPartition, int | None]:
        """Move to the committed offsets; partitions without one stay where they are.

        Returns:
            The committed offset of each partition, None where there is none.

        Raises:
            TypeError: One is not a TopicPartition.
            IllegalStateError: One is not assigned.
            IllegalOperation: The consumer has no group.
        """
        self._engine.owner.check()
        states = self._states(partitions)
        self._require_group()
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
        for tp in wanted:
            self._state.partition(tp)

        def are_known() -> bool:
            missing = [tp for tp in wanted if self._awaits_position(tp)]
            for tp in missing:
                if error := self._engine.queue.sticky_error(self._state.partition(tp)):
                    raise error.with_traceback(None)
            return not missing

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
        return positions if others else positions[wanted[0]]

    # --- Commits --------------------------------------------------------------------------
    async def commit(self, offsets: CommitOffsets | None = None) -> None:
        """Commit offsets, by default the positions: all that was handed out.

        Args:
            offsets: For each partition the next offset to read, or that and a string.

        Raises:
            IllegalOperation: The consumer has no group.
            IllegalStateError: A partition is not assigned, or nothing is subscribed or assigned.
            CommitFailedError: The group has given the partitions to another member. Or the offset
                is of records of an earlier assignment: it was handed out before another member may
                have had the partition, and neither handed out nor sought since. (To go there all
                the same, seek first.)
            ValueError, TypeError: `offsets` has another shape.
            KafkaError: The broker refused, or could not be reached in time.
        """
        self._engine.owner.check()
        self._require_group()
        if offsets is None and self._state.mode is SubscriptionMode.NONE:
            raise IllegalStateError("Not subscribed to any topics: there is nothing to commit")
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
        return answers if others else answers[wanted[0]]

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
            ConsumerStoppedError: The consumer is stopped, or is being stopped.
        """
        self._check_change()
        self._state.add_from_user(check_partitions(partitions))

    def incremental_unassign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions no more; the others go on as they are.

        What is buffered of them is dropped. With auto-commit, what was handed out of them before
        the latest get is committed right after; for the latest get's records `commit` first.

        Raises:
            IllegalStateError: One is not assigned, in which case nothing is changed; or the
                partitions come from a subscription.
            TypeError: One is not a TopicPartition.
            ConsumerStoppedError: The consumer is stopped, or is being stopped.
        """
        self._check_change()
        self._state.remove_from_user(check_partitions(partitions))

    # --- Pauses ---------------------------------------------------------------------------
    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out and fetch no more of the partitions; what is buffered stays.

        A rebalance ends it, as with Java's client, also where the partition comes back: pause in
        `on_partitions_assigned`. A pause made while the rebalance is under way stays.

        Raises:
            TypeError: One is not a TopicPartition.
            IllegalStateError: One is not assigned.
            ConsumerStoppedError: The consumer is stopped, or is being stopped.
        """
        self._check_change()
        for tp in check_partitions(partitions, NAMED_TUPLES):
            self._state.pause(self._state.partition(tp))

    def resume(self, *partitions: TopicPartition) -> None:
        """Hand out and fetch the partitions again; raises as `pause` does."""
        self._check_change()
        for tp in check_partitions(partitions, NAMED_TUPLES):
            self._state.resume(self._state.partition(tp))

    def _check_change(self) -> None:
        """Check that what is read, and from where, can be changed now and will still count."""
        self._engine.owner.check_now()
        self._engine.raise_if_stopped()

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
        """Return the end of what no open transaction holds back, as last heard.

        None if never, or by brokers before Kafka 0.11. Brokers say it at either isolation level.

        Raises:
            AssertionError: The partition is not assigned.
        """
        return self._assigned(partition).last_stable_offset

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
        state = self._state.assignment.get(check_partition(partition))
        if state is None:
            raise AssertionError(f"Partition is not assigned: {partition}")
        return state

    # --- Offsets and topics of the cluster ------------------------------------------------
    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each partition, assigned or not.

        Raises:
            KafkaTimeoutError: They were not all found within request_timeout_ms; names those
                that were not, and the node that has not answered.
        """
        return await self._bounds(partitions, EARLIEST_TIMESTAMP)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset behind the last record, or the last stable in read_committed.

        Raises as `beginning_offsets` does.
        """
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
        wanted = check_timestamps(timestamps)
        found = await self._find(wanted)
        return {
            tp: OffsetAndTimestamp(found[tp].offset, found[tp].timestamp)
            if found[tp].offset >= 0
            else None
            for tp in wanted
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
        cluster = running.cluster
        with cluster.watching({tp.topic for tp in timestamps}):
            if any(cluster.view.leader(tp) is None for tp in timestamps):
                try:
                    async with timeout_at(deadline):
                        await cluster.refresh()
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
