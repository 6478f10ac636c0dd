"""What becomes of one broker's answers to Fetch: each partition is settled once.

A wide answer is settled a slice at a time, and the loop runs in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, cast

from aiokafka_lite.client import Node
from aiokafka_lite.consumer.delivery.fetched import FetchedPartition, FetchedResponse
from aiokafka_lite.consumer.fetching.budget import Reservation
from aiokafka_lite.consumer.fetching.node_counts import NodeCounts
from aiokafka_lite.consumer.fetching.node_targets import NodeTargets
from aiokafka_lite.consumer.fetching.session import FetchSession
from aiokafka_lite.consumer.state import PartitionState
from aiokafka_lite.errors import ReplicaNotAvailableError
from aiokafka_lite.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from aiokafka_lite.protocol.schema import Struct

if TYPE_CHECKING:
    from aiokafka_lite.consumer.fetching.fetcher import Fetcher

# Partitions of one answer that are settled in one go: some 5 us each.
SETTLED_AT_ONCE: Final = 100


class Answers:
    """Settles the answers of one node, and buffers what they brought."""

    def __init__(
        self,
        fetcher: Fetcher,
        node_id: int,
        counts: NodeCounts,
        session: FetchSession,
        targets: NodeTargets,
    ) -> None:
        self._fetcher = fetcher
        self._node_id = node_id
        self._counts = counts
        self._session = session
        self._targets = targets
        self._loop = asyncio.get_running_loop()
        # What is left of an answer that is being settled.
        self._slices: Iterator[None] | None = None
        # What bytes were claimed for last.
        self._claimed_last: PartitionState | None = None

    @property
    def is_settling(self) -> bool:
        """Whether an answer is not settled yet."""
        return self._slices is not None

    def begin(
        self, response: FetchResponse, topics: Iterable[Struct], reservation: Reservation
    ) -> bool:
        """Settle an answer, or its first slice; whether all of it is settled.

        Args:
            response: The answer, of which all but the topics may have been decoded.
            topics: What it says of topics, perhaps decoded meanwhile, some partitions at a time.
            reservation: What was reserved for it.

        Raises:
            KafkaProtocolError: The answer is malformed.
        """
        self._slices = self._settle(response, topics, reservation)
        return self.go_on()

    def go_on(self) -> bool:
        """Settle the next slice; whether all of the answer is settled then.

        Raises:
            KafkaProtocolError: The answer is malformed; the rest of it is given up.
        """
        slices, self._slices = self._slices, None
        for _ in slices or ():
            self._slices = slices
            return False
        return True

    def give_up(self) -> None:
        """Leave the rest of an answer as it is."""
        self._slices = None

    def _settle(
        self, response: FetchResponse, topics: Iterable[Struct], reservation: Reservation
    ) -> Iterator[None]:
        """Settle each partition of an answer once, and buffer what it brought.

        Yields when a slice is done and there is more.
        """
        now = self._loop.time()
        settling = self._fetcher.settling
        fetched = FetchedResponse(self._node_id, reservation)
        parts: dict[PartitionState, FetchedPartition] = {}
        size_bytes = 0
        left_in_slice = SETTLED_AT_ONCE
        hints: list[tuple[PartitionState, LeaderIdAndEpoch]] = []
        for topic in cast("Iterable[FetchableTopicResponse]", topics):
            left_in_slice -= 1  # there may be very many without partitions, too
            for answer in topic.partitions:
                if left_in_slice <= 0:
                    left_in_slice = SETTLED_AT_ONCE
                    yield
                left_in_slice -= 1
                target = self._session.target(topic.topic, topic.topic_id, answer.partition_index)
                if target is None:
                    continue
                partition = target.partition
                if partition.tag != target.tag or partition.fetched != target.offset:
                    continue  # moved, taken away, or answered by another broker meanwhile
                if partition in parts:
                    continue  # a broker named it twice
                is_ours = partition in self._targets.partitions
                if answer.error_code and not is_ours:
                    continue  # read from another broker by now
                part = settling.settle(target, answer, fetched, now)
                if part is not None:
                    parts[partition] = part
                    size_bytes += len(answer.records or b"")
                self._targets.touch(partition)
                if is_ours and (answer.error_code or answer.preferred_read_replica >= 0):
                    self._choose_replica(partition, answer, now)
                # Only errors bring one (KIP-951): without one, asking would make it.
                if answer.error_code and answer.current_leader.leader_id >= 0:
                    hints.append((partition, answer.current_leader))
            if left_in_slice <= 0:
                left_in_slice = SETTLED_AT_ONCE
                yield
        for partition, leader in hints:  # whose endpoints come last in an answer
            self._follow_hint(partition, leader, response)
        if settling.is_metadata_stale:
            settling.is_metadata_stale = False
            self._fetcher.cluster.invalidate()
        current = []
        for part in parts.values():
            if part.is_current:
                current.append(part)
            else:
                part.close()  # moved while the rest was settled
        if not current:
            return
        if self._fetcher.budget.can_keep(reservation, size_bytes):
            reservation.keep(size_bytes)
            self._counts.received_bytes += size_bytes
            self._fetcher.queue.put(fetched, current)
            return
        for part in current:
            part.close()
        self._targets.claim_bytes(self._choose_claimed(current), size_bytes)

    def _choose_claimed(self, parts: Sequence[FetchedPartition]) -> PartitionState:
        """Choose what is asked for alone when there is no room for an answer.

        What gets wait for comes first, in turns: else what is brought for others would be dropped
        for their sake, again and again.
        """
        partitions = [part.partition for part in parts]
        awaited = [
            partition
            for tp in self._fetcher.queue.awaited()
            if (partition := self._fetcher.assigned(tp)) is not None
            and self._fetcher.is_behind(partition)
            and self._targets.can_be_asked(partition)
        ]
        came = [partition for partition in awaited if partition in partitions]
        choice = came or awaited or partitions
        last = self._claimed_last
        index = choice.index(last) + 1 if last in choice else 0
        self._claimed_last = choice[index % len(choice)]
        return self._claimed_last

    def _choose_replica(self, partition: PartitionState, answer: PartitionData, now: float) -> None:
        """Go to the follower that a leader names, or back to the leader from one that failed."""
        if answer.error_code:
            if partition.preferred_replica is not None:
                self._fetcher.give_back(partition, now)
        elif answer.preferred_read_replica != self._node_id and not self._fetcher.prefer(
            partition, answer.preferred_read_replica, now
        ):
            self._fetcher.settling.back_off(partition, ReplicaNotAvailableError, now)

    def _follow_hint(
        self, partition: PartitionState, leader: LeaderIdAndEpoch, response: FetchResponse
    ) -> None:
        """Go to the leader that an error answer names, without waiting for metadata (KIP-951)."""
        endpoints = [
            Node(endpoint.node_id, endpoint.host, endpoint.port, endpoint.rack)
            for endpoint in response.node_endpoints
        ]
        is_newer = self._fetcher.cluster.apply_leader_hint(
            partition.tp, leader.leader_id, leader.leader_epoch, endpoints
        )
        if is_newer:
            partition.retry_at = 0.0
            self._fetcher.touch(partition)
