"""Kafka's tools that write and read in bulk, against the embedded broker."""

from __future__ import annotations

import json

import pytest

from aiokafka_lite.broker.thread import BrokerThread
from tests.support.java import JavaTools
from tests.support.java_runner import JavaRunner

pytestmark = pytest.mark.java

COUNT = 20_000


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_performance_tools_write_and_read(
    java_runner: JavaRunner, broker: BrokerThread, codec: str
) -> None:
    address = broker.bootstrap_servers
    written = java_runner.run(
        "producer-perf", "--topic", "t", "--num-records", str(COUNT), "--record-size", "100",
        "--throughput", "-1", "--bootstrap-server", address,
        "--command-property", f"compression.type={codec}",
    )  # fmt: skip
    assert f"{COUNT} records sent" in written.stdout, written.stderr
    read = java_runner.run(
        "consumer-perf", "--topic", "t", "--num-records", str(COUNT), "--group", "g",
        "--timeout", "30000", "--bootstrap-server", address,
    )  # fmt: skip
    heads, figures = (line.split(", ") for line in read.stdout.splitlines())
    assert figures[heads.index("data.consumed.in.nMsg")] == str(COUNT)


@pytest.mark.slow  # they end their JVM; the tools above write, read and commit alike in one
async def test_verifiable_tools_write_and_read(java_tools: JavaTools, broker: BrokerThread) -> None:
    common = ("--topic", "t", "--bootstrap-server", broker.bootstrap_servers)
    written = await java_tools.run(
        "org.apache.kafka.tools.VerifiableProducer", *common, "--max-messages", "200"
    )
    events = [json.loads(line) for line in written.stdout.splitlines()]
    sent = [event["value"] for event in events if event["name"] == "producer_send_success"]
    assert sorted(map(int, sent)) == list(range(200))
    read = await java_tools.run(
        "org.apache.kafka.tools.VerifiableConsumer", *common, "--max-messages", "200",
        "--group-id", "g", "--verbose", "--reset-policy", "earliest",
    )  # fmt: skip
    events = [json.loads(line) for line in read.stdout.splitlines()]
    assert [event["value"] for event in events if event["name"] == "record_data"] == sent
    committed = [event for event in events if event["name"] == "offsets_committed"]
    assert all(event["success"] for event in committed)
    assert committed[-1]["offsets"] == [{"topic": "t", "partition": 0, "offset": 200}]


def test_tools_describe_the_cluster(java_runner: JavaRunner, broker: BrokerThread) -> None:
    server = ("--bootstrap-server", broker.bootstrap_servers)
    cluster = java_runner.run("cluster", "cluster-id", *server)
    assert broker.broker.cluster_id in cluster.stdout
    versions = java_runner.run("api-versions", *server)
    assert "IncrementalAlterConfigs(44): 0 to 1 [usable: 1]" in versions.stdout
    assert "DescribeQuorum(55): UNSUPPORTED" in versions.stdout
