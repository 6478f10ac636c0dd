"""One partition's record set of a Fetch response, decoded while its records are taken.

States of the current batch: none → opened (checked, with records to deliver) → inflated (if
compressed) → being taken → none. A large batch is inflated in pieces: after each it is opened
again. Between calls, the set has an opened batch with records, a pending error, or is exhausted.

The compiled decoder itself reads batches without compression, markers and aborted transactions
(`PlainBatches`), and leaves all others, including broken ones, to this module.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from aiokafka_lite.errors import DecompressionLimitError, KafkaError, RecordTooLargeError
from aiokafka_lite.records import checksum, decoders
from aiokafka_lite.records._decode_py import BatchCursor, MessageCursor
from aiokafka_lite.records.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    LOG_OVERHEAD,
    MAX_OFFSET,
    BatchHeader,
    check_crc,
    peek_header,
    read_header,
    wrapped_value,
)
from aiokafka_lite.records.codec import Codec
from aiokafka_lite.records.scratch import LARGEST_KEPT_BYTES, give_back
from aiokafka_lite.records.transactions import AbortedTransactions, ControlType, control_type
from aiokafka_lite.structs import ConsumerRecord, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.records.pieces import BatchPieces

# Seconds per compressed byte, and per record that compresses to almost no bytes. Measured with
# batches of 1,100 JSON records of 100 bytes, which each codec halves.
_GZIP_S: Final = 10e-9
_OTHERS_S: Final = 1.5e-9
_RECORD_S: Final = 0.1e-6
_PIECE_S: Final = 1e-3  # with zstd, for records that compress to half. Gzip takes three times this.

DEFAULT_MAX_BATCH_BYTES: Final = 64 * 1024 * 1024
# Larger batches are decompressed in pieces.
_LARGEST_WHOLE_BYTES: Final = LARGEST_KEPT_BYTES
_LARGEST_MARKER_BYTES: Final = 16 * 1024  # of control records: brokers do not compress them
# One `take` ends with the batch that exceeds this number of decompressed bytes.
INFLATED_AT_ONCE_BYTES: Final = 1024 * 1024

Record: TypeAlias = ConsumerRecord
Into: TypeAlias = "list[Record] | decoders.Columns"


class RecordSet:
    """Not for concurrent threads. Only `inflate` may run in another thread, without other calls."""

    __slots__ = (
        "_aborted",
        "_check_crcs",
        "_cursor",
        "_decoder",
        "_end_offset",
        "_error",
        "_header",
        "_inflated",
        "_is_in_plain",
        "_is_large",
        "_is_packed",
        "_is_past_end",
        "_max_batch_bytes",
        "_may_block",
        "_payload",
        "_pieces",
        "_plain",
        "_pos",
        "_view",
        "epochs",
        "inflated_total_bytes",
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
        may_block: bool = True,
    ) -> None:
        """Keep the bytes, without reading them.

        Args:
            view: Contiguous batches. The last one may be incomplete.
            fetch_offset: Records at lower offsets are skipped.
            end_offset: Later bytes are not read. `next_offset` becomes at least this.
            check_crcs: Whether to check each batch's checksum.
            aborted: For read_committed: (producer id, first offset) of aborted transactions, in any
                order. None for read_uncommitted.
            max_batch_bytes: The limit of the decompression buffer, for a record, or for a batch
                that cannot be decompressed in pieces.
            may_block: Decompress all batches in `take`, for callers without an event loop.
        """
        self.topic: Final = topic
        self.partition: Final = partition
        #: The next offset to fetch: after the records that were delivered or skipped.
        self.next_offset: int = fetch_offset
        #: The (base offset, leader epoch) of each opened batch whose epoch differs from that of the
        #: one before. Batches with an unknown epoch (-1) are left out.
        self.epochs: Final[list[tuple[int, int]]] = []
        self._view = view
        self._check_crcs = check_crcs
        aborted = None if aborted is None else tuple(aborted)
        self._aborted = None if aborted is None else AbortedTransactions(aborted)
        self._max_batch_bytes = max_batch_bytes
        self._may_block = may_block
        self._end_offset = end_offset
        self._decoder = decoders.current()
        self._plain: decoders.PlainBatches | None = None
        # `AbortedTransactions` must see every batch, so with aborted ones no batch is plain.
        if not aborted and (plain_batches := self._decoder.PlainBatches) is not None:
            self._plain = plain_batches(
                topic,
                partition,
                view,
                checksum.crc32c if check_crcs else None,
                aborted is not None,
                end_offset,
                # A method would keep the set alive, and with it the response's memory.
                partial(_inflate, min(_LARGEST_WHOLE_BYTES, max_batch_bytes))
                if may_block
                else None,
                give_back if may_block else None,
                self.epochs,
            )
        self._is_in_plain = False  # `_plain` has an open batch, with records to deliver
        self._is_past_end = False
        self._pos = 0  # of the batch after the open one
        self._header: BatchHeader | None = None
        self._payload: memoryview | None = None  # of a compressed batch
        self._is_packed = False  # the batch, or its next piece, is to be decompressed
        self._is_large = False  # known after the first attempt to decompress the batch
        self._pieces: BatchPieces | None = None
        self._inflated: memoryview | None = None
        #: The decompressed size of all batches so far.
        self.inflated_total_bytes = 0
        self._cursor: BatchCursor | None = None
        self._error: KafkaError | None = None

    def take(self, max_records: int) -> list[Record]:
        """Return at most `max_records` records. An empty list is the end.

        Fewer are returned after much decompression or many headers, because a small record set may
        contain much. Without `may_block`, the list may be empty before the end (`is_exhausted`):
        large batches are left to `inflate`. An error is raised after all earlier records were
        returned, and again by each later call.

        Raises:
            CorruptRecordException: The next batch or record is malformed.
            UnsupportedMagicError: The format of the next batch is newer than magic 2.
            UnsupportedCodecError: The next batch is compressed with an unknown codec.
            DecompressionLimitError: The next batch or record takes more memory than allowed.
            RecordTooLargeError: The first batch is incomplete, because the fetch size was too
                small.
        """
        records: list[Record] = []
        self._fill(records, max_records)
        return records

    def take_columns(self, columns: decoders.Columns, max_rows: int) -> int:
        """Add at most `max_rows` records to columns. Return the number of added rows.

        Calls of this and of `take` may alternate. 0 is the end, unless the columns are full: then
        continue with empty ones. The decoder of this record set must have created the columns.
        Raises as `take`, and RecordTooLargeError for a record that is too large for a column.
        """
        columns.mark()
        before = len(columns)
        self._fill(columns, max_rows)
        return len(columns) - before

    def _fill(self, into: Into, most: int) -> None:
        before = len(into)
        enough_bytes = self.inflated_total_bytes + INFLATED_AT_ONCE_BYTES
        while (missing := before + most - len(into)) > 0 and not _is_full(into):
            if not (self._is_in_plain or self._start_batch(enough_bytes)):
                break
            if self._is_in_plain:
                self._take_from_plain(into, missing)
            else:
                self._take_from_batch(into, missing)
            is_open = self._is_in_plain or self._cursor is not None
            if (is_open or self.inflated_total_bytes >= enough_bytes) and len(into) > before:
                break
        self._open_next()  # skips batches without records, so that the set may be exhausted
        if self._error is not None and len(into) == before and most > 0 and not _is_full(into):
            raise self._error.with_traceback(None)

    @property
    def is_exhausted(self) -> bool:
        """Whether no record and no error is left."""
        self._open_next()
        return self._header is None and not self._is_in_plain and self._error is None

    @property
    def inflate_estimate_s(self) -> float:
        if self._is_in_plain:
            return 0.0
        self._open_next()
        if self._payload is None or self._header is None or not self._is_packed:
            return 0.0
        if self._is_large:
            return _PIECE_S
        is_gzip = self._header.attributes & CODEC_MASK == Codec.GZIP
        by_size_s = len(self._payload) * (_GZIP_S if is_gzip else _OTHERS_S)
        # Repetitive records compress to few bytes.
        return max(by_size_s, self._header.count * _RECORD_S)

    @property
    def inflated_bytes(self) -> int:
        """The size of the buffer with the current decompressed batch or piece."""
        if self._inflated is None:
            return 0
        return len(self._inflated.obj)  # type: ignore[arg-type]  # a bytearray of the pool

    def inflate(self) -> None:
        """Decompress the next batch or piece for `take`. A piece without records is skipped."""
        self._open_next()
        was_large = self._is_large
        self._inflate_next()
        if self._is_large and not was_large:
            self._inflate_next()

    def _inflate_next(self) -> None:
        """Decompress a batch or piece, or find that the batch is large."""
        header, payload = self._header, self._payload
        if header is None or payload is None or not self._is_packed:
            return
        try:
            if self._pieces is not None:
                self._inflated = self._pieces.next_piece()
            elif self._is_large:
                self._inflated = _inflate(
                    self._max_batch_bytes, header.codec, payload, header.magic
                )
            else:
                most = min(_LARGEST_WHOLE_BYTES, self._max_batch_bytes)
                try:
                    self._inflated = _inflate(most, header.codec, payload, header.magic)
                except DecompressionLimitError:
                    self._cut(header, payload)
                    self._is_large = True
                    return
            self._is_packed = False
            self.inflated_total_bytes += len(self._inflated)
            if self._pieces is not None and self._pieces.cursor.pass_early():
                self._end_piece(header)
        except KafkaError as error:
            self._fail(error)

    # --- the current batch -----------------------------------------------------------------------

    def _open_next(self) -> None:
        if self._is_in_plain or self._is_past_end:
            return
        while self._header is None and self._error is None:
            if self._pos and self._pos == len(self._view):
                self._is_past_end = True
                return
            if self._plain is not None and self._open_plain(self._plain):
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

    def _open_plain(self, plain: decoders.PlainBatches) -> bool:
        self._is_in_plain = plain.open(self._pos, self.next_offset)
        self._pos = plain.pos
        self.next_offset = plain.next_offset
        return self._is_in_plain

    def _take_from_plain(self, into: Into, limit: int) -> None:
        plain = self._plain
        if plain is None:
            raise AssertionError("no batch is being decoded")
        failure = None
        try:
            if isinstance(into, list):
                self._is_in_plain = not plain.take(into, limit)
            else:
                self._is_in_plain = not plain.take_columns(into, limit)
        except KafkaError as error:
            self._is_in_plain = False
            failure = error
        self._pos = plain.pos
        self.next_offset = plain.next_offset
        if failure is not None:
            self._fail(failure, is_in_plain=True)

    def _deliverable(self, header: BatchHeader, batch: memoryview) -> memoryview | None:
        """Return the batch's records, still compressed, if any are to be delivered."""
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
            payload = _inflate(_LARGEST_MARKER_BYTES, header.codec, payload)
        markers: list[Record] = []
        # As in Java's client, only the first record counts.
        self._batch_cursor(header, payload, floor=0).take(markers, 1)
        if markers and control_type(markers[0].key) == ControlType.ABORT:
            aborted.end(header.producer_id)

    def _cut(self, header: BatchHeader, payload: memoryview) -> None:
        from aiokafka_lite.records.compression import inflate_stream  # late: see there
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
                self._cursor = MessageCursor(
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

    def _batch_cursor(self, header: BatchHeader, records: memoryview, *, floor: int) -> BatchCursor:
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

    def _start_batch(self, enough_bytes: int) -> bool:
        self._open_next()
        while self._is_packed:
            is_enough = self._is_large or self.inflated_total_bytes >= enough_bytes
            if is_enough and not self._may_block:
                return False
            self._inflate_next()
            self._open_next()
        if self._is_in_plain:
            return True
        if self._cursor is None and self._header is not None and self._inflated is not None:
            self._open_cursor(self._header, self._inflated)
        return self._cursor is not None and self._error is None

    def _take_from_batch(self, into: Into, limit: int) -> None:
        cursor, header = self._cursor, self._header
        if cursor is None or header is None:
            raise AssertionError("no batch is being decoded")
        is_finished, failure = False, None
        before = len(into)
        try:
            if isinstance(into, list):
                is_finished = cursor.take(into, limit)
            else:
                is_finished = cursor.take_columns(into, limit)
        except KafkaError as error:
            failure = error
        if len(into) > before:
            last = into[-1].offset if isinstance(into, list) else into.last_offset
            self.next_offset = last + 1
        if failure is not None:
            self._fail(failure)
        elif is_finished:
            self._end_piece(header)

    def _end_piece(self, header: BatchHeader) -> None:
        pieces = self._pieces
        if pieces is None or pieces.is_last or self.next_offset >= self._end_offset:
            self._drop_batch()
            self._pass_batch(header)
        else:
            self._is_packed = True

    def _pass_batch(self, header: BatchHeader) -> None:
        self.next_offset = max(self.next_offset, header.last_offset + 1)

    def _pass_tail(self) -> None:
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
        """Keep the error until the earlier records have been returned."""
        if is_in_plain:
            next_offset = next_offset_after_last(self._view, self._pos, self.next_offset)
        elif self._header is not None:
            next_offset = max(self._header.last_offset, self.next_offset) + 1
        else:
            next_offset = next_offset_after(self._view, self._pos, self.next_offset)
        # Without tracebacks, whose frames refer to this set, a cycle, and to the filled buffer.
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
        self._is_packed = self._is_large = False


def _is_full(into: Into) -> bool:
    return not isinstance(into, list) and into.is_full


def _inflate(max_bytes: int, codec: int, payload: memoryview, magic: int = 2) -> memoryview:
    from aiokafka_lite.records.compression import inflate  # late: see there

    return inflate(Codec(codec), payload, max_bytes, magic=magic)


def decode_all(view: memoryview) -> list[Record]:
    """Return all records of a record set, checked, without control records. Raises as `take`."""
    return list(each_record(view))


def each_record(view: memoryview) -> Iterator[Record]:
    """Yield the records that `decode_all` returns."""
    record_set = RecordSet("", 0, view, fetch_offset=0)
    while records := record_set.take(sys.maxsize):
        yield from records


def end_offset(view: memoryview) -> int | None:
    """Return the offset after all complete batches whose headers are possible, or None."""
    return decoders.current().end_offset(view)


# --- The next readable offset after a bad batch ------------------------------------------------
# Its header may be wrong, so only offsets that evidently belong to the batch are skipped. If the
# broker sends the same batch again, the next offset is skipped, and so on.
def next_offset_after(view: memoryview, pos: int, floor: int) -> int:
    """Return the next offset after the bad batch at `pos`, at least `floor` + 1.

    The evidence, in this order: its own header if the checksum is right, the valid batch that
    follows, a header whose record count and last offset agree. The batch may be incomplete.
    """
    own = peek_header(view, pos)
    if own is None:
        return floor + 1
    is_plausible = floor <= own.last_offset <= MAX_OFFSET  # offsets are not in the checksum
    if not is_plausible or not _is_sound(own, view, pos):
        following = _sound_batch(view, pos + LOG_OVERHEAD + max(own.batch_length, 0))
        if following is not None and following.magic == 2 and following.base_offset > floor:
            return following.base_offset
        if own.magic == 2 and own.last_offset_delta != own.count - 1:
            return floor + 1
    return own.last_offset + 1 if is_plausible else floor + 1


def next_offset_after_last(view: memoryview, end: int, floor: int) -> int:
    """Return the next offset after the batch that ends at `end`, at least `floor` + 1."""
    pos = 0
    while pos < end and (header := read_header(view, pos)) is not None:
        pos += header.size
        if pos == end and header.last_offset >= floor:
            return header.last_offset + 1
    return floor + 1


def _sound_batch(view: memoryview, pos: int) -> BatchHeader | None:
    """Return the header of a complete batch with the right checksum, or None."""
    try:
        header = read_header(view, pos) if pos < len(view) else None
    except KafkaError:
        return None
    return header if header is not None and _is_sound(header, view, pos) else None


def _is_sound(header: BatchHeader, view: memoryview, pos: int) -> bool:
    batch = view[pos : pos + header.size]
    if len(batch) < header.size or header.batch_length < 0:
        return False
    try:
        check_crc(header, batch)
    except KafkaError:
        return False
    return True
