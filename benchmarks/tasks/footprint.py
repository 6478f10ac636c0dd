"""Give an embedded broker many partitions and many connections, and look at its memory."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import aiokafka_lite
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.messages.metadata import ApiVersionsRequest
from benchmarks.loading import QUIET
from benchmarks.measure import Measurement, Workload
from benchmarks.servers import SERVERS, EmbeddedBroker, process_resident_bytes

PARTITIONS: Final = 10_000
CONNECTIONS: Final = 1_000
_TOPICS: Final = 10
_ANSWER_BYTES: Final = 16 << 10
_MIB: Final = 1024 * 1024


async def measure(subject: str, workload: Workload) -> Measurement:
    """Measure the resident size of a broker of the kind `subject`, started for this."""
    with EmbeddedBroker(SERVERS[subject]) as broker, ExitStack() as connections:
        _create_partitions(broker.bootstrap_servers, workload.wait_s)
        host, _, port = broker.bootstrap_servers.rpartition(":")
        question = framing.encode_request(ApiVersionsRequest(), 0, 1, "footprint")
        for _ in range(CONNECTIONS):
            connection = connections.enter_context(
                socket.create_connection((host, int(port)), workload.wait_s)
            )
            connection.sendall(question)
            assert connection.recv(_ANSWER_BYTES)
        resident_mib = process_resident_bytes(broker.pid) / _MIB
    return Measurement(aiokafka_lite.__version__, {"rss_mib": resident_mib})


def _create_partitions(bootstrap_servers: str, timeout_s: float) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, **QUIET})
    topics = [NewTopic(f"footprint-{number}", PARTITIONS // _TOPICS) for number in range(_TOPICS)]
    for future in admin.create_topics(topics, operation_timeout=timeout_s).values():
        future.result(timeout_s)
