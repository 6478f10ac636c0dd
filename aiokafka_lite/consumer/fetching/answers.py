"""What becomes of one broker's answers to Fetch: each partition is settled once.

A wide answer is settled a slice at a time, and the loop runs in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from aiokafka_lite.client import Node
from aiokafka_lite.consumer.delivery.fetched import FetchedPartition, FetchedResponse
from aiokafka_lite.consumer.fetching.budget import Reservation
from aiokafka_lite.consumer.fetching.node_counts import NodeCounts
from aiokafka_lite.consumer.fetching.node_targets import NodeTargets
from aiokafka_lite.consumer.fetching.session import FetchSession
from aiokafka_lite.consumer.state import PartitionState
from aiokafka_lite.errors import ReplicaNotAvailableError
from aiokafka_lite.protocol.messages.fetch import FetchResponse, LeaderIdAndEpoch, PartitionData

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
        # What an answer took that was too much; 0: the last was not.
        self.needed_bytes = 0
        self._fetcher = fetcher
        self._node_id = node_id
        self._counts = counts
        self._session = session
        self._targets = targets
        self._loop = asyncio.get_running_loop()
        # What is left of an answer that is being settled.
        self._slices: Iterator[None] | None = None

    @property
    def is_settling(self) -> bool:
        """Whether an answer is not settled yet."""
        return self._slices is not None

    def begin(self, response: FetchResponse, reservation: Reservation) -> bool:
        """Settle an answer, or its first slice; whether all of it is settled."""
        self._slices = self._settle(response, reservation)
        return self.go_on()

    def go_on(self) -> bool:
        """Settle the next slice; whether all of the answer is settled then."""
        for _ in self._slices or ():
            return False
        self._slices = None
        return True

    def give_up(self) -> None:
        """Leave the rest of an answer as it is."""
        self._slices = None

    def _settle(self, response: FetchResponse, reservation: Reservation) -> Iterator[None]:
        """Settle each partition of an answer once, and buffer what it brought.

        Yields when a slice is done and there is more.
        """
        now = self._loop.time()
        settling = self._fetcher.settling
        fetched = FetchedResponse(self._node_id, reservation)
        parts: dict[PartitionState, FetchedPartition] = {}
        size_bytes = 0
        left_in_slice = SETTLED_AT_ONCE
        for topic in response.responses:
            for answer in topic.partitions:
                if not left_in_slice:
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
                    self._follow_hint(partition, answer.current_leader, response)
        if settling.is_metadata_stale:
            settling.is_metadata_stale = False
            self._fetcher.cluster.invalidate()
        current = []
        for part in parts.values():
            if part.is_current:
                current.append(part)
            else:
                part.close()  # moved while the rest was settled
        if current and self._fits(reservation, size_bytes):
            self._counts.received_bytes += size_bytes
            self._fetcher.queue.put(fetched, current)
        else:
            for part in current:
                part.close()

    def _fits(self, reservation: Reservation, size_bytes: int) -> bool:
        """Have a response kept, unless it brought more than there is room for beside the rest.

        Then it is asked for again when there is.
        """
        buffered_bytes = self._fetcher.budget.buffered_bytes
        if buffered_bytes and buffered_bytes + size_bytes > self._fetcher.budget.limit_bytes:
            self.needed_bytes = size_bytes if size_bytes > reservation.size_bytes else 0
            return False
        self.needed_bytes = 0
        reservation.keep(size_bytes)
        return True

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
