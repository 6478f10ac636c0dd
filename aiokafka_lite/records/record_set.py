"""One partition's record set of a fetch response, decoded as its records are asked for.

States of the batch at hand: none → opened (header and checksum are good, it has records to deliver)
→ inflated (if it is compressed) → being taken → none. A batch that would be large is inflated in
pieces: after each it is opened again, until the last is taken. `_open_next` passes control batches,
aborted and empty ones, so that whenever records are not being taken either a batch with something
to deliver is opened, or an error waits, or the set is exhausted.

Most batches need none of that: they are not compressed, no markers, and of no transaction that may
have been aborted. The compiled decoder goes through those by itself (`PlainBatches`), and comes
back for everything that is not plain, broken batches included: what is wrong with them is found and
said here, in one place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from aiokafka_lite.errors import DecompressionLimitError, KafkaError, RecordTooLargeError
from aiokafka_lite.records import checksum, decoders
from aiokafka_lite.records.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    LOG_OVERHEAD,
    BatchHeader,
    check_crc,
    read_header,
)
from aiokafka_lite.records.codec import Codec
from aiokafka_lite.records.messages import wrapped_value
from aiokafka_lite.records.scratch import LARGEST_KEPT_BYTES, give_back
from aiokafka_lite.records.transactions import AbortedTransactions, ControlType, control_type
from aiokafka_lite.structs import ConsumerRecord, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.records.pieces import BatchPieces

__all__ = ["RecordSet", "decode_all", "each_record"]

# Measured on batches of 1,100 JSON records of 100 bytes, which each codec halves:
# seconds for a compressed byte, and for a record that compresses to next to nothing.
_GZIP_S: Final = 10e-9
_OTHERS_S: Final = 1.5e-9
_RECORD_S: Final = 0.1e-6
_PIECE_S: Final = 1e-3  # of records that compress to half, with zstd; three times that with gzip

DEFAULT_MAX_BATCH_BYTES: Final = 64 * 1024 * 1024
# What becomes larger is decompressed in pieces.
_LARGEST_WHOLE_BYTES: Final = LARGEST_KEPT_BYTES
# One `take` ends with the batch that brings what it has decompressed to so much.
INFLATED_AT_ONCE_BYTES: Final = 1024 * 1024

Record: TypeAlias = ConsumerRecord
Into = TypeVar("Into")  # a list of records, or columns


class RecordSet:
    """The records of one partition's slice of a fetch response.

    Not for two threads at once; but `inflate` may run in another thread while nothing else is
    called.
    """

    __slots__ = (
        "_aborted",
        "_check_crcs",
        "_cursor",
        "_decoder",
        "_end_offset",
        "_error",
        "_header",
        "_inflated",
        "_inflated_total_bytes",
        "_is_in_plain",
        "_is_packed",
        "_is_past_end",
        "_max_batch_bytes",
        "_may_be_plain",
        "_payload",
        "_pieces",
        "_plain",
        "_pos",
        "_view",
        "epochs",
        "next_offset",
        "partition",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        view: memoryview,
        *,
        fetch_offset: int,
        end_offset: int = sys.maxsize,
        check_crcs: bool = True,
        aborted: Iterable[tuple[int, int]] | None = None,
        max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
        may_block: bool = False,
    ) -> None:
        """Keep the bytes; nothing is looked at yet.

        Args:
            topic: Of the records.
            partition: Of the records.
            view: Batches one after the other; the last may be cut short.
            fetch_offset: Records at lower offsets are passed over (a broker sends whole batches).
            end_offset: Records from this offset on are left out, and what is behind is not looked
                at; `next_offset` then is at least this.
            check_crcs: Whether to check each batch's checksum.
            aborted: For read_committed: the (producer id, first offset) of aborted transactions, in
                any order. None for read_uncommitted.
            max_batch_bytes: How much of a batch is decompressed at a time, at most: a record may be
                too large for it, or a batch that cannot be decompressed in pieces.
            may_block: Decompress whatever is taken while it is taken, for callers without an event
                loop to hold up: `inflate_estimate_s` and what is said of inflated bytes are 0 then.
        """
        self.topic: Final = topic
        self.partition: Final = partition
        #: Where to go on reading: after what was delivered, and after what never will be.
        self.next_offset: int = fetch_offset
        #: The (base offset, leader epoch) of each batch whose epoch is not that of the one before,
        #: as far as batches were opened. Batches whose epoch is unknown (-1) are left out.
        self.epochs: Final[list[tuple[int, int]]] = []
        self._view = view
        self._check_crcs = check_crcs
        aborted = None if aborted is None else tuple(aborted)
        self._aborted = None if aborted is None else AbortedTransactions(aborted)
        # What is aborted follows from every batch passed: with aborted ones none counts as plain.
        self._may_be_plain = not aborted
        self._max_batch_bytes = max_batch_bytes
        self._end_offset = end_offset
        self._decoder = decoders.current()
        self._plain = self._decoder.PlainBatches(
            topic,
            partition,
            view,
            checksum.crc32c if check_crcs else None,
            aborted is not None,
            end_offset,
            # No method: it would keep the set alive, and with that the answer's memory.
            partial(_inflate_now, max_batch_bytes) if may_block else None,
            give_back if may_block else None,
            self.epochs,
        )
        self._is_in_plain = False  # `_plain` has a batch at hand, with records to deliver
        self._is_past_end = False
        self._pos = 0  # of the batch after the one at hand
        self._header: BatchHeader | None = None
        self._payload: memoryview | None = None  # of a compressed batch
        self._is_packed = False  # it has to be decompressed, or its next piece has to be
        self._pieces: BatchPieces | None = None
        self._inflated: memoryview | None = None
        self._inflated_total_bytes = 0
        self._cursor: decoders.RecordReader | None = None
        self._error: KafkaError | None = None

    def take(self, max_records: int) -> list[Record]:
        """Return at most `max_records` records; none are left when the list is empty.

        Fewer also when many bytes had to be decompressed for them: a small record set may hold
        far more than anybody wants to have in memory at once. A batch may be taken in parts; it is
        decompressed once. Errors come when all records ahead
        of them have been returned, and again each time from then on.

        Raises:
            CorruptRecordException: The next batch or record is malformed.
            UnsupportedMagicError: The next batch is of a format from the future.
            UnsupportedCodecError: The next batch is compressed with an unknown codec.
            DecompressionLimitError: The next batch or record takes more memory than allowed.
            RecordTooLargeError: The first batch is cut short, so the fetch was too small for it.
        """
        records: list[Record] = []
        enough_bytes = self._inflated_total_bytes + INFLATED_AT_ONCE_BYTES
        while len(records) < max_records and (self._is_in_plain or self._start_batch()):
            if self._is_in_plain:
                self._take_from_plain(self._plain.take, records, max_records - len(records))
            else:
                self._take_from_batch(records, max_records - len(records))
                if records and (self._inflated_total_bytes >= enough_bytes or self._is_packed):
                    break
        self._open_next()  # passes what follows and has no records, so that the set is exhausted
        if self._error is not None and not records and max_records > 0:
            raise self._error.with_traceback(None)
        return records

    def take_columns(self, columns: decoders.Columns, max_rows: int) -> int:
        """Add at most `max_rows` records to columns; return how many were added.

        For errors and for what comes next as `take`, and either may follow the other. None are
        left when nothing was added, unless the columns are full: then go on with empty ones.

        Args:
            columns: Made by the decoder that was current when this record set was made.
            max_rows: To be added.

        Raises:
            KafkaError: As `take`.
            RecordTooLargeError: Also for a record that is too large for a column.
        """
        columns.mark()
        before = columns.rows
        enough_bytes = self._inflated_total_bytes + INFLATED_AT_ONCE_BYTES
        while (missing := max_rows - columns.rows + before) > 0 and not columns.is_full:
            if not (self._is_in_plain or self._start_batch()):
                break
            if self._is_in_plain:
                self._take_from_plain(self._plain.take_columns, columns, missing)
            else:
                self._add_from_batch(columns, missing)
                is_enough = self._inflated_total_bytes >= enough_bytes or self._is_packed
                if is_enough and columns.rows > before:
                    break
        self._open_next()
        added = columns.rows - before
        if self._error is not None and not added and max_rows > 0 and not columns.is_full:
            raise self._error.with_traceback(None)
        return added

    @property
    def is_exhausted(self) -> bool:
        """Whether there is nothing more to take, not even an error."""
        self._open_next()
        return self._header is None and not self._is_in_plain and self._error is None

    @property
    def inflate_estimate_s(self) -> float:
        """About how long the next batch, or piece, takes to decompress; 0 if it has not to be."""
        if self._is_in_plain:
            return 0.0
        self._open_next()
        if self._payload is None or self._header is None or not self._is_packed:
            return 0.0
        if self._pieces is not None:
            return _PIECE_S
        return estimate_inflate_s(self._header, len(self._payload))

    @property
    def inflated_bytes(self) -> int:
        """Bytes of the buffer that holds the decompressed batch, or piece, at hand."""
        if self._inflated is None:
            return 0
        return len(self._inflated.obj)  # type: ignore[arg-type]  # a bytearray of the pool

    @property
    def inflated_total_bytes(self) -> int:
        """Bytes that all its compressed batches so far have become."""
        return self._inflated_total_bytes

    def inflate(self) -> None:
        """Decompress the next batch, or piece, if it has to be.

        `take` uses the result, or raises the error. A piece that has no record for the reader is
        passed.

        May run in an executor thread, for which the GIL is released, as long as nothing else is
        called meanwhile.
        """
        self._open_next()
        header, payload = self._header, self._payload
        if header is None or payload is None or not self._is_packed:
            return
        try:
            if self._pieces is None:
                self._inflated = self._inflate_whole(header, payload)
            if self._pieces is not None:
                self._inflated = self._pieces.next_piece()
            self._is_packed = False
            if self._inflated is not None:
                self._inflated_total_bytes += len(self._inflated)
            if self._pieces is not None and self._pieces.cursor.pass_early():
                self._end_piece(header)
        except KafkaError as error:
            self._fail(error)

    # --- the batch at hand -----------------------------------------------------------------------

    def _open_next(self) -> None:
        """Open the next batch that has records to deliver, unless one is at hand."""
        if self._is_in_plain or self._is_past_end:
            return
        while self._header is None and self._error is None:
            if self._pos and self._pos == len(self._view):
                self._is_past_end = True
                return
            if self._may_be_plain and self._open_plain(self._plain):
                return
            try:
                header = read_header(self._view, self._pos)
                if header is None:
                    self._is_past_end = True
                    self._pass_tail()
                    return
                if self.next_offset >= self._end_offset or self._is_beyond(header):
                    self._is_past_end = True
                    self.next_offset = max(self.next_offset, self._end_offset)
                    return
                batch = self._view[self._pos : self._pos + header.size]
                if self._check_crcs:
                    check_crc(header, batch)
                payload = self._deliverable(header, batch)
            except KafkaError as error:
                self._fail(error)
                return
            self._pos += header.size
            epoch = header.leader_epoch
            if epoch != -1 and not (self.epochs and epoch == self.epochs[-1][1]):
                self.epochs.append((header.base_offset, epoch))
            if payload is None:
                self._pass_batch(header)
            else:
                self._header = header
                if header.is_compressed:
                    self._payload = payload
                    self._is_packed = True
                else:
                    self._open_cursor(header, payload)

    def _is_beyond(self, header: BatchHeader) -> bool:
        # A wrapper of magic 1 has the offset of its last message.
        return header.magic == 2 and header.base_offset >= self._end_offset

    def _open_plain(self, plain: decoders.PlainBatchReader) -> bool:
        self._is_in_plain = plain.open(self._pos, self.next_offset)
        self._pos = plain.pos
        self.next_offset = plain.next_offset
        return self._is_in_plain

    def _take_from_plain(self, take: Callable[[Into, int], bool], into: Into, limit: int) -> None:
        plain = self._plain
        failure = None
        try:
            self._is_in_plain = not take(into, limit)
        except KafkaError as error:
            self._is_in_plain = False
            failure = error
        self._pos = plain.pos
        self.next_offset = plain.next_offset
        if failure is not None:
            self._fail(failure, is_in_plain=True)

    def _deliverable(self, header: BatchHeader, batch: memoryview) -> memoryview | None:
        """Return the batch's records, still compressed, or None if no record is for the reader."""
        if header.magic < 2:
            if header.last_offset < self.next_offset:
                return None
            return wrapped_value(header, batch) if header.is_compressed else batch
        payload = batch[HEADER_BYTES:]
        is_aborted = self._aborted is not None and self._aborted.cover(header)
        if header.is_control:
            if self._aborted is not None:
                self._read_markers(self._aborted, header, payload)
            return None
        if is_aborted or header.last_offset < self.next_offset:
            return None
        if header.count == 0 and not payload:
            return None  # compaction removed all its records
        return payload

    def _read_markers(
        self, aborted: AbortedTransactions, header: BatchHeader, payload: memoryview
    ) -> None:
        if header.count == 0 and not payload:
            return
        if header.is_compressed:
            payload = self._inflate(header, payload, self._max_batch_bytes)
        markers: list[Record] = []
        self._batch_cursor(header, payload, floor=0).take(markers, sys.maxsize)
        for marker in markers:
            if control_type(marker.key) == ControlType.ABORT:
                aborted.end(header.producer_id)

    def _inflate(self, header: BatchHeader, payload: memoryview, max_bytes: int) -> memoryview:
        from aiokafka_lite.records.compression import inflate  # on first use: see there

        return inflate(header.codec, payload, max_bytes, magic=header.magic)

    def _inflate_whole(self, header: BatchHeader, payload: memoryview) -> memoryview | None:
        """Decompress a batch; None if it is so large that its pieces are to be decompressed."""
        try:
            return self._inflate(header, payload, min(_LARGEST_WHOLE_BYTES, self._max_batch_bytes))
        except DecompressionLimitError:
            self._cut(header, payload)
        return None if self._pieces else self._inflate(header, payload, self._max_batch_bytes)

    def _cut(self, header: BatchHeader, payload: memoryview) -> None:
        """Have a batch decompressed in pieces, if it can be."""
        from aiokafka_lite.records.compression import inflate_stream  # on first use: see there
        from aiokafka_lite.records.pieces import BatchPieces

        stream = inflate_stream(header.codec, payload) if header.magic == 2 else None
        if stream is not None:
            none_yet = header._replace(count=0)
            cursor = self._batch_cursor(none_yet, payload[:0], floor=self.next_offset)
            self._pieces = BatchPieces(
                stream, header.count, self._max_batch_bytes, cursor, self._decoder.whole_records
            )
            self._cursor = cursor

    def _open_cursor(self, header: BatchHeader, records: memoryview) -> None:
        try:
            if header.magic == 2:
                self._cursor = self._batch_cursor(header, records, floor=self.next_offset)
            else:
                self._cursor = self._decoder.MessageCursor(
                    self.topic,
                    self.partition,
                    records,
                    magic=header.magic,
                    wrapper_offset=header.base_offset if header.is_compressed else None,
                    append_time=header.max_timestamp if header.timestamp_type else None,
                    floor=self.next_offset,
                    ceiling=self._end_offset,
                )
        except KafkaError as error:
            self._fail(error)

    def _batch_cursor(
        self, header: BatchHeader, records: memoryview, *, floor: int
    ) -> decoders.BatchReader:
        return self._decoder.BatchCursor(
            self.topic,
            self.partition,
            records,
            count=header.count,
            base_offset=header.base_offset,
            last_offset_delta=header.last_offset_delta,
            base_timestamp=header.base_timestamp,
            append_time=header.max_timestamp if header.timestamp_type else None,
            floor=floor,
            ceiling=self._end_offset,
        )

    def _start_batch(self) -> bool:
        """Make a cursor ready; False if there is nothing more to take."""
        self._open_next()
        while self._is_packed:
            self.inflate()
            self._open_next()
        if self._is_in_plain:
            return True
        if self._cursor is None and self._header is not None and self._inflated is not None:
            self._open_cursor(self._header, self._inflated)
        return self._cursor is not None and self._error is None

    def _take_from_batch(self, records: list[Record], limit: int) -> None:
        cursor, header = self._cursor, self._header
        if cursor is None or header is None:
            raise AssertionError("no batch is being decoded")
        taken = len(records)
        try:
            is_finished = cursor.take(records, limit)
        except KafkaError as error:
            self._deliver(records, taken)
            self._fail(error)
            return
        self._deliver(records, taken)
        if is_finished:
            self._end_piece(header)

    def _add_from_batch(self, columns: decoders.Columns, limit: int) -> None:
        cursor, header = self._cursor, self._header
        if cursor is None or header is None:
            raise AssertionError("no batch is being decoded")
        before = columns.rows
        try:
            is_finished = cursor.take_columns(columns, limit)
        except KafkaError as error:
            self._deliver_rows(columns, before)
            self._fail(error)
            return
        self._deliver_rows(columns, before)
        if is_finished:
            self._end_piece(header)

    def _end_piece(self, header: BatchHeader) -> None:
        """Go on to the next piece of the batch, or to the next batch."""
        pieces = self._pieces
        if pieces is None or pieces.is_last or self.next_offset >= self._end_offset:
            self._drop_batch()
            self._pass_batch(header)
        else:
            self._is_packed = True

    def _deliver_rows(self, columns: decoders.Columns, before: int) -> None:
        if columns.rows > before:
            self.next_offset = columns.last_offset + 1

    def _deliver(self, records: list[Record], taken: int) -> None:
        if len(records) > taken:
            self.next_offset = records[-1].offset + 1

    def _pass_batch(self, header: BatchHeader) -> None:
        self.next_offset = max(self.next_offset, header.last_offset + 1)

    def _pass_tail(self) -> None:
        """Handle what is after the last whole batch: a batch that was cut short, or nothing."""
        if self._pos or not self._view:
            return
        size = ""
        if len(self._view) >= LOG_OVERHEAD:
            length = int.from_bytes(self._view[8:12], "big", signed=True)
            size = f" that has {LOG_OVERHEAD + length} bytes"
        self._fail(
            RecordTooLargeError(
                f"the response contains only {len(self._view)} bytes of a batch{size}"
            )
        )

    def _fail(self, error: KafkaError, *, is_in_plain: bool = False) -> None:
        """Keep the error for when the records ahead of it have been returned."""
        from aiokafka_lite.records import bad_batch  # on first use: few consumers ever need it

        if is_in_plain:
            next_offset = bad_batch.next_offset_after_last(self._view, self._pos, self.next_offset)
        elif self._header is not None:
            next_offset = max(self._header.last_offset, self.next_offset) + 1
        else:
            next_offset = bad_batch.next_offset_after(self._view, self._pos, self.next_offset)
        # Without tracebacks: their frames refer to this set, which would be a cycle, and to the
        # buffer that a bomb has filled.
        cause: BaseException | None = error
        while cause is not None:
            cause.__traceback__ = None
            cause = cause.__cause__ or cause.__context__
        offset = self.next_offset
        error.args = (
            f"partition {self.partition} of topic {self.topic} at offset {offset}: "
            f"{error.args[0] if error.args else error.__doc__}",
        )
        self._error = error.at(TopicPartition(self.topic, self.partition), offset, next_offset)
        self._drop_batch()

    def _drop_batch(self) -> None:
        if self._inflated is not None:
            give_back(self._inflated)
        self._header = self._payload = self._pieces = self._inflated = self._cursor = None
        self._is_packed = False


def _inflate_now(max_batch_bytes: int, codec: int, payload: memoryview) -> memoryview:
    from aiokafka_lite.records.compression import inflate  # on first use: see there

    return inflate(Codec(codec), payload, min(_LARGEST_WHOLE_BYTES, max_batch_bytes))


def estimate_inflate_s(header: BatchHeader, compressed_bytes: int) -> float:
    """Guess from what it is and from what it holds; sizes alone say little of what repeats."""
    seconds_per_byte = _GZIP_S if header.attributes & CODEC_MASK == Codec.GZIP else _OTHERS_S
    return max(compressed_bytes * seconds_per_byte, header.count * _RECORD_S)


def decode_all(view: memoryview) -> list[Record]:
    """Return all records of a record set, checked; control records are left out.

    Raises:
        KafkaError: As `RecordSet.take`, also when there are good records ahead.
    """
    return list(each_record(view))


def each_record(view: memoryview) -> Iterator[Record]:
    """Yield the records that `decode_all` returns, and decompress what they take on the way.

    Raises:
        KafkaError: As `RecordSet.take`.
    """
    record_set = RecordSet("", 0, view, fetch_offset=0)
    while records := record_set.take(sys.maxsize):
        yield from records


def end_offset(view: memoryview) -> int | None:
    """Return the offset after all whole batches of a record set, None if there is none.

    Reads headers only: what to fetch next is known before the records are decoded. Never raises;
    it stops ahead of the first header that cannot be true, and decoding is what says so.
    """
    return decoders.current().end_offset(view)
