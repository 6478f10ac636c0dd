"""One answered fetch, and each partition's share of it on the way to the application."""

from __future__ import annotations

import asyncio
import copy
from typing import TYPE_CHECKING, TypeAlias

from aiokafka_lite.consumer.assignment.cursor import NO_EPOCH, Cursor
from aiokafka_lite.consumer.buffer.budget import Reservation
from aiokafka_lite.consumer.buffer.delivering import AnyDelivery, Deserialize, raw_record
from aiokafka_lite.errors import DeserializationError, KafkaError
from aiokafka_lite.structs import ConsumerRecord

if TYPE_CHECKING:
    from aiokafka_lite.bad_records import Verdict
    from aiokafka_lite.consumer.buffer.application import Work
    from aiokafka_lite.consumer.buffer.deserialising import Converted
    from aiokafka_lite.records import RecordSet
    from aiokafka_lite.records.decoders import Columns

Record: TypeAlias = ConsumerRecord


class FetchedResponse:
    """An answered fetch: all its partitions' record sets are slices of the same memory.

    So its bytes are given back to the budget when the last of them is used up or dropped.
    """

    __slots__ = ("_open_part_count", "_reservation", "is_taken", "node_id")

    def __init__(self, node_id: int, reservation: Reservation) -> None:
        self.node_id = node_id
        # Whether the application has come for it, so that the next request may be sent.
        self.is_taken = False
        self._reservation = reservation
        self._open_part_count = 0

    @property
    def is_open(self) -> bool:
        """Whether any of its partitions' shares is still in use."""
        return self._open_part_count > 0

    def open_part(self) -> None:
        self._open_part_count += 1

    def close_part(self) -> None:
        self._open_part_count -= 1
        if not self._open_part_count:
            self._reservation.release()

    def account(self, by_bytes: int, batch_bytes: int) -> None:
        """Count bytes that decompression added, or that are gone again; see Reservation."""
        self._reservation.inflated(by_bytes, batch_bytes)


class Chunk:
    """One partition's share of a response; the source of its records, in offset order.

    `decoded` are records ready for the application; it grows by `decode` and shrinks when they
    are handed out. `raw` are those behind them, decoded but not deserialised. `error` is what
    stands behind the last of `decoded`.
    """

    __slots__ = (
        "_inflated_bytes",
        "_is_closed",
        "_raised",
        "_records",
        "decoded",
        "delivery",
        "end_offset",
        "error",
        "held_bytes",
        "inflating",
        "is_sticky",
        "is_undecided",
        "partition",
        "raw",
        "response",
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
        is_sticky: bool = False,
    ) -> None:
        self.partition = partition
        self.delivery = delivery
        self.response = response
        # Offset behind its last whole batch; None: nothing can be fetched beyond it.
        self.end_offset = end_offset
        self.decoded: list[Record] = []
        self.raw: list[Record] = []
        self.error: KafkaError | None = None
        # What a get has raised about the first of `raw`, which the next one tries again.
        self._raised: KafkaError | None = None
        # Whether on_bad_record is still to say what becomes of what `error` is about.
        self.is_undecided = False
        # Whether the error stays until the application seeks, or is raised only once.
        self.is_sticky = is_sticky
        self.inflating: asyncio.Future[None] | None = None
        # The get that awaits the application for it.
        self.work: Work | None = None
        self._records = records
        self._inflated_bytes = 0
        self._is_closed = False
        # What was decompressed for the records in `decoded` and `raw`, at most.
        self.held_bytes = 0
        if response is not None:
            response.open_part()

    @property
    def is_current(self) -> bool:
        """Whether no seek, reset or revocation has dropped it."""
        return not self._is_closed

    @property
    def waiting_error(self) -> KafkaError | None:
        """What a get raises, or has raised and will again, as far as known."""
        return self.error or self._raised

    @property
    def is_exhausted(self) -> bool:
        """Whether it has nothing left to hand out, and no error."""
        if self.decoded or self.raw or self.error is not None:
            return False
        return self._records is None or self._records.is_exhausted

    @property
    def is_error_only(self) -> bool:
        """Whether it carries an error without any records."""
        return self._records is None

    @property
    def can_decode(self) -> bool:
        """Whether `decode`, or the application, may add records."""
        if self.error is not None:
            return self.needs_application
        return bool(self.raw) or (self._records is not None and not self._records.is_exhausted)

    @property
    def needs_application(self) -> bool:
        """Whether the application has to be awaited before more can be added (application.py)."""
        if self.error is not None:
            return self.is_undecided and not self.decoded
        return bool(self.raw) and self.delivery.awaited is not None

    @property
    def position_after(self) -> int:
        """Position once all of `decoded` is handed out."""
        if self.raw:
            return self.raw[0].offset
        if self._records is not None:
            return self._records.next_offset
        return self.partition.fetched if self.end_offset is None else self.end_offset

    @property
    def leader_epoch(self) -> int:
        """Leader epoch of the last batch decoded, -1 if unknown."""
        return NO_EPOCH if self._records is None else self._records.leader_epoch

    @property
    def inflate_estimate_s(self) -> float:
        """About how long the batch that comes next takes to decompress, 0 if it has not to be."""
        return 0.0 if self.raw or self._records is None else self._records.inflate_estimate_s

    @property
    def is_begun(self) -> bool:
        """Whether a part of it waits in memory in the form in which it is handed out."""
        return bool(self.decoded or self.raw or self._inflated_bytes)

    def inflate(self) -> None:
        """Decompress the next batch; runs in a worker thread, changes nothing but the set."""
        try:
            if self._records is not None:
                self._records.inflate()
        except KafkaError:
            pass  # decode() meets it again, behind the records ahead of it

    def decode(self, limit: int) -> None:
        """Add up to `limit` records to `decoded`, or to `raw`, or set `error`."""
        deserialize = self.delivery.deserialize
        if self.raw and deserialize is not None:
            self._deserialize_raw(limit, deserialize)
            return
        if self._records is None:
            return
        if not self.decoded:
            self.held_bytes = 0
        before = self._records.inflated_total_bytes
        try:
            fresh = self._records.take(limit)
        except KafkaError as error:
            self.set_error(error)
            return
        finally:
            self._account_inflated()
            self.held_bytes += self._records.inflated_total_bytes - before
        if deserialize is not None:
            self.raw = fresh
            self._deserialize_raw(limit, deserialize)
        elif self.delivery.awaited is not None:
            self.raw += fresh
        elif self.decoded:
            self.decoded += fresh
        else:
            self.decoded = fresh

    def fill(self, columns: Columns, limit: int) -> int:
        """Add up to `limit` rows to columns instead, or set `error`; return how many were added."""
        if self._records is None:
            return 0
        try:
            return self._records.take_columns(columns, limit)
        except KafkaError as error:
            self.set_error(error)
            return 0
        finally:
            self._account_inflated()

    def pop(self, limit: int | None) -> list[Record]:
        """Remove and return up to `limit` decoded records, all for None."""
        decoded = self.decoded
        if limit is None or limit >= len(decoded):
            self.decoded = []
            self.held_bytes = 0
            return decoded
        self.decoded = decoded[limit:]
        return decoded[:limit]

    def raised(self) -> None:
        """Note that a get raises `error`: the next one tries the same record again."""
        if self.error is None:
            return
        # A copy: the traceback of what is raised, and of its cause, hold whoever has asked.
        error = copy.copy(self.error)
        if self.raw:
            self.error, self._raised = None, error
        else:
            self.error = error
            self.is_undecided = self.delivery.bad.decides(error)

    def _deserialize_raw(self, limit: int, deserialize: Deserialize) -> None:
        done = 0
        error = None
        try:
            for record in self.raw[:limit]:
                deserialize(record)
                done += 1
        except DeserializationError as refused:
            error = refused
        self._move_to_decoded(done, error)

    def accept(self, converted: Converted) -> None:
        """Take what the application's deserialisers made of the first of `raw`."""
        for record, (key, value) in zip(self.raw, converted.pairs, strict=False):
            # With deserialisers a record is of their types.
            record.key = key  # type: ignore[assignment]
            record.value = value  # type: ignore[assignment]
        self._move_to_decoded(len(converted.pairs), converted.error)

    def _move_to_decoded(self, count: int, error: DeserializationError | None) -> None:
        """Move records from `raw` to `decoded`, up to the one that an error is about."""
        self.decoded += self.raw[:count]
        del self.raw[:count]
        self._raised = None
        if error is None:
            return
        # It may be kept for long, by whoever is told of it.
        self.set_error(error.with_traceback(None))
        bad = self.delivery.bad
        if self.is_undecided and bad.handler is None:
            self.settle_bad_record(bad.word, error)

    def set_error(self, error: KafkaError) -> None:
        """Put an error behind the records."""
        self.error = error
        self.is_undecided = self.delivery.bad.decides(error)

    def settle_bad_record(self, verdict: Verdict, error: KafkaError) -> None:
        """Skip or deliver the first of `raw`, which `error` is about, as was decided."""
        record = self.raw.pop(0)
        if isinstance(verdict, ConsumerRecord):
            self.decoded.append(verdict)  # type: ignore[arg-type]  # of the application's types
        elif verdict == "raw":
            self.decoded.append(raw_record(record, error))
        else:
            self.delivery.bad.skipped(error)
        self.error = None

    def _account_inflated(self) -> None:
        if self.response is None or self._records is None:
            return
        inflated_bytes = self._records.inflated_bytes
        if inflated_bytes != self._inflated_bytes:
            self.response.account(inflated_bytes - self._inflated_bytes, inflated_bytes)
            self._inflated_bytes = inflated_bytes

    def close(self) -> None:
        """Give its bytes back to the budget; called once, when it leaves the buffer."""
        self._is_closed = True
        if self.response is None:
            return
        if self._inflated_bytes:
            self.response.account(-self._inflated_bytes, 0)
            self._inflated_bytes = 0
        self.response.close_part()
        self.response = None
