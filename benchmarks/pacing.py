"""A producer that writes records at a steady pace while contestants run, in its own process.

librdkafka's producer looks at each of its partitions again and again, which with thousands of them
takes a fifth of a core and delays the records. This one sends each record as soon as it is due, in
a request of its own, and takes a few percent: two cores have to do for it, Kafka and a contestant.
"""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from confluent_kafka.admin import AdminClient

from aiokafka_lite.errors import for_code
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from aiokafka_lite.records.build import build_batch
from benchmarks.loading import QUIET
from benchmarks.measure import RunError, Workload
from benchmarks.tasks.paced import WRITTEN_AT

_VALUE_BYTES: Final = 100
_FILLING: Final = b"." * (_VALUE_BYTES - WRITTEN_AT.size)
_PRODUCE_VERSION: Final = 9
_ACKS_LEADER: Final = 1
_CONNECT_TIMEOUT_S: Final = 10.0
_ANSWER_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 10.0
_TOPICS_KNOWN_S: Final = 30.0
_READY: Final = "ready"


@contextmanager
def producing(workload: Workload, rate: int) -> Iterator[None]:
    """Have `rate` records a second written to all partitions in turn, until the `with` is left.

    Raises:
        RunError: Nothing could be written, or not all of it.
    """
    command = [sys.executable, "-m", "benchmarks.pacing", workload.bootstrap_servers, str(rate)]
    # It ends with its standard input, so it ends with this process whatever happens to that.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(workload.partitions()) + "\n")
            process.stdin.flush()
            if process.stdout.readline().strip() != _READY:
                raise RunError("the producer could not write to the topics")
            yield
        finally:
            process.stdin.close()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
    if process.returncode != 0:
        raise RunError("the producer could not write all records")


def main(bootstrap_servers: str, rate: int) -> None:
    """Write until the standard input ends."""
    partitions: list[tuple[str, int]] = json.loads(sys.stdin.readline())
    leaders = _connect_leaders(bootstrap_servers, partitions)
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    began: float | None = None
    for number, partition in enumerate(itertools.cycle(leaders)):
        leader = leaders[partition]
        leader.write(*partition)
        if began is None:
            leader.wait()
            began = time.monotonic()
            print(_READY, flush=True)
        pause_s = began + (number + 1) / rate - time.monotonic()
        if pause_s > 0:
            time.sleep(pause_s)
        if ended.is_set():
            break
    for leader in set(leaders.values()):
        leader.wait()


class _Leader:
    """A connection to a broker, on which requests are sent without waiting for answers."""

    def __init__(self, host: str, port: int) -> None:
        self._socket: Final = socket.create_connection((host, port), _CONNECT_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(None)
        self._sent = 0
        self._acknowledged = 0
        self._is_answered: Final = threading.Condition()
        self._failure: str | None = None
        threading.Thread(target=self._read_answers, daemon=True).start()

    def write(self, topic: str, partition: int) -> None:
        """Send one record with the present time."""
        now_ms = time.time_ns() // 1_000_000
        value = WRITTEN_AT.pack(time.monotonic_ns()) + _FILLING
        batch = memoryview(build_batch([(now_ms, None, value, ())]))
        request = ProduceRequest(
            acks=_ACKS_LEADER,
            timeout_ms=int(_ANSWER_TIMEOUT_S * 1000),
            topic_data=[
                TopicProduceData(
                    name=topic,
                    partition_data=[PartitionProduceData(index=partition, records=batch)],
                )
            ],
        )
        self._sent += 1
        frame = framing.encode_request(request, _PRODUCE_VERSION, self._sent, "bench")
        self._socket.sendall(frame)
        if self._failure is not None:
            sys.exit(self._failure)

    def wait(self) -> None:
        """Wait until all records are acknowledged; ends the program if they are not."""
        with self._is_answered:
            self._is_answered.wait_for(
                lambda: self._failure is not None or self._acknowledged == self._sent,
                _ANSWER_TIMEOUT_S,
            )
        if self._acknowledged != self._sent:
            sys.exit(self._failure or "a broker did not answer")

    def _read_answers(self) -> None:
        with self._socket.makefile("rb") as stream:
            while len(size := stream.read(4)) == 4:
                frame = memoryview(stream.read(int.from_bytes(size, "big")))
                answer = framing.response_decoder(ProduceRequest, _PRODUCE_VERSION)(frame)
                code = answer.responses[0].partition_responses[0].error_code
                with self._is_answered:
                    if code:
                        self._failure = repr(for_code(code))
                    else:
                        self._acknowledged += 1
                    self._is_answered.notify()
        with self._is_answered:
            self._failure = self._failure or "a broker closed the connection"
            self._is_answered.notify()


def _connect_leaders(
    bootstrap_servers: str, partitions: Sequence[tuple[str, int]]
) -> Mapping[tuple[str, int], _Leader]:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, **QUIET})
    cluster = admin.list_topics()
    wanted = {topic for topic, _ in partitions}
    give_up_at = time.monotonic() + _TOPICS_KNOWN_S
    while not wanted <= cluster.topics.keys() and time.monotonic() < give_up_at:
        time.sleep(0.2)  # a broker that has just made many topics does not tell of all at once
        cluster = admin.list_topics()
    connections: dict[int, _Leader] = {}
    leaders = {}
    for topic, number in partitions:
        node_id = cluster.topics[topic].partitions[number].leader
        if node_id not in connections:
            broker = cluster.brokers[node_id]
            connections[node_id] = _Leader(str(broker.host), int(broker.port))
        leaders[topic, number] = connections[node_id]
    return leaders


def _wait_for_end(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
