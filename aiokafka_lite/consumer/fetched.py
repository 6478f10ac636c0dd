"""One answered fetch, and each partition's share of it on the way to the application."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from aiokafka_lite.consumer.budget import Reservation
from aiokafka_lite.consumer.config import Deserializer
from aiokafka_lite.consumer.state import NO_EPOCH, PartitionState
from aiokafka_lite.errors import DeserializationError, KafkaError
from aiokafka_lite.structs import ConsumerRecord, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.records import RecordSet
    from aiokafka_lite.records.decoders import Columns

Record = ConsumerRecord[bytes, bytes]
Deserialize = Callable[[Record], None]


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

    def account(self, by_bytes: int) -> None:
        """Count bytes that decompression added, or that are gone again."""
        self._reservation.resize(self._reservation.size_bytes + by_bytes)


class FetchedPartition:
    """One partition's share of a response; the source of its records, in offset order.

    `decoded` are records ready for the application; it grows by `decode` and shrinks when they
    are handed out. `error` is what stands behind the last of them.
    """

    __slots__ = (
        "_deserialize",
        "_inflated_bytes",
        "_raw",
        "_records",
        "decoded",
        "end_offset",
        "error",
        "inflating",
        "is_sticky",
        "partition",
        "response",
        "tag",
    )

    def __init__(
        self,
        partition: PartitionState,
        *,
        response: FetchedResponse | None = None,
        records: RecordSet | None = None,
        end_offset: int | None = None,
        deserialize: Deserialize | None = None,
        error: KafkaError | None = None,
        is_sticky: bool = False,
    ) -> None:
        self.partition = partition
        self.tag = partition.tag
        self.response = response
        # Offset behind its last whole batch; None: nothing can be fetched beyond it.
        self.end_offset = end_offset
        self.decoded: list[Record] = []
        self.error = error
        # Whether the error stays until the application seeks, or is raised only once.
        self.is_sticky = is_sticky
        self.inflating: asyncio.Future[None] | None = None
        self._records = records
        self._deserialize = deserialize
        # Decoded, but not yet through the deserialisers.
        self._raw: list[Record] = []
        self._inflated_bytes = 0
        if response is not None:
            response.open_part()

    @property
    def is_current(self) -> bool:
        """Whether no seek, reset or revocation has made it stale."""
        return self.tag == self.partition.tag

    @property
    def is_exhausted(self) -> bool:
        """Whether it has nothing left to hand out, and no error."""
        if self.decoded or self._raw or self.error is not None:
            return False
        return self._records is None or self._records.is_exhausted

    @property
    def is_error_only(self) -> bool:
        """Whether it carries an error without any records."""
        return self._records is None

    @property
    def can_decode(self) -> bool:
        """Whether `decode` may add records."""
        if self.error is not None:
            return False
        return bool(self._raw) or (self._records is not None and not self._records.is_exhausted)

    @property
    def position_after(self) -> int:
        """Position once all of `decoded` is handed out."""
        if self._raw:
            return self._raw[0].offset
        if self._records is not None:
            return self._records.next_offset
        return self.partition.fetched

    @property
    def leader_epoch(self) -> int:
        """Leader epoch of the last batch decoded, -1 if unknown."""
        return NO_EPOCH if self._records is None else self._records.leader_epoch

    @property
    def inflate_estimate_s(self) -> float:
        """About how long the batch that comes next takes to decompress, 0 if it has not to be."""
        return 0.0 if self._raw or self._records is None else self._records.inflate_estimate_s

    def inflate(self) -> None:
        """Decompress the next batch; runs in a worker thread, changes nothing but the set."""
        try:
            if self._records is not None:
                self._records.inflate()
        except KafkaError:
            pass  # decode() meets it again, behind the records ahead of it

    def decode(self, limit: int) -> None:
        """Add up to `limit` records to `decoded`, or set `error`."""
        if self._raw and self._deserialize is not None:
            self._deserialize_raw(limit, self._deserialize)
            return
        if self._records is None:
            return
        try:
            fresh = self._records.take(limit)
        except KafkaError as error:
            self.error = error
            return
        finally:
            self._account_inflated()
        if self._deserialize is not None:
            self._raw = fresh
            self._deserialize_raw(limit, self._deserialize)
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
            self.error = error
            return 0
        finally:
            self._account_inflated()

    def pop(self, limit: int | None) -> list[Record]:
        """Remove and return up to `limit` decoded records, all for None."""
        decoded = self.decoded
        if limit is None or limit >= len(decoded):
            self.decoded = []
            return decoded
        self.decoded = decoded[limit:]
        return decoded[:limit]

    def retry(self) -> None:
        """Forget a deserialiser's error, so that the next get tries the same record again."""
        if self._raw:
            self.error = None

    def _deserialize_raw(self, limit: int, deserialize: Deserialize) -> None:
        done = 0
        try:
            for record in self._raw[:limit]:
                deserialize(record)
                done += 1
        except DeserializationError as error:
            self.error = error
        self.decoded += self._raw[:done]
        del self._raw[:done]

    def _account_inflated(self) -> None:
        if self.response is None or self._records is None:
            return
        inflated_bytes = self._records.inflated_bytes
        if inflated_bytes != self._inflated_bytes:
            self.response.account(inflated_bytes - self._inflated_bytes)
            self._inflated_bytes = inflated_bytes

    def close(self) -> None:
        """Give its bytes back to the budget; called once, when it leaves the queue."""
        if self.response is None:
            return
        if self._inflated_bytes:
            self.response.account(-self._inflated_bytes)
            self._inflated_bytes = 0
        self.response.close_part()
        self.response = None


def make_deserialize(
    key_deserializer: Deserializer | None, value_deserializer: Deserializer | None
) -> Deserialize | None:
    """Return what replaces a record's key and value in place; None if nothing has to.

    A record whose deserialiser raises is left as it was, to be tried again.
    """
    if key_deserializer is None and value_deserializer is None:
        return None

    def deserialize(record: Record) -> None:
        key: object = record.key
        value: object = record.value
        try:
            if key_deserializer is not None:
                key = key_deserializer(record.key)
            if value_deserializer is not None:
                value = value_deserializer(record.value)
        except Exception as error:  # whatever the user's code raises
            raise bad_record(record, error) from error
        # With deserialisers a record is of their types.
        record.key = key  # type: ignore[assignment]
        record.value = value  # type: ignore[assignment]

    return deserialize


def bad_record(record: Record, cause: BaseException) -> DeserializationError:
    """Return the error for a record that a deserialiser refused."""
    error = DeserializationError(
        f"record {record.topic}/{record.partition} at offset {record.offset} cannot be "
        f"deserialised: {cause!r}; seek past it, or mend the deserialiser"
    ).at(TopicPartition(record.topic, record.partition), record.offset)
    error.record = record
    return error
