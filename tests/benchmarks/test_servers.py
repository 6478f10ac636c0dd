"""The brokers that a benchmark starts."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import replace

import pytest

from aiokafka_lite.broker.thread import BrokerThread
from benchmarks import servers
from benchmarks.contestants import RAW_DRAIN, Contestant
from benchmarks.figures import WALL_BYTE
from benchmarks.loading import TopicError, ensure_topics, read_once
from benchmarks.measure import Measurement, RunError, Workload
from benchmarks.results import Failure, Sample
from benchmarks.runner import Plan, run
from benchmarks.scenarios import Scenario
from benchmarks.servers import (
    DIRECTORY,
    KAFKA,
    MEMORY,
    EmbeddedBroker,
    ServerMeter,
    Servers,
    listener_pid,
    process_cpu_seconds,
    process_resident_bytes,
)
from benchmarks.tasks.drain import RawClient, rehearse
from benchmarks.topics import Topic
from tests.support.ports import free_port
from tests.support.real_kafka import can_connect

TOPIC = Topic("none", 100, 300)
SCENARIO = Scenario(
    "drain",
    "broker-drain",
    "?",
    "drain",
    (WALL_BYTE,),
    (RAW_DRAIN.on(MEMORY), RAW_DRAIN.on(DIRECTORY)),
    rounds=1,
    topics=(TOPIC,),
)
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@linux_only
def test_listener_is_found_by_its_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert listener_pid(port) == os.getpid()
        assert ServerMeter(f"127.0.0.1:{port}").figures(10)["broker_cpu_ns"] >= 0
    nobody = free_port()
    assert listener_pid(nobody) is None
    assert ServerMeter(f"127.0.0.1:{nobody}").figures(10) == {}
    assert ServerMeter(f"127.0.0.1:{nobody}").share(10.0) == {}


@linux_only
def test_broker_elsewhere_is_not_who_listens_at_its_port_here() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert ServerMeter(f"192.0.2.1:{port}").figures(10) == {}
        assert ServerMeter(f"localhost:{port},192.0.2.1:{port}").figures(10) != {}


@linux_only
def test_share_of_a_core_is_that_since_the_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    used_s = iter((10.0, 10.5, 12.0, 12.4))
    monkeypatch.setattr(servers, "process_cpu_seconds", lambda pid: next(used_s))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        meter = ServerMeter(f"127.0.0.1:{listening.getsockname()[1]}")
        assert meter.share(2.0) == {"broker_cpu_percent": pytest.approx(25)}
        meter.restart()
        assert meter.share(2.0) == {"broker_cpu_percent": pytest.approx(20)}


@linux_only
def test_embedded_broker_is_a_process_that_ends_with_the_block() -> None:
    with EmbeddedBroker(DIRECTORY) as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        assert listener_pid(port) == broker.pid != os.getpid()
        assert process_cpu_seconds(broker.pid) > 0
        assert process_resident_bytes(broker.pid) > 1 << 20
    assert not can_connect(port)


def test_broker_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/true")
    with pytest.raises(RunError, match="did not start"), EmbeddedBroker(MEMORY):
        pytest.fail("a program that ends at once is no broker")


def test_contestants_of_embedded_brokers_find_their_topics_loaded() -> None:
    served: dict[str, str] = {}

    def execute(task: str, contestant: Contestant, workload: Workload) -> Measurement:
        with RawClient(workload.bootstrap_servers, 10.0) as client:
            _, records = rehearse(client, workload)
        served[contestant.name] = workload.bootstrap_servers
        return Measurement("1.0", {"wall_ns_byte": 1.0}, records)

    outcomes = list(run(Plan("kafka:9092", [SCENARIO]), execute))
    assert [each for each in outcomes if isinstance(each, Failure)] == []
    assert len(outcomes) == len(set(served.values())) == 2
    assert not any(can_connect(int(at.rpartition(":")[2])) for at in served.values())


def test_topics_are_read_once_before_the_first_client() -> None:
    with BrokerThread() as broker:
        address = broker.bootstrap_servers
        ensure_topics(address, [TOPIC])
        with Servers(address, reads_once=True) as servers:
            counts = []
            for _ in range(2):
                assert servers.address(KAFKA, [TOPIC]) == address
                counts.append(len(broker.requests.of("Fetch")))
            assert counts[0] == counts[1] > 0
        with pytest.raises(TopicError, match="300 records are missing"):
            read_once(address, [replace(TOPIC, use="missing")], timeout_s=0.01)
        with Servers(address) as servers:
            servers.address(KAFKA, [TOPIC])
            assert len(broker.requests.of("Fetch")) == counts[0]


def test_kafka_is_the_one_that_was_named() -> None:
    def execute(task: str, contestant: Contestant, workload: Workload) -> Measurement:
        assert workload.bootstrap_servers == "kafka:9092"
        return Measurement("1.0", {"wall_ns_byte": 1.0}, 300)

    (outcome,) = run(
        Plan("kafka:9092", [replace(SCENARIO, contestants=(RAW_DRAIN.on(KAFKA),))]), execute
    )
    assert isinstance(outcome, Sample)


def test_run_that_wrote_less_than_asked_for_does_not_count() -> None:
    writing = replace(SCENARIO, topics=(), written=TOPIC)
    writing.check(Measurement("1.0", {}, records=300))
    with pytest.raises(RunError, match="wrote 299 records, expected 300"):
        writing.check(Measurement("1.0", {}, records=299))


def test_workload_comes_through_to_the_process_as_it_is() -> None:
    for workload in (Workload("a:1", []), Workload("a:1", ["t"], 3, written=TOPIC, batch_bytes=5)):
        assert Workload.from_json(workload.to_json()) == workload
