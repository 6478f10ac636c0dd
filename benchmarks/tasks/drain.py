"""Fetch a topic with a client that throws the bytes away: how fast can the broker be?

Which requests it takes is found out by reading the topic once. Then they are sent again, always
one ahead of the answer that is being received, on one connection.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final

import aiokafka_lite
from aiokafka_lite._compat import Self
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from aiokafka_lite.records import iter_batches
from benchmarks.measure import Measurement, RunError, Workload
from benchmarks.servers import ServerMeter

_VERSION: Final = 12  # the last that names topics
_PARTITION_BYTES: Final = 1 << 20
_ANSWER_BYTES: Final = 50 << 20
_SCRATCH_BYTES: Final = 1 << 20
_SIZE_BYTES: Final = 4


async def measure(subject: str, workload: Workload) -> Measurement:
    """Measure wall time and the broker's CPU time per byte."""
    with RawClient(workload.bootstrap_servers, workload.wait_s) as client:
        requests, _ = rehearse(client, workload)
        meter = ServerMeter(workload.bootstrap_servers)
        started = time.perf_counter()
        drained = sum(client.drain(requests) for _ in range(workload.passes))
        wall_s = time.perf_counter() - started
    figures = {"wall_ns_byte": wall_s * 1e9 / drained, **meter.figures(drained)}
    return Measurement(aiokafka_lite.__version__, figures, workload.passes * workload.records)


def rehearse(client: RawClient, workload: Workload) -> tuple[list[bytes], int]:
    """Read the topics to their end; returns the requests it took and how many records there are.

    Raises:
        RunError: There are less than there should be.
    """
    positions = dict.fromkeys(workload.partitions(), 0)
    requests: list[bytes] = []
    records = 0
    while True:
        request = framing.encode_request(_request(positions), _VERSION, len(requests), "drain")
        answer = framing.response_decoder(FetchRequest, _VERSION)(client.exchange(request))
        before = records
        for topic in answer.responses:
            for partition in topic.partitions:
                view = memoryview(partition.records or b"")
                for header, _ in iter_batches(view, check_crcs=False):
                    tp = topic.topic, partition.partition_index
                    records += header.last_offset + 1 - positions[tp]
                    positions[tp] = header.last_offset + 1
        if records == before:
            break
        requests.append(request)
    if records != workload.records:
        raise RunError(f"there are {records} records, expected {workload.records}")
    return requests, records


def _request(positions: dict[tuple[str, int], int]) -> FetchRequest:
    topics: dict[str, FetchTopic] = {}
    for (topic, number), position in positions.items():
        topics.setdefault(topic, FetchTopic(topic=topic)).partitions.append(
            FetchPartition(
                partition=number, fetch_offset=position, partition_max_bytes=_PARTITION_BYTES
            )
        )
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=_ANSWER_BYTES,
        session_epoch=-1,
        topics=[*topics.values()],
    )


class RawClient:
    """A blocking socket that sends frames; use it in a `with`."""

    def __init__(self, bootstrap_servers: str, timeout_s: float) -> None:
        host, _, port = bootstrap_servers.split(",")[0].rpartition(":")
        self._socket: Final = socket.create_connection((host, int(port)), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._scratch: Final = memoryview(bytearray(_SCRATCH_BYTES))

    def exchange(self, request: bytes, buffer: memoryview | None = None) -> memoryview:
        """Send a request and return its answer, which fills the front of a buffer if one is given.

        Raises:
            RunError: The answer is larger than the buffer.
        """
        self._socket.sendall(request)
        size = self._size()
        frame = memoryview(bytearray(size)) if buffer is None else buffer[:size]
        if len(frame) < size:
            raise RunError(f"an answer of {size} bytes does not fit in {len(frame)}")
        self._receive(frame)
        return frame

    def drain(self, requests: Sequence[bytes]) -> int:
        """Send the requests and throw the answers away; returns how many bytes came."""
        drained = 0
        self._socket.sendall(requests[0])
        for number in range(len(requests)):
            for ahead in requests[number + 1 : number + 2]:
                self._socket.sendall(ahead)
            left = size = self._size()
            while left:
                part = self._scratch[:left]
                self._receive(part)
                left -= len(part)
            drained += size
        return drained

    def _size(self) -> int:
        prefix = self._scratch[:_SIZE_BYTES]
        self._receive(prefix)
        return int.from_bytes(prefix, "big")

    def _receive(self, view: memoryview) -> None:
        while view:
            count = self._socket.recv_into(view)
            if not count:
                raise RunError("the broker closed the connection")
            view = view[count:]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()
