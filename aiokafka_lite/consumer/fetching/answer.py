"""Settles a broker's answers to Fetch: each partition once.

A wide answer is settled in slices, between which the loop runs. A partition has records, an error,
or neither. Errors:

    leader moved, epoch fenced, topic unknown     refresh metadata, back off, ask again
    other retriable errors                        back off, ask again
    only records before the requested offset      back off, ask again, the leader if a follower did
    offset out of range, by a follower            back off, ask the leader
    offset out of range, by the leader            reset by policy; without one: raised, sticky
    all others, unknown codes included            raised once per backoff, position unchanged
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from aiokafka_lite.client.backoff import LONGEST_BACKOFF_S
from aiokafka_lite.client.view import Node
from aiokafka_lite.consumer.assignment.cursor import Cursor, Loan
from aiokafka_lite.consumer.buffer.budget import Reservation
from aiokafka_lite.consumer.buffer.chunk import Chunk, FetchedResponse
from aiokafka_lite.consumer.fetching.session import FetchSession
from aiokafka_lite.errors import (
    CorruptRecordException,
    FencedLeaderEpochError,
    InconsistentTopicIdError,
    KafkaError,
    OffsetOutOfRangeError,
    ReplicaNotAvailableError,
    UnknownError,
    UnknownLeaderEpochError,
    UnknownTopicIdError,
    for_code,
)
from aiokafka_lite.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from aiokafka_lite.protocol.schema import Struct
from aiokafka_lite.records import RecordSet, end_offset

if TYPE_CHECKING:
    from aiokafka_lite.consumer.fetching.source import Source
    from aiokafka_lite.consumer.fetching.sources import Sources

log = logging.getLogger(__name__)

OUT_OF_RANGE: Final = "out of range"
OLD_RECORDS: Final = "the response contains only records before the requested offset"
# Metadata is out of date, whatever the attributes of these classes.
STALE_METADATA: Final = (
    FencedLeaderEpochError,
    UnknownLeaderEpochError,
    UnknownTopicIdError,
    InconsistentTopicIdError,
)


def aborted_transactions(answer: PartitionData) -> list[tuple[int, int]]:
    return [
        (aborted.producer_id, aborted.first_offset) for aborted in answer.aborted_transactions or ()
    ]


# Partitions of one answer that are settled in one go: some 5 us each.
SETTLED_AT_ONCE: Final = 100
# Leaders that are applied in one go: some 20 us each, and each time all listeners are called.
HINTS_AT_ONCE: Final = 500


class Answers:
    def __init__(self, sources: Sources, source: Source, session: FetchSession) -> None:
        self._sources = sources
        self._source = source
        self._counts = source.counts
        self._session = session
        self._buffer = sources.buffer
        self._loop = asyncio.get_running_loop()
        config = sources.config
        self._check_crcs = config.check_crcs
        self._max_batch_bytes = config.max_batch_bytes
        self._is_read_committed = config.is_read_committed
        # Whether the answer shows that the metadata is out of date.
        self._is_metadata_stale = False
        # The rest of an answer that is being settled.
        self._slices: Iterator[None] | None = None
        # The cursor for which bytes were claimed last.
        self._claimed_last: Cursor | None = None

    @property
    def is_settling(self) -> bool:
        return self._slices is not None

    def begin(
        self,
        response: FetchResponse,
        topics: Iterable[Struct],
        reservation: Reservation,
        now: float,
    ) -> bool:
        """Settle an answer, or its first slice, as `go_on`. `topics` may be decoded lazily."""
        self._slices = self._settle(response, topics, reservation, now)
        return self.go_on()

    def go_on(self) -> bool:
        """Settle the next slice. Return whether all of the answer is settled.

        A malformed answer raises, and its rest is dropped.
        """
        slices, self._slices = self._slices, None
        for _ in slices or ():
            self._slices = slices
            return False
        return True

    def give_up(self) -> None:
        self._slices = None

    def _settle(
        self,
        response: FetchResponse,
        topics: Iterable[Struct],
        reservation: Reservation,
        now: float,
    ) -> Iterator[None]:
        fetched = FetchedResponse(self._source, reservation)
        # In flight until all of the answer is settled: void chunks are dropped then.
        brought: dict[Cursor, tuple[Loan, Chunk]] = {}
        size_bytes = 0
        left_in_slice = SETTLED_AT_ONCE
        elsewhere: list[tuple[Cursor, PartitionData]] = []
        topic: FetchableTopicResponse
        for topic in topics:  # type: ignore[assignment] # decoded as such
            left_in_slice -= 1  # there may be very many without partitions, too
            for answer in topic.partitions:
                if left_in_slice <= 0:
                    left_in_slice = SETTLED_AT_ONCE
                    yield
                left_in_slice -= 1
                loan = self._session.loan(topic.topic, topic.topic_id, answer.partition_index)
                if loan is None or loan.cursor in brought:
                    continue  # moved or revoked since, or named twice by the broker
                chunk = self._settle_partition(loan, answer, fetched, now)
                if chunk is not None:
                    brought[loan.cursor] = (loan, chunk)
                    size_bytes += len(answer.records or b"")
                is_useless = chunk is None and answer.records
                if answer.error_code or is_useless or answer.preferred_read_replica >= 0:
                    elsewhere.append((loan.cursor, answer))
            if left_in_slice <= 0:
                left_in_slice = SETTLED_AT_ONCE
                yield
        current = []
        for cursor, (loan, chunk) in brought.items():
            if cursor.loan is loan:
                current.append(chunk)
            else:
                chunk.close()
        if current:
            self._keep(fetched, current, reservation, size_bytes)
        leaders: dict[Cursor, tuple[int, int]] = {}
        for cursor, answer in elsewhere:
            if left_in_slice <= 0:
                left_in_slice = SETTLED_AT_ONCE
                yield
            left_in_slice -= 1
            if cursor.is_assigned:
                self._look_elsewhere(cursor, answer, leaders, now)
            if len(leaders) == HINTS_AT_ONCE:
                self._follow_hints(leaders, response)
                leaders = {}
                left_in_slice = 0
        if leaders:
            self._follow_hints(leaders, response)
        if self._is_metadata_stale:
            self._is_metadata_stale = False
            self._sources.cluster.invalidate()

    def _keep(
        self,
        fetched: FetchedResponse,
        chunks: list[Chunk],
        reservation: Reservation,
        size_bytes: int,
    ) -> None:
        """Buffer the records if they fit into the budget, otherwise claim bytes for them."""
        if self._sources.budget.can_keep(reservation, size_bytes):
            reservation.keep(size_bytes)
            self._counts.records_came(size_bytes)
            self._buffer.put(fetched, chunks)
            return
        cursors = [chunk.partition for chunk in chunks]
        for cursor in cursors:
            cursor.come_back()
        self._source.choice.claim_bytes(self._choose_claimed(cursors), size_bytes)

    def _choose_claimed(self, partitions: Sequence[Cursor]) -> Cursor:
        """Choose the partition to ask for alone when there is no room for an answer.

        Awaited partitions are first, in turns. Otherwise the records of others would be dropped for
        them again and again.
        """
        awaited = [
            cursor
            for tp in self._buffer.waiters.awaited()
            if (cursor := self._sources.state.assignment.get(tp)) is not None
            and self._sources.is_behind(cursor)
            and self._source.choice.can_be_asked(cursor)
        ]
        came = [cursor for cursor in awaited if cursor in partitions]
        choice = came or awaited or partitions
        last = self._claimed_last
        index = choice.index(last) + 1 if last in choice else 0
        self._claimed_last = choice[index % len(choice)]
        return self._claimed_last

    def _back_off(self, cursor: Cursor, reason: str, now: float) -> None:
        doublings = min(cursor.failure_count, 10)
        delay_s = min(self._sources.config.retry_backoff_s * 2.0**doublings, LONGEST_BACKOFF_S)
        cursor.failed(now + delay_s * self._sources.rng.uniform(1.0, 1.2), reason)

    def _fail(self, cursor: Cursor, reason: str, now: float) -> None:
        if cursor.failure_count == 0:  # one line per change of state
            log.warning(
                "fetching %s/%s from offset %s failed and is retried: %s",
                *cursor.tp,
                cursor.fetched,
                reason,
            )
        cursor.heard_at(now)
        self._back_off(cursor, reason, now)

    def _settle_partition(
        self, loan: Loan, answer: PartitionData, response: FetchedResponse, now: float
    ) -> Chunk | None:
        cursor = loan.cursor
        if answer.error_code:
            self._settle_error(cursor, for_code(answer.error_code), answer.error_code, now)
            return None
        end = end_offset(memoryview(answer.records)) if answer.records else None
        if end is not None and end <= loan.offset:  # to believe it would return records again
            self._fail(cursor, OLD_RECORDS, now)
            return None
        is_stable_known = answer.last_stable_offset >= 0  # not by old brokers
        cursor.answered(
            now,
            answer.high_watermark,
            answer.last_stable_offset if is_stable_known else None,
            answer.log_start_offset,
        )
        if not answer.records:
            return None
        return Chunk(
            cursor,
            self._buffer.delivery,
            response=response,
            records=RecordSet(
                cursor.tp.topic,
                cursor.tp.partition,
                memoryview(answer.records),
                fetch_offset=loan.offset,
                check_crcs=self._check_crcs,
                aborted=aborted_transactions(answer) if self._is_read_committed else None,
                max_batch_bytes=self._max_batch_bytes,
                may_block=False,
            ),
            end_offset=end,
        )

    def _settle_error(
        self, cursor: Cursor, error_class: type[KafkaError], code: int, now: float
    ) -> None:
        self._fail(cursor, error_class.__name__, now)
        if error_class is OffsetOutOfRangeError:
            # A follower may lag, or have deleted more: only the leader knows.
            if cursor.preferred_replica is None:
                self._settle_out_of_range(cursor)
            return
        if error_class.invalid_metadata or error_class in STALE_METADATA:
            self._is_metadata_stale = True
        is_passing = error_class.retriable or error_class.invalid_metadata
        if code == UnknownError.errno or (is_passing and error_class is not CorruptRecordException):
            return
        if error_class is UnknownError:
            text = f"the broker answered with error code {code}, which aiokafka-lite does not know"
        else:
            text = "the broker rejected the fetch"
        topic, number = cursor.tp
        text = f"partition {number} of topic {topic} at offset {cursor.fetched}: {text}"
        self._buffer.put_error(cursor, error_class(text).at(cursor.tp, cursor.fetched))

    def _settle_out_of_range(self, cursor: Cursor) -> None:
        offset = cursor.fetched
        if offset != cursor.position:
            return  # records ahead of it are still buffered: asked again after them
        by_config = self._sources.config.reset_timestamp
        timestamp = self._sources.state.reset_timestamp(cursor.tp, by_config)
        if timestamp is not None:
            log.warning(
                "offset %s of %s/%s is out of range, so the position is reset "
                "(auto_offset_reset=%s)",
                offset,
                *cursor.tp,
                self._sources.config.auto_offset_reset,
            )
            self._sources.state.request_reset(cursor, timestamp, reason=OUT_OF_RANGE)
            return
        error = OffsetOutOfRangeError({cursor.tp: offset}).at(cursor.tp, offset)
        self._buffer.put_error(cursor, error, is_sticky=True)

    def _look_elsewhere(
        self,
        cursor: Cursor,
        answer: PartitionData,
        leaders: dict[Cursor, tuple[int, int]],
        now: float,
    ) -> None:
        """Read from the follower that an answer names, leave a failed one, or note the leader."""
        node_id = answer.preferred_read_replica
        if not answer.error_code and node_id >= 0:
            if node_id != self._source.node_id and not self._sources.prefer(cursor, node_id, now):
                self._back_off(cursor, ReplicaNotAvailableError.__name__, now)
            return
        if cursor.preferred_replica is not None:
            self._sources.give_back(cursor, now)
        # Only errors name a leader (KIP-951).
        if answer.error_code and answer.current_leader.leader_id >= 0:
            leader = answer.current_leader
            leaders[cursor] = leader.leader_id, leader.leader_epoch

    def _follow_hints(
        self, leaders: Mapping[Cursor, tuple[int, int]], response: FetchResponse
    ) -> None:
        """Read from the leaders that an answer names, without waiting for metadata (KIP-951)."""
        endpoints = [
            Node(endpoint.node_id, endpoint.host, endpoint.port, endpoint.rack)
            for endpoint in response.node_endpoints
        ]
        moved = self._sources.cluster.apply_leader_hints(
            {cursor.tp: leader for cursor, leader in leaders.items()}, endpoints
        )
        for cursor in leaders:
            if cursor.is_assigned and cursor.tp in moved:
                cursor.end_back_off()
