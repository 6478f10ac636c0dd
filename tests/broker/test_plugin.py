"""The pytest plugin, as users of any Kafka client see it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from importlib.metadata import entry_points
from pathlib import Path

import aiokafka
import confluent_kafka
import pytest

import aiokafka_lite
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.errors import KafkaConnectionError, UnknownTopicOrPartitionError

pytest_plugins = ["pytester"]


def test_plugin_gives_the_fixture_to_sync_and_async_tests(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(
        """
        import socket
        import aiokafka

        def address(broker):
            host, port = broker.bootstrap_servers.split(":")
            return host, int(port)

        def test_sync(kafka_broker):
            kafka_broker.create_topic("orders", partitions=3)
            assert kafka_broker.topics == {"orders": 3}
            socket.create_connection(address(kafka_broker)).close()

        async def test_async(kafka_broker):
            assert kafka_broker.topics == {}  # a fresh one for each test
            async with aiokafka.AIOKafkaProducer(
                bootstrap_servers=kafka_broker.bootstrap_servers
            ) as producer:
                await producer.send_and_wait("t", b"v")
            assert kafka_broker.end_offsets("t") == [1]
        """
    )
    pytester.makeini("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function")
    arguments = ["-p", "no:randomly", "-W", "error"]
    if "aiokafka_lite" not in _installed_plugins():
        arguments += ["-p", "aiokafka_lite.pytest_plugin"]
    # Also where the package is not installed but run from its sources.
    monkeypatch.setenv("PYTHONPATH", str(Path(aiokafka_lite.__file__).parents[1]))
    result = pytester.runpytest_subprocess(*arguments)
    result.assert_outcomes(passed=2)


def _installed_plugins() -> set[str]:
    return {entry.name for entry in entry_points(group="pytest11")}


def test_importing_the_plugin_does_not_import_the_broker() -> None:
    code = (
        "import sys, aiokafka_lite.pytest_plugin; "
        "sys.exit(any(name.startswith('aiokafka_lite.broker') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_broker_thread_ends_with_its_block() -> None:
    before = threading.active_count()
    with BrokerThread() as broker:
        assert threading.active_count() > before
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce("t", b"v")
        producer.flush(10)
        assert broker.end_offsets("t") == [1]
        broker.delete_topic("t")
        for asked in (broker.delete_topic, broker.end_offsets):
            with pytest.raises(UnknownTopicOrPartitionError):
                asked("t")
        del producer
    assert threading.active_count() == before
    broker.raise_if_failed()


def test_broker_thread_that_cannot_start_leaves_no_thread() -> None:
    before = threading.active_count()
    with BrokerThread() as first:
        during = threading.active_count()
        port = first.broker.node.address.port
        with pytest.raises(KafkaConnectionError), BrokerThread(BrokerConfig(port=port)):
            pass
        assert threading.active_count() == during
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="was not started"):
        _ = BrokerThread().bootstrap_servers


async def test_broker_thread_serves_a_client_on_another_loop() -> None:
    with BrokerThread() as broker:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers
        ) as producer:
            await producer.send_and_wait("t", b"v")
        assert broker.end_offsets("t") == [1]
        await asyncio.sleep(0)
