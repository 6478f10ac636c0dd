"""One answered fetch, and what it brought of each partition, on the way to the application.

A chunk's state says what has to happen before more of it can be handed out. Whatever it is, the
records in `decoded` can be handed out first:

    PACKED         batches wait to be decoded
    INFLATING      a worker thread decompresses the batch that comes next
    RAW            records wait for keys and values to be made of their bytes
    DESERIALISING  a get awaits the application's deserialisers for them
    UNDECIDED      an error is met, and on_bad_record is to say what becomes of it
    DECIDING       a get awaits what on_bad_record says
    FAILED         an error is raised by every get that comes to it
    EXHAUSTED      nothing comes behind `decoded`
    CLOSED         it has left the buffer, used up or dropped
"""

from __future__ import annotations

import asyncio
import copy
import enum
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from aiokafka_lite.consumer.assignment.cursor import Cursor, Epochs
from aiokafka_lite.consumer.buffer.budget import Reservation
from aiokafka_lite.errors import DeserializationError, IllegalStateError, KafkaError
from aiokafka_lite.structs import ConsumerRecord

if TYPE_CHECKING:
    from aiokafka_lite.bad_records import Verdict
    from aiokafka_lite.consumer.buffer.decode import AnyDelivery, ApplicationWork, Deserialize
    from aiokafka_lite.consumer.buffer.deserialising import Converted
    from aiokafka_lite.records import RecordSet
    from aiokafka_lite.records.decoders import Columns

Record: TypeAlias = ConsumerRecord
# Under which name a record keeps the bytes of its key and value.
SERIALIZED: Final = "_serialized"


class ResponseSource(Protocol):
    """Who has fetched a response."""

    @property
    def node_id(self) -> int: ...

    def response_taken(self) -> None:
        """Note that the application has come for the response: the next may be asked for."""


class FetchedResponse:
    """An answered fetch: all its partitions' record sets are slices of the same memory.

    So its bytes are given back to the budget when the last of its chunks is used up or dropped.
    """

    __slots__ = ("_open_chunk_count", "_reservation", "is_taken", "source")

    def __init__(self, source: ResponseSource, reservation: Reservation) -> None:
        self.source = source
        # Whether the application has come for it, so that the next request may be sent.
        self.is_taken = False
        self._reservation = reservation
        self._open_chunk_count = 0

    @property
    def is_open(self) -> bool:
        """Whether any of its chunks is still in use."""
        return self._open_chunk_count > 0

    def open_chunk(self) -> None:
        """Count a chunk that uses its memory."""
        self._open_chunk_count += 1

    def close_chunk(self) -> None:
        """Count a chunk that does so no more."""
        self._open_chunk_count -= 1
        if not self._open_chunk_count:
            self._reservation.release()

    def account(self, by_bytes: int, batch_bytes: int) -> None:
        """Count bytes that decompression added, or that are gone again; see Reservation."""
        self._reservation.inflated(by_bytes, batch_bytes)


class ChunkState(enum.Enum):
    """What comes behind the records that are decoded; see the module's docstring."""

    # Looked up with each record of a trickle: an enum's own hash is a function in Python.
    __hash__ = object.__hash__

    PACKED = enum.auto()
    INFLATING = enum.auto()
    RAW = enum.auto()
    DESERIALISING = enum.auto()
    UNDECIDED = enum.auto()
    DECIDING = enum.auto()
    FAILED = enum.auto()
    EXHAUSTED = enum.auto()
    CLOSED = enum.auto()


# Compared on every get: as names of the module they cost no look-up in the class.
PACKED: Final = ChunkState.PACKED
RAW: Final = ChunkState.RAW
EXHAUSTED: Final = ChunkState.EXHAUSTED
CLOSED: Final = ChunkState.CLOSED

# What may follow where a record, or the error in its place, was dealt with.
_GOING_ON: Final = frozenset({ChunkState.PACKED, ChunkState.RAW, ChunkState.EXHAUSTED})
_AT_AN_ERROR: Final = frozenset({ChunkState.UNDECIDED, ChunkState.FAILED})
_AFTER_DECODING: Final = frozenset({*_GOING_ON, *_AT_AN_ERROR, ChunkState.CLOSED})

LEGAL_MOVES: Final[Mapping[ChunkState, frozenset[ChunkState]]] = MappingProxyType(
    {
        ChunkState.PACKED: _AFTER_DECODING | {ChunkState.INFLATING},
        ChunkState.INFLATING: frozenset({ChunkState.PACKED, ChunkState.CLOSED}),
        ChunkState.RAW: _AFTER_DECODING | {ChunkState.DESERIALISING},
        ChunkState.DESERIALISING: _AFTER_DECODING,
        ChunkState.UNDECIDED: frozenset({ChunkState.DECIDING, ChunkState.CLOSED}),
        # A record is skipped or delivered raw; a batch that is skipped is fetched past. Back to
        # UNDECIDED where the get was cancelled, or on_bad_record has raised.
        ChunkState.DECIDING: _AFTER_DECODING,
        # Raised: the record is tried again, or on_bad_record is asked again.
        ChunkState.FAILED: frozenset({ChunkState.RAW, ChunkState.UNDECIDED, ChunkState.CLOSED}),
        ChunkState.EXHAUSTED: frozenset({ChunkState.CLOSED}),
        ChunkState.CLOSED: frozenset(),
    }
)
_STANDING: Final = frozenset({*_AT_AN_ERROR, ChunkState.DECIDING})
_DECODABLE: Final = frozenset(
    {ChunkState.PACKED, ChunkState.INFLATING, ChunkState.RAW, ChunkState.DESERIALISING}
)


class Chunk:
    """What one response brought of one partition: the source of its records, in offset order.

    `decoded` are records ready for the application; it grows by `decode` and shrinks when they
    are handed out. `raw` are those behind them, decoded but not deserialised. `error` is what is
    known to be wrong with what comes next: it stands there, or was raised and is tried again.
    """

    __slots__ = (
        "_inflated_bytes",
        "_inflated_total_bytes",
        "_records",
        "decoded",
        "delivery",
        "end_offset",
        "epochs",
        "error",
        "held_bytes",
        "inflating",
        "is_sticky",
        "partition",
        "raw",
        "response",
        "state",
        "work",
    )

    def __init__(
        self,
        partition: Cursor,
        delivery: AnyDelivery,
        *,
        response: FetchedResponse | None = None,
        records: RecordSet | None = None,
        end_offset: int | None = None,
        error: KafkaError | None = None,
        is_sticky: bool = False,
    ) -> None:
        self.partition = partition
        self.delivery = delivery
        self.response = response
        # Offset behind its last whole batch; None: nothing can be fetched beyond it.
        self.end_offset = end_offset
        self.decoded: list[Record] = []
        self.raw: list[Record] = []
        self.error = error
        # Whether the error stays until the application seeks, or is raised only once.
        self.is_sticky = is_sticky
        # The thread's work, while INFLATING; gets that wait for it share it.
        self.inflating: asyncio.Future[None] | None = None
        # The get that is DESERIALISING or DECIDING.
        self.work: ApplicationWork | None = None
        self._records = records
        # The (base offset, leader epoch) of batches whose epoch is not that of the one before.
        self.epochs: Epochs = () if records is None else records.epochs
        # Of the batch at hand, and of all batches so far.
        self._inflated_bytes = 0
        self._inflated_total_bytes = 0
        # What was decompressed for the records in `decoded` and `raw`, at most.
        self.held_bytes = 0
        self.state = PACKED
        if error is not None:
            is_undecided = delivery.bad.decides(error)
            self.state = ChunkState.UNDECIDED if is_undecided else ChunkState.FAILED
        elif records is None:
            self.state = EXHAUSTED
        if response is not None:
            response.open_chunk()

    # --- Its state ------------------------------------------------------------------------
    def _move(self, new: ChunkState) -> None:
        """Change the state.

        Raises:
            IllegalStateError: The table of legal moves has no such step.
        """
        if new not in LEGAL_MOVES[self.state]:
            raise IllegalStateError(
                f"a chunk of {self.partition.tp} cannot change from state {self.state.name} to "
                f"{new.name}"
            )
        self.state = new

    @property
    def is_current(self) -> bool:
        """Whether no seek, reset or revocation has dropped it."""
        return self.state is not CLOSED

    @property
    def failure(self) -> KafkaError | None:
        """The error that stands behind its records, raised or to be decided on."""
        return None if self.error is None or self.state not in _STANDING else self.error

    @property
    def is_undecided(self) -> bool:
        """Whether on_bad_record is still to say what becomes of its error."""
        return self.state is ChunkState.UNDECIDED or self.state is ChunkState.DECIDING

    @property
    def is_exhausted(self) -> bool:
        """Whether it has nothing left to hand out, and no error."""
        if self.decoded:
            return False
        if self.state is PACKED:
            self._go_on()  # perhaps nobody has looked yet what there is
        return self.state is EXHAUSTED

    @property
    def is_error_only(self) -> bool:
        """Whether it carries an error without any records."""
        return self._records is None and not self.raw

    @property
    def can_decode(self) -> bool:
        """Whether `decode`, or the application, may add records."""
        return self.state in _DECODABLE or (self.is_undecided and not self.decoded)

    @property
    def needs_application(self) -> bool:
        """Whether the application has to be awaited before more can be added."""
        if self.state is RAW:
            return self.delivery.awaited is not None
        if self.state is ChunkState.UNDECIDED:
            return not self.decoded
        return self.state is ChunkState.DESERIALISING or self.state is ChunkState.DECIDING

    @property
    def position_after(self) -> int:
        """Position once all of `decoded` is handed out."""
        if self.raw:
            return self.raw[0].offset
        if self._records is not None:
            return self._records.next_offset
        return self.partition.fetched if self.end_offset is None else self.end_offset

    @property
    def is_begun(self) -> bool:
        """Whether a part of it waits in memory in the form in which it is handed out."""
        return bool(self.decoded or self.raw or self._inflated_bytes)

    # --- Decompressing --------------------------------------------------------------------
    @property
    def inflate_estimate_s(self) -> float:
        """About how long the batch that comes next takes to decompress, 0 if it has not to be."""
        return 0.0 if self.raw or self._records is None else self._records.inflate_estimate_s

    def begin_inflating(self, in_thread: asyncio.Future[None]) -> None:
        """Note that a thread calls `inflate`, and what tells of its end."""
        self._move(ChunkState.INFLATING)
        self.inflating = in_thread

    def inflate(self) -> None:
        """Decompress the next batch; runs in a worker thread, changes nothing but the set."""
        try:
            if self._records is not None:
                self._records.inflate()
        except KafkaError:
            pass  # decode() meets it again, behind the records ahead of it

    def end_inflating(self) -> None:
        """Note that the thread is done."""
        self.inflating = None
        if self.state is ChunkState.INFLATING:  # not dropped meanwhile
            self._move(PACKED)

    def _account_inflated(self, records: RecordSet) -> None:
        """Count what decompression has added since the last time."""
        total_bytes = records.inflated_total_bytes
        self.held_bytes += total_bytes - self._inflated_total_bytes
        self._inflated_total_bytes = total_bytes
        inflated_bytes = records.inflated_bytes
        if self.response is not None and inflated_bytes != self._inflated_bytes:
            self.response.account(inflated_bytes - self._inflated_bytes, inflated_bytes)
            self._inflated_bytes = inflated_bytes

    # --- Decoding -------------------------------------------------------------------------
    def decode(self, limit: int) -> None:
        """Add up to `limit` records to `decoded`, or to `raw`, or meet an error."""
        deserialize = self.delivery.deserialize
        if self.raw and deserialize is not None:
            self._deserialize_raw(limit, deserialize)
            return
        records = self._records
        if records is None or self.state is not PACKED:
            return
        if not self.decoded:
            self.held_bytes = 0
        failure: KafkaError | None = None
        fresh: list[Record] = []
        try:
            fresh = records.take(limit)
        except KafkaError as error:
            failure = error
        if records.inflated_total_bytes:
            self._account_inflated(records)
        if failure is not None:
            self._meet(failure)
        elif deserialize is not None:
            self.raw = fresh
            self._deserialize_raw(limit, deserialize)
        else:
            if self.delivery.awaited is not None:
                self.raw = fresh
            elif self.decoded:
                self.decoded += fresh
            else:
                self.decoded = fresh
            self._go_on()

    def fill(self, columns: Columns, limit: int) -> int:
        """Add up to `limit` rows to columns instead, or meet an error; return how many."""
        records = self._records
        assert records is not None  # noqa: S101 -- it is PACKED
        failure: KafkaError | None = None
        added = 0
        try:
            added = records.take_columns(columns, limit)
        except KafkaError as error:
            failure = error
        finally:
            if records.inflated_total_bytes:
                self._account_inflated(records)
        if failure is not None:
            self._meet(failure)
        else:
            self._go_on()
        return added

    def _go_on(self) -> None:
        """Look what comes next, now that a record, or an error in its place, was dealt with."""
        records = self._records
        if self.raw:
            if self.state is not ChunkState.DESERIALISING and self.state is not RAW:
                self._move(RAW)
        elif records is None or records.is_exhausted:
            self._move(EXHAUSTED)
        elif self.state is not PACKED:
            self._move(PACKED)

    def _meet(self, error: KafkaError) -> None:
        """Let an error stand behind the records."""
        self.error = error
        is_undecided = self.delivery.bad.decides(error)
        self._move(ChunkState.UNDECIDED if is_undecided else ChunkState.FAILED)

    def pop(self, limit: int | None) -> list[Record]:
        """Remove and return up to `limit` decoded records, all for None."""
        decoded = self.decoded
        if limit is None or limit >= len(decoded):
            self.decoded = []
            self.held_bytes = 0
            return decoded
        self.decoded = decoded[limit:]
        return decoded[:limit]

    # --- Deserialising --------------------------------------------------------------------
    def _deserialize_raw(self, limit: int, deserialize: Deserialize) -> None:
        done = 0
        error = None
        if self.delivery.keeps_serialized:
            keep_serialized(self.raw[:limit])
        try:
            for record in self.raw[:limit]:
                deserialize(record)
                done += 1
        except DeserializationError as refused:
            error = refused
        self._move_to_decoded(done, error)

    def begin_deserialising(self) -> None:
        """Note that a get awaits the application's deserialisers."""
        self._move(ChunkState.DESERIALISING)

    def accept(self, converted: Converted) -> None:
        """Take what the application's deserialisers made of the first of `raw`."""
        if self.delivery.keeps_serialized:
            keep_serialized(self.raw)
        for record, (key, value) in zip(self.raw, converted.pairs, strict=False):
            # With deserialisers a record is of their types.
            record.key = key  # type: ignore[assignment]
            record.value = value  # type: ignore[assignment]
        self._move_to_decoded(len(converted.pairs), converted.error)

    def _move_to_decoded(self, count: int, error: DeserializationError | None) -> None:
        """Move records from `raw` to `decoded`, up to the one that an error is about."""
        if self.state is ChunkState.CLOSED:
            return  # a deserialiser has moved the partition
        self.decoded += self.raw[:count]
        del self.raw[:count]
        self.error = None
        if error is None:
            self._go_on()
            return
        # It may be kept for long, by whoever is told of it.
        error = error.with_traceback(None)
        bad = self.delivery.bad
        if bad.handler is None and bad.decides(error):
            self.settle_bad_record(bad.word, error)
        else:
            self._meet(error)

    # --- Errors ---------------------------------------------------------------------------
    def raised(self) -> None:
        """Note that a get raises its error: the next one tries the same record again."""
        if self.error is None or self.state is not ChunkState.FAILED:
            return
        # A copy: the traceback of what is raised, and of its cause, hold whoever has asked.
        self.error = copy.copy(self.error)
        if self.raw:
            self._move(RAW)
        elif self.delivery.bad.decides(self.error):
            self._move(ChunkState.UNDECIDED)

    def begin_deciding(self) -> None:
        """Note that a get awaits what on_bad_record says."""
        self._move(ChunkState.DECIDING)

    def end_work(self) -> None:
        """Note that the get awaits the application no more, whatever came of it."""
        self.work = None
        if self.state is ChunkState.DESERIALISING:
            self._move(RAW)
        elif self.state is ChunkState.DECIDING:
            self._move(ChunkState.UNDECIDED)

    def fail(self) -> None:
        """Have the error raised, as on_bad_record says."""
        self._move(ChunkState.FAILED)

    def settle_bad_record(self, verdict: Verdict, error: KafkaError) -> None:
        """Skip or deliver the first of `raw`, which `error` is about, as was decided."""
        record = self.raw.pop(0)
        bad = self.delivery.bad
        if isinstance(verdict, ConsumerRecord):
            self.decoded.append(verdict)  # type: ignore[arg-type]  # of the application's types
        elif verdict == "raw":
            self.decoded.append(bad.raw_record(record, error))
        else:
            bad.skipped(error)
        self.error = None
        if self.state is not CLOSED:
            self._go_on()

    def close(self) -> None:
        """Give its bytes back to the budget; called once, when it leaves the buffer."""
        self._move(CLOSED)
        if self.response is None:
            return
        if self._inflated_bytes:
            self.response.account(-self._inflated_bytes, 0)
        self.response.close_chunk()
        self.response = None


def keep_serialized(records: Iterable[Record]) -> None:
    """Keep the bytes of keys and values beside what deserialisers are going to make of them."""
    for record in records:
        setattr(record, SERIALIZED, (record.key, record.value))


def serialized(record: Record) -> tuple[bytes | None, bytes | None]:
    """Return the bytes of a record's key and value, where they were kept, or are no others."""
    kept: tuple[bytes | None, bytes | None] | None = getattr(record, SERIALIZED, None)
    return (record.key, record.value) if kept is None else kept


def chunk_of(
    partition: Cursor,
    delivery: AnyDelivery,
    records: list[Record],
    end_offset: int,
    epochs: tuple[tuple[int, int], ...],
) -> Chunk:
    """Return a chunk of records that are decoded already; a read calls the deserialisers."""
    chunk = Chunk(partition, delivery, end_offset=end_offset)
    if delivery.has_deserializers:
        chunk.raw, chunk.state = records, RAW
    else:
        chunk.decoded = records
    chunk.epochs = epochs
    return chunk
