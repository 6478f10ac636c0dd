"""A fetched response, and its records of each partition until they are returned.

The state of a chunk is about the records after `decoded`, which can be returned in any state:

    PACKED         batches wait to be decoded
    INFLATING      a worker thread decompresses the next batch
    RAW            records wait to be deserialised
    DESERIALISING  a read awaits the application's deserialisers
    UNDECIDED      on_bad_record has to decide about an error
    DECIDING       a read awaits on_bad_record
    FAILED         reads raise an error
    EXHAUSTED      no records follow
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
    from aiokafka_lite.consumer.buffer.decode import ApplicationWork, Delivery, Deserialize
    from aiokafka_lite.consumer.buffer.deserialising import Converted
    from aiokafka_lite.records import RecordSet
    from aiokafka_lite.records.decoders import Columns

Record: TypeAlias = ConsumerRecord
# The attribute that keeps the bytes of a record's key and value.
SERIALIZED: Final = "_serialized"


class ResponseSource(Protocol):
    @property
    def node_id(self) -> int: ...

    def response_taken(self) -> None:
        """Note that a read has asked for the response: the next request may be sent."""


class FetchedResponse:
    """A response. Its bytes return to the budget when the last of its chunks is closed."""

    def __init__(self, source: ResponseSource, reservation: Reservation) -> None:
        self.source = source
        # Whether a read has asked for it, so that the next request may be sent.
        self.is_taken = False
        self._reservation = reservation
        self._open_chunk_count = 0

    @property
    def is_open(self) -> bool:
        return self._open_chunk_count > 0

    def open_chunk(self) -> None:
        self._open_chunk_count += 1

    def close_chunk(self) -> None:
        self._open_chunk_count -= 1
        if not self._open_chunk_count:
            self._reservation.release()

    def account(self, by_bytes: int, batch_bytes: int) -> None:
        """Count decompressed bytes that were added or freed; see Reservation."""
        self._reservation.inflated(by_bytes, batch_bytes)


class ChunkState(enum.Enum):
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


# Compared on every read: names of the module cost no look-up in the class.
PACKED: Final = ChunkState.PACKED
RAW: Final = ChunkState.RAW
EXHAUSTED: Final = ChunkState.EXHAUSTED
CLOSED: Final = ChunkState.CLOSED

# States after a record, or the error in its place, was processed.
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
        # A record is skipped or delivered raw, and a bad batch is skipped by the next fetch.
        # UNDECIDED again if the read was cancelled, or on_bad_record has raised.
        ChunkState.DECIDING: _AFTER_DECODING,
        # After the error was raised, the record is retried, or on_bad_record is called again.
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
    """The records of one partition in one response, in offset order.

    `decoded` are records ready to be returned. `raw` are the next ones, which are not deserialised
    yet. `error` is about the record after these; it may have been raised already.
    """

    def __init__(
        self,
        partition: Cursor,
        delivery: Delivery,
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
        # Offset after its last whole batch; None: no further fetch is possible.
        self.end_offset = end_offset
        self.decoded: list[Record] = []
        self.raw: list[Record] = []
        self.error = error
        # The error stays until the application seeks; others are raised once.
        self.is_sticky = is_sticky
        # The thread's result, while INFLATING; waiting reads share it.
        self.inflating: asyncio.Future[None] | None = None
        # The read that is DESERIALISING or DECIDING.
        self.work: ApplicationWork | None = None
        self._records = records
        # The (base offset, leader epoch) of batches whose epoch is not that of the one before.
        self.epochs: Epochs = () if records is None else records.epochs
        # Decompressed bytes of the current batch, and of all batches so far.
        self._inflated_bytes = 0
        self._inflated_total_bytes = 0
        # At most this much was decompressed for the records in `decoded` and `raw`.
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
        return None if self.error is None or self.state not in _STANDING else self.error

    @property
    def is_undecided(self) -> bool:
        return self.state is ChunkState.UNDECIDED or self.state is ChunkState.DECIDING

    @property
    def is_exhausted(self) -> bool:
        if self.decoded:
            return False
        if self.state is PACKED:
            self._go_on()  # the next batch may not have been looked for yet
        return self.state is EXHAUSTED

    @property
    def is_error_only(self) -> bool:
        """Whether it has an error without any records."""
        return self._records is None and not self.raw

    @property
    def can_decode(self) -> bool:
        """Whether `decode`, or the application, may add records."""
        return self.state in _DECODABLE or (self.is_undecided and not self.decoded)

    @property
    def needs_application(self) -> bool:
        """Whether the application has to be awaited before records can be added."""
        if self.state is RAW:
            return self.delivery.awaited is not None
        if self.state is ChunkState.UNDECIDED:
            return not self.decoded
        return self.state is ChunkState.DESERIALISING or self.state is ChunkState.DECIDING

    def position_after(self) -> int:
        if self.raw:
            return self.raw[0].offset
        if self._records is not None:
            return self._records.next_offset
        return self.partition.fetched if self.end_offset is None else self.end_offset

    @property
    def is_begun(self) -> bool:
        """Whether memory holds decoded or decompressed parts of it."""
        return bool(self.decoded or self.raw or self._inflated_bytes)

    # --- Decompressing --------------------------------------------------------------------
    @property
    def inflate_estimate_s(self) -> float:
        """Estimated seconds to decompress the next batch, 0 if that is not needed."""
        return 0.0 if self.raw or self._records is None else self._records.inflate_estimate_s

    @property
    def is_light(self) -> bool:
        """Whether more of its records can be returned without decompressing another batch."""
        return self.is_begun or not self.inflate_estimate_s

    def begin_inflating(self, in_thread: asyncio.Future[None]) -> None:
        self._move(ChunkState.INFLATING)
        self.inflating = in_thread

    def inflate(self) -> None:
        """Decompress the next batch; called in a worker thread, changes only the record set."""
        try:
            if self._records is not None:
                self._records.inflate()
        except KafkaError:
            pass  # decode() raises it again, after the records before it

    def end_inflating(self) -> None:
        self.inflating = None
        if self.state is ChunkState.INFLATING:  # else it was dropped
            self._move(PACKED)

    def _account_inflated(self, records: RecordSet) -> None:
        total_bytes = records.inflated_total_bytes
        self.held_bytes += total_bytes - self._inflated_total_bytes
        self._inflated_total_bytes = total_bytes
        inflated_bytes = records.inflated_bytes
        if self.response is not None and inflated_bytes != self._inflated_bytes:
            self.response.account(inflated_bytes - self._inflated_bytes, inflated_bytes)
            self._inflated_bytes = inflated_bytes

    # --- Decoding -------------------------------------------------------------------------
    def decode(self, limit: int) -> None:
        """Add up to `limit` records to `decoded`, or to `raw`, or note an error."""
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
        """Add up to `limit` rows to columns, or note an error; return the number of rows."""
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
        """Set the state after a record, or an error in its place, was processed."""
        records = self._records
        if self.raw:
            if self.state is not ChunkState.DESERIALISING and self.state is not RAW:
                self._move(RAW)
        elif records is None or records.is_exhausted:
            self._move(EXHAUSTED)
        elif self.state is not PACKED:
            self._move(PACKED)

    def _meet(self, error: KafkaError) -> None:
        self.error = error
        is_undecided = self.delivery.bad.decides(error)
        self._move(ChunkState.UNDECIDED if is_undecided else ChunkState.FAILED)

    def pop(self, limit: int | None) -> list[Record]:
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
        finally:  # after KeyboardInterrupt, too: no record is deserialised twice
            self._move_to_decoded(done, error)

    def begin_deserialising(self) -> None:
        self._move(ChunkState.DESERIALISING)

    def accept(self, converted: Converted) -> None:
        """Take the deserialised first records of `raw`."""
        if self.delivery.keeps_serialized:
            keep_serialized(self.raw)
        for record, (key, value) in zip(self.raw, converted.pairs, strict=False):
            # With deserialisers a record is of their types.
            record.key = key  # type: ignore[assignment]
            record.value = value  # type: ignore[assignment]
        self._move_to_decoded(len(converted.pairs), converted.error)

    def _move_to_decoded(self, count: int, error: DeserializationError | None) -> None:
        """Move records from `raw` to `decoded`, up to the one with an error."""
        if self.state is ChunkState.CLOSED:
            return  # a deserialiser has moved the partition
        self.decoded += self.raw[:count]
        del self.raw[:count]
        self.error = None
        if error is None:
            self._go_on()
            return
        # The error may be kept for long: drop its frames.
        error = error.with_traceback(None)
        bad = self.delivery.bad
        if bad.handler is None and bad.decides(error):
            self.settle_bad_record(bad.word, error)
        else:
            self._meet(error)

    # --- Errors ---------------------------------------------------------------------------
    def raised(self) -> None:
        """Note that a read raises its error: the next one tries the same record again."""
        if self.error is None or self.state is not ChunkState.FAILED:
            return
        # A copy: the tracebacks of a raised error and its cause hold the caller's frames.
        self.error = copy.copy(self.error)
        if self.raw:
            self._move(RAW)
        elif self.delivery.bad.decides(self.error):
            self._move(ChunkState.UNDECIDED)

    def begin_deciding(self) -> None:
        self._move(ChunkState.DECIDING)

    def end_work(self) -> None:
        """Note that the read no longer awaits the application, in any case."""
        self.work = None
        if self.state is ChunkState.DESERIALISING:
            self._move(RAW)
        elif self.state is ChunkState.DECIDING:
            self._move(ChunkState.UNDECIDED)

    def fail(self) -> None:
        self._move(ChunkState.FAILED)

    def settle_bad_record(self, verdict: Verdict, error: KafkaError) -> None:
        """Skip or deliver the first of `raw`, to which `error` belongs."""
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
        """Return its bytes to the budget; called once, when it leaves the buffer."""
        self._move(CLOSED)
        if self.response is None:
            return
        if self._inflated_bytes:
            self.response.account(-self._inflated_bytes, 0)
        self.response.close_chunk()
        self.response = None


def keep_serialized(records: Iterable[Record]) -> None:
    for record in records:
        setattr(record, SERIALIZED, (record.key, record.value))


def serialized(record: Record) -> tuple[bytes | None, bytes | None]:
    """Return the bytes of a record's key and value: kept ones, or its present ones."""
    kept: tuple[bytes | None, bytes | None] | None = getattr(record, SERIALIZED, None)
    return (record.key, record.value) if kept is None else kept


def chunk_of(
    partition: Cursor,
    delivery: Delivery,
    records: list[Record],
    end_offset: int,
    epochs: tuple[tuple[int, int], ...],
    is_raw: bool,
) -> Chunk:
    """Return a chunk of decoded records. If it `is_raw`, a read calls the deserialisers."""
    chunk = Chunk(partition, delivery, end_offset=end_offset)
    if is_raw:
        chunk.raw, chunk.state = records, RAW
    else:
        chunk.decoded = records
    chunk.epochs = epochs
    return chunk
