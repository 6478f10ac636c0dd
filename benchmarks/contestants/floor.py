"""The floor: the least work that reading takes in Python, whatever the design of the client.

`drain` receives a consumer's answers on a blocking socket and reads only the headers of batches.
`read` is an asyncio protocol that knows a single kind of answer and decodes its records in plain
Python. Both need all partitions of one topic on the broker at the address.
"""

from __future__ import annotations

import asyncio
import platform
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, cast

from aiokafka_lite.errors import for_code
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from aiokafka_lite.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from benchmarks.contestants.reader import Drained, Reader, Take
from benchmarks.measure import RunError, StarvedError, Workload
from benchmarks.tasks.drain import RawClient

_CLIENT_ID: Final = "floor"
_LATEST: Final = -1
_CONSUMER: Final = -1
_LIST_OFFSETS_VERSION: Final = 2
_FETCH_VERSION: Final = 11  # the last one with fields of fixed length
LONG_POLL_MS: Final = 500
_PARTITION_BYTES: Final = 1 << 20
_ANSWER_BYTES: Final = 50 << 20
_SIZE: Final = struct.Struct(">i")
_OFFSET: Final = struct.Struct(">q")
# A partition of a request has number, leader epoch, offset, log start offset and a limit. Behind
# the last one are the length of a list and of a string, both empty.
_ASKED_BYTES: Final = 28
_ASKED_OFFSET: Final = 8
_REQUEST_TAIL_BYTES: Final = 6
# Correlation id, throttle time, error code, session id, the lengths of topics, of the topic's name
# and of partitions. The name is between the last two.
_ANSWER_HEAD_BYTES: Final = 24
_PARTITION: Final = struct.Struct(">ih8x8x8x4x4xi")
"""Number, error code and bytes of batches; the rest is watermarks, and empty for these requests."""
_BATCH: Final = struct.Struct(">qi11xi30xi")
"""First offset, bytes behind the length, delta of the last offset, number of records."""
_BATCH_LENGTH_END: Final = 12


@asynccontextmanager
async def floor(workload: Workload) -> AsyncIterator[Reader]:
    """Read with as little work as possible."""
    with RawClient(workload.bootstrap_servers, workload.wait_s) as client:
        yield FloorReader(client, workload)


class FloorReader:
    """Reads the only topic of a workload."""

    version: Final = platform.python_version()

    def __init__(self, client: RawClient, workload: Workload) -> None:
        self._client: Final = client
        self._workload: Final = workload
        self._buffer: Final = memoryview(bytearray((workload.partition_count + 1) << 20))
        (self._topic,) = workload.topics
        self._fetch = _Fetch(self._topic, [0] * workload.partition_count)

    async def assign(self) -> None:
        if self._workload.start == "latest":
            self._fetch = _Fetch(self._topic, self._ends())

    async def rewind(self) -> None:
        self._fetch = _Fetch(self._topic, [0] * self._workload.partition_count)

    def _ends(self) -> list[int]:
        asked = [
            ListOffsetsPartition(partition_index=number, timestamp=_LATEST)
            for number in range(self._workload.partition_count)
        ]
        request = ListOffsetsRequest(
            replica_id=_CONSUMER, topics=[ListOffsetsTopic(name=self._topic, partitions=asked)]
        )
        version = _LIST_OFFSETS_VERSION
        frame = self._client.exchange(framing.encode_request(request, version, 0, _CLIENT_ID))
        (found,) = framing.response_decoder(ListOffsetsRequest, version)(frame).topics
        offsets = {each.partition_index: each.offset for each in found.partitions}
        return [offsets[number] for number in range(self._workload.partition_count)]

    async def drain(self, records: int) -> Drained:
        read = 0
        while read < records:
            answer = self._client.exchange(self._fetch.request(), self._buffer)
            received = sum(count for count, _ in self._fetch.batches(answer))
            if not received:
                raise StarvedError(f"no records after {read}")
            read += received
        return Drained(read, None)

    async def read(self, take: Take, pause_s: float = 0.0) -> None:
        host, _, port = self._workload.bootstrap_servers.split(",")[0].rpartition(":")
        transport, protocol = await asyncio.get_running_loop().create_connection(
            lambda: _Protocol(self._fetch, self._buffer), host, int(port)
        )
        try:
            while take(values := await protocol.values()):
                if pause_s:
                    await asyncio.sleep(pause_s * len(values))
        finally:
            transport.close()


class _Fetch:
    """A request for all partitions of a topic, which moves on with the answers that are read."""

    def __init__(self, topic: str, offsets: Sequence[int]) -> None:
        partitions = [
            FetchPartition(
                partition=number, fetch_offset=offset, partition_max_bytes=_PARTITION_BYTES
            )
            for number, offset in enumerate(offsets)
        ]
        request = FetchRequest(
            max_wait_ms=LONG_POLL_MS,
            min_bytes=1,
            max_bytes=_ANSWER_BYTES,
            session_epoch=-1,
            topics=[FetchTopic(topic=topic, partitions=partitions)],
        )
        frame = framing.encode_request(request, _FETCH_VERSION, 0, _CLIENT_ID)
        self._frame: Final = bytearray(frame)
        self._count: Final = len(offsets)
        first = len(frame) - _REQUEST_TAIL_BYTES - _ASKED_BYTES * len(offsets)
        self._first_offset_at: Final = first + _ASKED_OFFSET
        self._partitions_at: Final = _ANSWER_HEAD_BYTES + len(topic)

    def request(self) -> bytes:
        """Return the next request."""
        return bytes(self._frame)

    def batches(self, answer: memoryview) -> Iterator[tuple[int, int]]:
        """Yield the number of records of each batch, and the place of the first one.

        Raises:
            RunError: The broker refused to read a partition.
        """
        place = self._partitions_at
        for _ in range(self._count):
            number, error, size = _PARTITION.unpack_from(answer, place)
            if error:
                raise RunError(f"partition {number}: {for_code(error)!r}")
            place += _PARTITION.size
            end = place + max(size, 0)
            while place + _BATCH.size <= end:
                first_offset, length, delta, count = _BATCH.unpack_from(answer, place)
                behind = place + _BATCH_LENGTH_END + length
                if behind > end:
                    break  # the limit of the partition cuts the last batch
                asked_at = self._first_offset_at + _ASKED_BYTES * number
                _OFFSET.pack_into(self._frame, asked_at, first_offset + delta + 1)
                yield count, place + _BATCH.size
                place = behind
            place = end


class _Protocol(asyncio.BufferedProtocol):
    """Has one long poll in flight, and sends the next one once the answer is decoded."""

    def __init__(self, fetch: _Fetch, buffer: memoryview) -> None:
        self._fetch: Final = fetch
        self._buffer: Final = buffer
        self._filled = 0
        self._values: list[bytes] = []
        self._arrival: asyncio.Future[None] | None = None
        self._transport: asyncio.WriteTransport | None = None

    async def values(self) -> list[bytes]:
        """Wait for records and return their values."""
        if not self._values:
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        values, self._values = self._values, []
        return values

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._transport.write(self._fetch.request())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled < _SIZE.size:
            return
        (size,) = _SIZE.unpack_from(self._buffer)
        if self._filled < _SIZE.size + size:
            return
        self._filled = 0
        answer = self._buffer[_SIZE.size :]
        for count, place in self._fetch.batches(answer):
            self._values += _decode(answer, place, count)
        assert self._transport is not None
        self._transport.write(self._fetch.request())
        if self._values and self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_exception(exc or RunError("the broker closed the connection"))


def _decode(answer: memoryview, place: int, count: int) -> list[bytes]:
    """Return the values of so many records."""
    values = []
    for _ in range(count):
        size, place = _varint(answer, place)
        end = place + size
        _, place = _varint(answer, place + 1)  # behind the attributes: the delta of the timestamp
        _, place = _varint(answer, place)  # the delta of the offset
        key_size, place = _varint(answer, place)
        size, place = _varint(answer, place + max(key_size, 0))
        values.append(bytes(answer[place : place + size]))
        place = end
    return values


def _varint(view: memoryview, place: int) -> tuple[int, int]:
    """Return a zigzag number, and the place behind it."""
    byte = view[place]
    number, shift = byte & 0x7F, 7
    while byte & 0x80:
        place += 1
        byte = view[place]
        number |= (byte & 0x7F) << shift
        shift += 7
    return (number >> 1) ^ -(number & 1), place + 1
