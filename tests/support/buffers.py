"""Fetched data made of real record batches, without a broker."""

from __future__ import annotations

from typing import Literal, NoReturn

from aiokafka_lite import records
from aiokafka_lite.bad_records import OnBadRecord
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.buffer.budget import ByteBudget
from aiokafka_lite.consumer.buffer.buffer import Buffer
from aiokafka_lite.consumer.buffer.chunk import Chunk, FetchedResponse
from aiokafka_lite.consumer.buffer.decode import make_delivery
from aiokafka_lite.consumer.buffer.deserialising import AnyDeserializer
from aiokafka_lite.consumer.config import DEFAULT_MAX_UNCOMMITTED, ConsumerConfig
from aiokafka_lite.consumer.delivery.gets import Gets
from aiokafka_lite.consumer.delivery.ready import ReadyRecords
from aiokafka_lite.consumer.processing.acks import Acks
from aiokafka_lite.records.batch import reseal
from aiokafka_lite.structs import TopicPartition
from tests.support.states import State

A = TopicPartition("t", 0)
B = TopicPartition("t", 1)


def batch(first: int, count: int, *, codec: str = "none", size: int = 3) -> bytes:
    """A batch of `count` records with the offset as key, from offset `first` on."""
    return records.build_batch(
        [(1, b"%d" % offset, b"x" * size, ()) for offset in range(first, first + count)],
        codec=codec,
        base_offset=first,
    )


def with_unknown_codec(view: bytes) -> bytes:
    """Return a batch with a compression that does not exist."""
    content = bytearray(view)
    content[22] |= 7
    reseal(memoryview(content))
    return bytes(content)


class FedByHand:
    """The source of responses that a test makes; notes which were taken."""

    def __init__(self, node_id: int, taken: list[int]) -> None:
        self.node_id = node_id
        self.taken = taken

    def response_taken(self) -> None:
        self.taken.append(self.node_id)


class Buffers:
    """A buffer with its gets, fed by hand instead of by fetchers."""

    def __init__(
        self,
        *assigned: TopicPartition,
        value_deserializer: AnyDeserializer | None = None,
        key_deserializer: AnyDeserializer | None = None,
        on_bad_record: OnBadRecord = "raise",
        # A small batch may be decompressed into a large buffer that is left from another test.
        budget_bytes: int = 1 << 26,
        most_held_bytes: int = 1 << 26,
        ack_mode: Literal["implicit", "explicit"] = "implicit",
        max_uncommitted: int = DEFAULT_MAX_UNCOMMITTED,
    ) -> None:
        self.state = State()
        self.taken: list[int] = []
        self._sources: dict[int, FedByHand] = {}
        self.budget = ByteBudget(budget_bytes, lambda: None)
        config = ConsumerConfig(
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            on_bad_record=on_bad_record,
        )
        self.delivery = make_delivery(config, self.state.events)
        self.error_count = 0
        self.sought_count = 0
        self.buffer = Buffer(
            self.state,
            self.state.reads,
            self.state.gate,
            self.state.observers,
            on_error=self._count_error,
            on_blocked=lambda: None,
            on_sought=self._count_sought,
            budget=self.budget,
            delivery=self.delivery,
            most_held_bytes=most_held_bytes,
        )
        self.ready = ReadyRecords(self.state.core(buffer=self.buffer))
        self.gets = Gets(self.state.core(buffer=self.buffer), self.ready)
        if ack_mode == "explicit":
            acks = Acks(self.state.core(buffer=self.buffer), max_uncommitted, no_transactions)
            self.gets, self.ready = acks, acks.ready
        self.state.assign_from_user(assigned or (A,))
        for tp in self.state.assignment:
            self.state.seek(self.partition(tp), 0)

    def _count_error(self) -> None:
        self.error_count += 1

    def _count_sought(self) -> None:
        self.sought_count += 1

    def partition(self, tp: TopicPartition = A) -> Cursor:
        return self.state.partition(tp)

    def part(self, tp: TopicPartition, view: bytes, response: FetchedResponse) -> Chunk:
        partition = self.partition(tp)
        return Chunk(
            partition,
            self.delivery,
            response=response,
            records=records.RecordSet(
                *tp, memoryview(view), fetch_offset=partition.fetched, may_block=False
            ),
            end_offset=records.end_offset(memoryview(view)),
        )

    def _source(self, node_id: int) -> FedByHand:
        return self._sources.setdefault(node_id, FedByHand(node_id, self.taken))

    def has_untaken(self, node_id: int) -> bool:
        """Whether a response of a node waits that no get has come for."""
        return self.buffer.has_untaken(self._source(node_id))

    def put(self, views: dict[TopicPartition, bytes], node_id: int = 1) -> FetchedResponse:
        """Buffer one response of a broker."""
        size = sum(map(len, views.values()))
        reservation = self.budget.reserve(size, size)
        assert reservation is not None
        reservation.keep(size)
        response = FetchedResponse(self._source(node_id), reservation)
        self.buffer.put(response, [self.part(tp, view, response) for tp, view in views.items()])
        return response

    async def poll(
        self, timeout_s: float | None = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[int]]:
        """The offsets that a poll hands out."""
        found = await self.gets.many((), timeout_s, max_records)
        return {tp: [record.offset for record in batch] for tp, batch in found.items()}


def no_transactions(delivery: object) -> NoReturn:
    raise AssertionError("a buffer alone knows no group")
