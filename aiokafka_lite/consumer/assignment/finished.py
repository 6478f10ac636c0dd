"""Computes the offsets to commit, and notes the records that commits and transactions finish.

The ranges finished behind a committed offset are in its metadata, a string of at most 4,096 bytes
by default (offset.metadata.max.bytes). Clients that do not know this name and version process the
finished records again.

    aiokafka-lite/1 <base64 of:>
        4 bytes  CRC-32 of the topic's id, the offset (8 bytes), and the bytes that follow
        varint   leader epoch of the newest finished record, plus one
        pairs    varint unfinished, varint finished: lengths in offsets, from the committed one on

The ranges belong to one log and one committed offset. A recreated topic has another id. A
MirrorMaker copy has another id and offset. A truncated log has lost the leader epoch, or its end:
the leader is asked first, as for the position (positions/resolver.py).

Ranges that do not fit are dropped from the end. If a broker refuses a length, the limit is halved,
at last to zero.
"""

from __future__ import annotations

import base64
import logging
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokafka_lite.consumer.assignment.cursor import NO_EPOCH, Cursor, Range
from aiokafka_lite.consumer.assignment.work import DeliveredRecords, Enlisted
from aiokafka_lite.errors import IllegalStateError
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.assignment.assignment import SubscriptionState
    from aiokafka_lite.consumer.assignment.observers import Observers
    from aiokafka_lite.consumer.assignment.progress import Progress
    from aiokafka_lite.consumer.assignment.reads import Reads
    from aiokafka_lite.consumer.assignment.works import Works

log = logging.getLogger(__name__)

NAME: Final = "aiokafka-lite/1 "
# Less than offset.metadata.max.bytes by default, 4,096.
MOST_CHARACTERS: Final = 3_500
# With less room than this no ranges are written.
LEAST_CHARACTERS: Final = 64
CHECK: Final = struct.Struct(">I")
OFFSET: Final = struct.Struct(">q")


class FinishedRanges(NamedTuple):
    leader_epoch: int
    ranges: tuple[Range, ...]


def encode(
    topic_id: bytes,
    offset: int,
    leader_epoch: int,
    ranges: Iterable[Range],
    most_characters: int = MOST_CHARACTERS,
) -> str:
    """Return the metadata of an offset, "" without ranges, or without a topic id to check."""
    return encode_what_fits(topic_id, offset, leader_epoch, ranges, most_characters)[0]


def encode_what_fits(
    topic_id: bytes,
    offset: int,
    leader_epoch: int,
    ranges: Iterable[Range],
    most_characters: int = MOST_CHARACTERS,
) -> tuple[str, bool]:
    most_bytes = (most_characters - len(NAME)) // 4 * 3
    if not topic_id:
        return "", not any(True for _ in ranges)
    encoded = bytearray(CHECK.size)
    _put(encoded, leader_epoch + 1)
    end, is_empty, is_all = offset, True, True
    for first, next_end in ranges:
        before = len(encoded)
        _put(encoded, first - end)
        _put(encoded, next_end - first)
        if len(encoded) > most_bytes:
            del encoded[before:]
            is_all = False
            break
        end, is_empty = next_end, False
    if is_empty:
        return "", is_all
    CHECK.pack_into(encoded, 0, _check(topic_id, offset, encoded))
    return NAME + base64.b64encode(encoded).decode(), is_all


def decode(topic_id: bytes, offset: int, metadata: str) -> FinishedRanges | None:
    """Return the finished ranges in metadata, if these are ours and of this log and offset."""
    if not is_ours(metadata):
        return None
    try:
        encoded = base64.b64decode(metadata[len(NAME) :], validate=True)
        (check,) = CHECK.unpack_from(encoded)
    except (ValueError, struct.error):
        return None
    if check != _check(topic_id, offset, encoded):
        return None
    numbers = _numbers(memoryview(encoded)[CHECK.size :])
    leader_epoch = next(numbers) - 1
    ranges: list[Range] = []
    end = offset
    for unfinished in numbers:
        first = end + unfinished
        end = first + next(numbers)
        ranges.append(Range(first, end))
    return FinishedRanges(leader_epoch, tuple(ranges))


def united(
    topic_id: bytes,
    one: OffsetAndMetadata,
    other: OffsetAndMetadata,
    most_characters: int = MOST_CHARACTERS,
) -> OffsetAndMetadata:
    found = [each for c in (one, other) if (each := decode(topic_id, *c)) is not None]
    offset, left = max(one.offset, other.offset), list[Range]()
    for first, end in sorted(chain.from_iterable(each.ranges for each in found)):
        if first <= offset:
            offset = max(offset, end)
        elif left and first <= left[-1].end:
            left[-1] = Range(left[-1].first, max(end, left[-1].end))
        else:
            left.append(Range(first, end))
    epoch = max((each.leader_epoch for each in found), default=NO_EPOCH)
    return OffsetAndMetadata(offset, encode(topic_id, offset, epoch, left, most_characters))


def is_ours(metadata: str) -> bool:
    return metadata.startswith(NAME)


def shortened(topic_id: bytes, offset: int, metadata: str, most_characters: int) -> str:
    if len(metadata) <= most_characters:
        return metadata
    finished = decode(topic_id, offset, metadata)
    if finished is None:
        return ""
    return encode(topic_id, offset, *finished, most_characters)


def _check(topic_id: bytes, offset: int, encoded: bytes | bytearray) -> int:
    return zlib.crc32(encoded[CHECK.size :], zlib.crc32(topic_id + OFFSET.pack(offset)))


def _put(encoded: bytearray, number: int) -> None:
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)


def _numbers(encoded: memoryview) -> Iterator[int]:
    number = shift = 0
    for byte in encoded:
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            yield number
            number = shift = 0


class Finished:
    def __init__(
        self, assignment: SubscriptionState, reads: Reads, works: Works, observers: Observers
    ) -> None:
        self._assignment = assignment
        self._cursors = assignment.assignment
        self._reads = reads
        self._works = works
        self._observers = observers
        # Characters of metadata that brokers take with a commit.
        self.most_metadata = MOST_CHARACTERS

    # --- What may be committed ------------------------------------------------------------
    def processed_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets for auto-commit: all before the latest read, less undecided ones."""
        self._reads.settle()
        return {
            tp: self._decided(partition, partition.processed)
            for tp, partition in self._cursors.items()
            if partition.processed is not None
        }

    def handed_out_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        self._reads.settle()
        return {
            tp: self.to_commit(partition, offset, partition.progress)
            for tp, partition in self._cursors.items()
            if (offset := self._handed_out_and_done(partition)) is not None
        }

    def offsets_to_commit(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets for commit(): positions, less records that transactions decide on."""
        return {
            tp: self._decided(self._cursors[tp], offset.offset)
            if self._cursors[tp].undecided
            else offset
            for tp, offset in self.handed_out_offsets().items()
        }

    def finished_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets of a clean stop: those of commit(), without works."""
        offsets = self.offsets_to_commit()
        for tp, partition in self._cursors.items():
            if (
                tp in offsets
                and partition.processed is not None
                and partition.worked_by is not None
            ):
                offsets[tp] = self._decided(partition, partition.processed)
        return offsets

    def _handed_out_and_done(self, partition: Cursor) -> int | None:
        processing = self._reads.processing
        is_processed = processing is not None and partition.worked_by is processing
        return partition.processed if is_processed else partition.position

    def _decided(self, cursor: Cursor, offset: int) -> OffsetAndMetadata:
        return self.to_commit(cursor, cursor.decided_to(offset), cursor.progress)

    def start_to_commit(self, cursor: Cursor, start: int) -> OffsetAndMetadata | None:
        """Return a found start with finished ranges, unless records before it are in work."""
        self._reads.settle()
        is_open = self._reads.is_in_hand(cursor) or cursor.decided_to(start) < start
        if is_open and cursor.has_uncommitted(start):
            return None
        progress = cursor.progress
        return self.to_commit(cursor, start, progress and progress.if_gone_back_to(start))

    def offset_if_finished(
        self, cursor: Cursor, records: Set[int]
    ) -> tuple[OffsetAndMetadata, bool]:
        """Return the commit as if these records were finished, and whether all ranges fit."""
        returned_to = cursor.returned_to()
        if cursor.progress is None or returned_to is None:
            raise IllegalStateError(
                f"cannot commit an offset of {cursor.tp}, because no records of this partition "
                "have been returned yet"
            )
        progress = cursor.progress.if_finished(records)
        first = progress.first_unfinished
        return self._with_metadata(cursor, returned_to if first is None else first, progress)

    def to_commit(
        self, cursor: Cursor, offset: int, progress: Progress | None
    ) -> OffsetAndMetadata:
        if progress is None:
            return OffsetAndMetadata(offset, "")
        return self._with_metadata(cursor, offset, progress)[0]

    def _with_metadata(
        self, cursor: Cursor, offset: int, progress: Progress
    ) -> tuple[OffsetAndMetadata, bool]:
        epoch = cursor.finished_epoch(progress)
        ranges = progress.finished_ranges(offset)
        metadata, is_all = encode_what_fits(
            cursor.topic_id, offset, epoch, ranges, self.most_metadata
        )
        return OffsetAndMetadata(offset, metadata), is_all

    def limit_metadata(self, refused: int) -> None:
        if refused > self.most_metadata:
            return  # they were made before the limit was known
        half = refused // 2
        self.most_metadata = half if half >= LEAST_CHARACTERS else 0
        log.warning(
            "the brokers reject commit metadata of %d characters (offset.metadata.max.bytes), so "
            "commits have at most %d characters of metadata from now on. The metadata lists the "
            "records that finished out of order. Records that do not fit are processed again "
            "after a rebalance or a crash",
            refused,
            self.most_metadata,
        )

    # --- What the application commits itself ----------------------------------------------
    def note_finished(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Count the application's commits as processed, even if they fail."""
        self._reads.settle()
        for tp, offset in offsets.items():
            partition = self._cursors[tp]
            done, position = partition.processed, partition.position
            if done is not None and position is not None and done < offset.offset <= position:
                if partition.progress is not None:
                    partition.progress.finish_before(offset.offset)
                partition.process_to(offset.offset)
                if self._reads.readers is not None:
                    self._reads.readers.finish_before(partition, offset.offset)
                    self._reads.release([partition])
                self._reads.settle_progress(partition)

    def finish_named(
        self, offsets: dict[TopicPartition, OffsetAndMetadata]
    ) -> tuple[dict[TopicPartition, OffsetAndMetadata], set[TopicPartition]]:
        """Count as processed the offsets that the application commits by name.

        During `consumer.run` this finishes only records of the current handler. Returns the offsets
        to commit, and the partitions whose offset is exactly the named one.
        """
        processing = self._reads.processing
        own = None if processing is None else processing.own_records()
        if own is None:
            self.note_finished(offsets)
            exact = {tp for tp, offset in offsets.items() if not self._is_as_finished(tp, offset)}
            for tp in offsets:
                if tp in exact:
                    continue
                cursor = self._cursors[tp]
                offsets[tp] = self.to_commit(cursor, offsets[tp].offset, cursor.progress)
            return offsets, exact
        for tp, (offset, metadata) in offsets.items():
            records = own.get(self._cursors[tp])
            if not records:
                raise IllegalStateError(
                    f"during run(), only a handler that processes a record of {tp} may commit an "
                    f"offset of {tp}, because run() itself commits the offsets of finished records"
                )
            if offset > (end := max(records) + 1):
                raise IllegalStateError(
                    "during run(), a handler may commit only its own records: commit at most "
                    f"offset {end} of {tp}, not offset {offset}"
                )
            if metadata:
                raise IllegalStateError(
                    f"run() uses the commit metadata of {tp} to list records that finished out of "
                    "order: call commit() without metadata"
                )
        for tp, (offset, _) in offsets.items():
            cursor = self._cursors[tp]
            for record, holder in own[cursor].items():
                if record < offset:
                    self._works.finish(cursor, record, holder)
            self._observers.partition_changed(cursor)
        finished = self.processed_offsets()
        return {tp: finished[tp] for tp in offsets if tp in finished}, set()

    def _is_as_finished(self, tp: TopicPartition, named: OffsetAndMetadata) -> bool:
        cursor = self._cursors[tp]
        if cursor.progress is None or named.metadata:
            return False
        first = cursor.progress.first_unfinished
        return named.offset == (cursor.returned_to() if first is None else first)

    # --- Deliveries -----------------------------------------------------------------------
    def delivery(self) -> DeliveredRecords:
        """Return the records being processed, and the partitions lost. Raises during `run`."""
        self._reads.settle()
        blocks = [each for each in self._works.begun if isinstance(each, Enlisted)]
        if (processing := self._reads.processing) is not None:
            return DeliveredRecords(receipts=processing.receipts(), blocks=blocks)
        ends = {
            cursor: end
            for cursor in self._cursors.values()
            if (end := cursor.returned_to()) is not None
        }
        return DeliveredRecords(
            ends, lost=self._assignment.lost_in_hand, blocks=blocks, is_all=True
        )

    def forget_lost(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._assignment.lost_in_hand.pop(tp, None)

    def finish_delivery(self, delivery: DeliveredRecords) -> None:
        self._reads.settle()
        for cursor, end in delivery.ends.items():
            done, position = cursor.processed, cursor.returned_to()
            if done is not None and position is not None and done < end <= position:
                cursor.process_to(end)
        for receipt in delivery.receipts:
            receipt.ack()
        self._observers.acted()

    def finish_offsets(
        self,
        cursors: Mapping[TopicPartition, Cursor],
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> None:
        found = {
            tp: offset
            for tp, offset in offsets.items()
            if tp in cursors and cursors[tp].is_assigned
        }
        processing = self._reads.processing
        if processing is None or processing.own_records() is None:
            self.note_finished(found)
        self._observers.acted()
