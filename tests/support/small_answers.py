"""Fetching over a connection whose bytes a test writes, with its state told field by field."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final

import pytest

from aiokafka_lite.client.config import Address, ClientConfig
from aiokafka_lite.client.connection import Connection
from aiokafka_lite.client.lanes import Lane
from aiokafka_lite.client.versions import ApiVersions
from aiokafka_lite.consumer.assignment.cursor import Cursor, Loan
from aiokafka_lite.consumer.buffer.chunk import Record
from aiokafka_lite.consumer.buffer.waiter import RecordWaiter
from aiokafka_lite.consumer.consumer import NO_RECORDS
from aiokafka_lite.consumer.delivery import ready
from aiokafka_lite.consumer.fetching.counts import NodeCounts
from aiokafka_lite.consumer.fetching.session import LAST_EPOCH
from aiokafka_lite.consumer.fetching.source import Source
from aiokafka_lite.errors import KafkaConnectionError
from aiokafka_lite.protocol.framing import decode_request, encode_response
from aiokafka_lite.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from aiokafka_lite.structs import TopicPartition
from tests.support import tuning
from tests.support.connecting import report_bug
from tests.support.extensions import fields_of
from tests.support.frames import request_in
from tests.support.iterations import ITERATIONS, ReaderMethods
from tests.support.scripted_sources import TOPIC_ID, Fetching, ScriptedCluster, ScriptedPool, view

SESSION_ID: Final = 77
NODE_ID: Final = 1


class MemoryTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_closed = False
        self.error: OSError | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.error is not None:
            raise self.error
        self.written.append(bytes(data))

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close


class WiredPool(ScriptedPool):
    """Has one connection for fetches, and opens another when that is lost."""

    def __init__(self, version: int) -> None:
        super().__init__()
        self._version = version
        self.transport = MemoryTransport()
        self.connection: Any = None
        self.open()

    def open(self) -> None:
        self.transport = MemoryTransport()
        config = ClientConfig(client_id="twin", max_frame_bytes=1 << 20)
        self.connection = Connection(Address("h", 1), config, node_id=NODE_ID, on_bug=report_bug)
        self.connection.connection_made(self.transport)
        self.connection.wire.offer(ApiVersions({FetchRequest.api_key: (4, self._version)}))
        self.connection.wire.trust()

    def ready_connection(self, node_id: int, lane: object = None) -> Any:
        is_there = lane is Lane.FETCH and node_id == NODE_ID and self.connection.error is None
        return self.connection if is_there else None

    async def connect(self, node_id: int, lane: object = None) -> None:
        if lane is not Lane.FETCH or node_id != NODE_ID:
            self.connected.append((node_id, lane))  # so that it is not tried again at once
            raise KafkaConnectionError("there is one connection only")
        self.open()

    def suspect(self, asker: object, nodes: object) -> None:
        pass


class Reading(Fetching):
    """A consumer's inside, from the bytes that come to a task that reads record by record."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        is_compiled: bool,
        version: int = 18,
        partitions: int = 4,
        **settings: object,
    ) -> None:
        cluster = ScriptedCluster(view(dict.fromkeys(range(partitions), NODE_ID)))
        self.pool = WiredPool(version)
        cluster.pool = self.pool
        self._version = version
        iteration = ITERATIONS["compiled" if is_compiled else "python"]
        with monkeypatch.context() as patch:
            # Both ways tell a blocked loop by the system's clock, which no test can set.
            patch.setattr(ready, "STALL_S", math.inf)
            super().__init__(cluster, client_id="twin", fetch_max_wait_ms=500, **settings)
        self.sources.search.close()  # there is no cluster to search
        if not is_compiled:
            monkeypatch.setattr(Source, "_choose_on_answer", _choose_for(self))
        tuning.decompress(monkeypatch, in_thread=False)  # which takes time that is not virtual
        self.reader = type("Reader", (ReaderMethods, iteration.reader.__mro__[2]), {})()
        self.reader.buffers = self
        self.reader._iterate_over(self.ready.cursor)
        self.got: list[tuple[int, int, bytes | None]] = []
        self.errors: list[str] = []
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.task: asyncio.Task[None] | None = None
        # What the application does with the next record that it reads.
        self.on_record: Callable[[], object] | None = None
        # Where that broke the connection, one way was about to write, and the other just had.
        self.connection_broken_by_act: Connection | None = None
        # What has taken answers, by its source.
        self._takers: dict[int, object] = {}

    # --- The application ------------------------------------------------------------------
    def read(self) -> None:
        """Begin to read record by record, until an error."""
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        self.state.reads.note_reader(iterates=True)  # as a consumer's __aiter__ does
        try:
            async for record in self.reader:
                self.note(record)
                act, self.on_record = self.on_record, None
                if act is not None:
                    act()
                    if self.pool.connection.error is not None:
                        self.connection_broken_by_act = self.pool.connection
                await self.may_go_on.wait()
        except Exception as error:  # noqa: BLE001 -- to be compared
            self.errors.append(f"{type(error).__name__}: {error}")

    def note(self, record: Record) -> None:
        self.got.append((record.partition, record.offset, record.value))

    def iterate_over_nothing(self) -> None:
        """Give the iterator a cursor without records, as of a consumer that goes by `getone`."""
        self.reader._iterate_over(NO_RECORDS)

    async def get_once(self, wanted: list[TopicPartition], most: int | None) -> None:
        """Take what is there by another get."""
        try:
            for records in (await self.gets.many(wanted, 0.0, most)).values():
                for record in records:
                    self.note(record)
        except Exception as error:  # noqa: BLE001 -- to be compared
            self.errors.append(f"{type(error).__name__}: {error}")

    async def stop_reading(self) -> None:
        """Cancel the task that reads, wherever it is."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])
            self.task = None

    # --- The broker -----------------------------------------------------------------------
    @property
    def source(self) -> Source | None:
        return next(iter(self.sources._sources.get(NODE_ID, ())), None)

    def asked(self) -> list[FetchRequest]:
        """The requests so far."""
        requests = [decode_request(memoryview(each)[4:]) for each in self.pool.transport.written]
        return [request_in(request) for request in requests]  # type: ignore[misc] # there are no others

    @property
    def in_flight(self) -> int | None:
        """The correlation id of the request that has no answer."""
        return next(iter(self.pool.connection.wire.in_flight), None)

    def frame(
        self, *partitions: PartitionData, topic_id: bytes = TOPIC_ID, **more: object
    ) -> bytes | None:
        """An answer to the request in flight; None: there is none."""
        if self.in_flight is None:
            return None
        topic = FetchableTopicResponse(topic_id=topic_id, partitions=list(partitions))
        if self._version < 13:
            topic.topic = "t"
        fields: dict[str, Any] = {
            "session_id": SESSION_ID,
            "responses": [topic] if partitions else [],
            **more,
        }
        return encode_response(FetchResponse(**fields), self._version, self.in_flight)

    def receive(self, data: bytes) -> None:
        """Let bytes come in, in as many pieces as the connection takes them."""
        connection = self.pool.connection
        while data and connection.error is None:
            buffer = connection.get_buffer(-1)
            count = min(len(data), len(buffer))
            memoryview(buffer)[:count] = data[:count]
            connection.buffer_updated(count)
            data = data[count:]

    async def answer(self, *partitions: PartitionData, **more: Any) -> None:
        """Answer the request in flight, and let everybody do what comes of it."""
        await self.settle()
        frame = self.frame(*partitions, **more)
        assert frame is not None
        self.receive(frame)
        await self.settle()

    async def answer_in_a_callback(self, *partitions: PartitionData) -> None:
        """Answer as a connection's transport does: no task is running."""
        frame = self.frame(*partitions)
        assert frame is not None
        asyncio.get_running_loop().call_soon(self.receive, frame)
        await self.settle()

    def plant_a_bug(self) -> None:
        """Let what comes of the next answer fail, for no reason that anybody knows."""
        assert self.source is not None
        self.source._in_flight.sent_at = None  # type: ignore[assignment]

    def come_to_the_last_epoch(self) -> None:
        """Let the fetch session have had so many requests that its epoch is the last one."""
        assert self.source is not None
        self.source._session.epoch = LAST_EPOCH

    async def settle(self) -> None:
        """Let everybody run until nothing more happens, without any time passing."""
        for _ in range(12):
            await asyncio.sleep(0)

    # --- What is compared -----------------------------------------------------------------
    def state_of_all(self) -> dict[str, object]:
        """All that both ways have to agree on."""
        state, buffer, source = self.state, self.buffer, self.source
        assert self.taken_count >= 0
        told: dict[str, object] = {
            "got": list(self.got),
            "errors": list(self.errors),
            "written": self.connection_broken_by_act is not self.pool.connection
            and list(self.pool.transport.written),
            "cursors": [_fields_of_cursor(c) for c in state.assignment.values()],
            "turns": [cursor.tp for cursor in buffer.partitions],
            "waiting": buffer.waiting_count,
            "sought": buffer.waiters.sought,
            "untaken": [each.node_id for each in buffer.queue.untaken],
            "lent": buffer.queue.lent is not None,
            "gets": (state.reads.in_progress, state.reads.readers is None),
            "idle": state.reads.idle_s(asyncio.get_running_loop().time()),
            "handed out": state.reads.record_count,
            "latest": [cursor.tp for cursor in state.reads.latest],
            "processed": state.finished.processed_offsets(),
            "finished": state.finished.finished_offsets(),
            "invalidations": self.cluster.invalidations,
            "wire": _fields_of_wire(self.pool.connection),
        }
        if source is not None:
            told["source"] = _fields_of_source(source)
        return told

    @property
    def taken_count(self) -> int:
        """How many answers were taken by compiled code."""
        if self.source is not None:
            self._takers[id(self.source)] = self.source._on_answer
        return sum(getattr(taker, "taken_count", 0) for taker in self._takers.values())

    @property
    def takes_the_long_way(self) -> bool:
        """Whether all answers are taken step by step."""
        return self.source is not None and self.source._on_answer == self.source.answered

    @property
    def waits_without_coroutine(self) -> bool:
        """Whether the task that reads waits for a compiled get."""
        return any(isinstance(waiter, RecordWaiter) for waiter in self.buffer.waiters._wanted)

    async def close(self) -> None:
        await self.stop_reading()
        await super().close()
        self.pool.connection.close()
        await self.settle()


CHOOSE: Final = Source._choose_on_answer


def _choose_for(long_way: Reading) -> Callable[[Source], object]:
    """Let the sources of one consumer take all answers the long way."""

    def choose(source: Source) -> object:
        return source.answered if source._sources is long_way.sources else CHOOSE(source)

    return choose


def _fields_of_cursor(cursor: Cursor) -> dict[str, object]:
    told: dict[str, object] = {}
    for name in fields_of(Cursor):
        value = getattr(cursor, name)
        if name == "chunks":
            # What is decoded at once was not when it is decoded later: what matters is the offsets.
            value = [(chunk.end_offset, str(chunk.error)) for chunk in value]
        elif name == "loan" and value is not None:
            value = _fields_of_loan(value)
        elif name == "source":
            value = value is not None
        elif name == "search" and value is not None:
            value = (value.sought, value.timestamp, value.reason)
        elif name == "next_truncation":
            value = list(value.end_offsets())
        told[name] = value
    return told


def _fields_of_loan(loan: Loan) -> list[object]:
    return [getattr(loan, name) for name in fields_of(Loan) if name != "cursor"]


def _fields_of_source(source: Source) -> dict[str, object]:
    session = source._session
    return {
        "session": (session.id, session.epoch, session._unnamed_count),
        "loans": [(tp, _fields_of_loan(loan)) for tp, loan in session._loans.items()],
        "changed": list(session.changed),
        "forgotten": dict(session._forgotten),
        "ready": [cursor.tp for cursor in source.choice.ready],
        "backing off": [cursor.tp for cursor in source.choice.backing_off],
        "recalled": [cursor.tp for cursor in source.choice.recalled],
        "flags": (
            source._retry_at,
            source.choice.is_changed,
            source._in_flight.is_awaited,
            source._in_flight.is_long_poll,
            source._in_flight.poll_ends_at,
            source._in_flight.epoch,
            source._is_closed,
            source.is_throttled,
            source._in_flight.sent_at,
            source._failing_since,
            str(source.error),
            source._in_flight.exchange is not None,
            source._in_flight.reservation is not None,
        ),
        "counts": [getattr(source.counts, name) for name in fields_of(NodeCounts)],
    }


def _fields_of_wire(connection: Connection) -> dict[str, object]:
    wire = connection.wire
    return {
        "last": (wire.last_correlation_id, wire.last_used, wire.muted_until, wire.state),
        "in flight": [
            (number, each.deadline, each.version, each.frame is None, each.error is None)
            for number, each in wire.in_flight.items()
        ],
        "timer": connection._timer_at,
        "reader": (wire.reader.head is None, wire.reader._start, wire.reader._end),
        "error": str(wire.error),
    }


def tp(number: int) -> TopicPartition:
    return TopicPartition("t", number)
