"""The pytest plugin, as users of any Kafka client see it."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

import aiokafka
import confluent_kafka
import pytest

import aiokafka_lite
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.errors import KafkaConnectionError, UnknownTopicOrPartitionError

pytest_plugins = ["pytester"]


ASYNCIO_STRICT = "[pytest]\nasyncio_mode = strict\nasyncio_default_fixture_loop_scope = function"
ASYNCIO_AUTO = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function"

# Also where the package is not installed but run from its sources.
ENVIRONMENT: Final = {
    "PYTHONPATH": str(Path(aiokafka_lite.__file__).parents[1]),
    "PYTEST_ADDOPTS": "",
}


def options() -> list[str]:
    # The tests have no order to shuffle, and Hypothesis takes a second to load.
    idle = ["-p", "no:randomly", "-p", "no:hypothesispytest"]
    found = [*idle, "-W", "error", "--strict-markers"]
    if "aiokafka_lite" not in {entry.name for entry in entry_points(group="pytest11")}:
        found += ["-p", "aiokafka_lite.pytest_plugin"]
    return found


@pytest.fixture
def run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., pytest.RunResult]:
    """Run pytest on a file in a process of its own; every warning is an error."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)

    def run_file(source: str, *arguments: str, ini: str = ASYNCIO_STRICT) -> pytest.RunResult:
        pytester.makepyfile(source)
        pytester.makeini(ini)
        return pytester.runpytest_subprocess(*options(), *arguments)

    return run_file


Run = Callable[..., pytest.RunResult]

TOGETHER: Final = {
    "options": """
        import pytest
        pytestmark = pytest.mark.kafka_broker(num_partitions=4, auto_create_topics=False)

        def test_topic_has_the_brokers_number(kafka_broker, kafka_topic):
            assert kafka_broker.topics == {kafka_topic: 4}
            kafka_broker.produce(kafka_topic, "v")
            with pytest.raises(Exception, match="there is no topic 'other'"):
                kafka_broker.produce("other", "v")

        @pytest.mark.kafka_broker(partitions=2, configs={"cleanup.policy": "compact"})
        def test_topic_has_its_own(kafka_broker, kafka_topic):
            assert kafka_broker.topics == {kafka_topic: 2}
            with pytest.raises(Exception, match="has no key"):
                kafka_broker.produce(kafka_topic, "v")

        @pytest.mark.kafka_broker(auto_create_topics=True)
        class TestInClass:
            @pytest.mark.kafka_broker(num_partitions=5)
            def test_inner(self, kafka_broker):
                kafka_broker.produce("made", "v")
                assert kafka_broker.topics == {"made": 5}

        def test_topic_alone(kafka_topic):
            assert kafka_topic.startswith("topic-")

        def test_cluster(kafka_cluster, kafka_topic):
            assert len(kafka_cluster.bootstrap_servers.split(",")) == 3
            assert kafka_cluster.topics == {kafka_topic: 4}

        @pytest.mark.kafka_broker(nodes=2)
        def test_other_sizes(kafka_cluster, kafka_broker):
            for broker in (kafka_cluster, kafka_broker):
                assert len(broker.bootstrap_servers.split(",")) == 2
        """,
    "old_name": """
        import pytest

        pytestmark = pytest.mark.filterwarnings("default::pytest.PytestDeprecationWarning")

        @pytest.mark.kafka(num_partitions=2)
        class TestInClass:
            @pytest.mark.kafka_broker(num_partitions=3)
            def test_new_name_is_closer(self, kafka_broker):
                kafka_broker.produce("made", "v")
                assert kafka_broker.topics == {"made": 3}

            def test_old_name(self, kafka_broker):
                kafka_broker.produce("made", "v")
                assert kafka_broker.topics == {"made": 2}
        """,
    "markers_of_others": """
        import pytest

        @pytest.mark.kafka
        def test_name_alone(kafka_broker, kafka_topic):
            assert kafka_broker.topics == {kafka_topic: 1}

        @pytest.mark.kafka("3.9", partitions=7)
        def test_arguments(kafka_broker, kafka_topic):
            assert kafka_broker.topics == {kafka_topic: 1}

        @pytest.mark.kafka(partitions=7, version="3.9")
        def test_options(kafka_broker, kafka_topic):
            assert kafka_broker.topics == {kafka_topic: 1}
        """,
    "strict_mode_and_anyio": """
        import asyncio
        import pytest

        anyio = pytest.importorskip("anyio")
        anyio_to_thread = pytest.importorskip("anyio.to_thread")

        @pytest.fixture
        def anyio_backend():
            return "asyncio"

        @pytest.mark.asyncio
        async def test_strict(kafka_broker):
            waiting = asyncio.create_task(asyncio.to_thread(kafka_broker.wait_for_records, "t"))
            kafka_broker.produce("t", "v")
            assert len(await waiting) == 1

        @pytest.mark.anyio
        async def test_anyio(kafka_broker):
            kafka_broker.produce("t", "v")
            assert len(await anyio_to_thread.run_sync(kafka_broker.wait_for_records, "t")) == 1
        """,
    "other_processes": """
        import subprocess
        import sys

        PRODUCE = (
            "import sys; from confluent_kafka import Producer; "
            "producer = Producer({'bootstrap.servers': sys.argv[1]}); "
            "producer.produce('t', b'from outside'); sys.exit(producer.flush(20))"
        )

        def test_other_process(kafka_broker):
            command = [sys.executable, "-c", PRODUCE, kafka_broker.bootstrap_servers]
            subprocess.run(command, check=True, timeout=60)
            assert kafka_broker.records("t")[0].value == b"from outside"
        """,
    "exception": """
        import dataclasses
        import confluent_kafka.admin
        import pytest

        @pytest.fixture
        def bug(monkeypatch):
            from aiokafka_lite.broker.handlers import base
            from aiokafka_lite.protocol.messages.metadata import MetadataRequest

            def broken(*_):
                raise ZeroDivisionError("a bug")

            entry = base.HANDLERS[MetadataRequest.api_key]
            broken_entry = dataclasses.replace(entry, handle=broken)
            monkeypatch.setitem(base.HANDLERS, MetadataRequest.api_key, broken_entry)

        def test_meets_it(kafka_broker, bug):
            servers = kafka_broker.bootstrap_servers
            admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": servers})
            with pytest.raises(confluent_kafka.KafkaException):
                admin.list_topics(timeout=1)
        """,
}
"""Files of tests that one run of pytest has together: a process for each takes a second."""


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of a run of pytest on all files of `TOGETHER`; every warning is an error."""
    folder = tmp_path_factory.mktemp("together")
    for name, source in TOGETHER.items():
        (folder / f"test_{name}.py").write_text(textwrap.dedent(source))
    (folder / "pytest.ini").write_text(ASYNCIO_STRICT)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options(), "-rA"],
        cwd=folder,
        env={**os.environ, **ENVIRONMENT, "PY_COLORS": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def outcomes(report: str, file: str) -> Counter[str]:
    """Count the outcomes of the tests of one of the files."""
    return Counter(re.findall(rf"^([A-Z]+) test_{file}\.py::", report, re.M))


def test_fixture_serves_sync_and_async_tests(run: Run) -> None:
    result = run(
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
            assert [record.value for record in kafka_broker.records("t")] == [b"v"]
        """,
        ini=ASYNCIO_AUTO,
    )
    result.assert_outcomes(passed=2)


def test_options_come_from_the_closest_marker(together: str) -> None:
    assert outcomes(together, "options") == {"PASSED": 6}


def test_wrong_option_says_what_is_right(run: Run) -> None:
    result = run(
        """
        import pytest

        @pytest.mark.kafka_broker(partition=3)
        def test_name(kafka_broker): ...

        @pytest.mark.kafka_broker(partitions=0)
        def test_value(kafka_topic): ...

        @pytest.mark.kafka_broker(nodes=True)
        def test_type(kafka_cluster): ...

        @pytest.mark.kafka_broker(configs={"retention.ms": None})
        def test_configs(kafka_topic): ...

        @pytest.mark.kafka_broker(3)
        def test_position(kafka_broker): ...

        @pytest.mark.kafka_broker("of", somebody="else")
        def test_without_a_fixture(): ...
        """
    )
    result.assert_outcomes(passed=1, errors=5)
    result.stdout.fnmatch_lines_random(
        [
            "@pytest.mark.kafka_broker has no option 'partition' (its options are nodes, "
            "num_partitions, auto_create_topics, partitions, configs), but this test has "
            "partition=3",
            "@pytest.mark.kafka_broker takes a whole number above 0 for 'partitions', but this "
            "test has partitions=0",
            "@pytest.mark.kafka_broker takes a whole number above 0 for 'nodes', but this test has "
            "nodes=True",
            "@pytest.mark.kafka_broker takes a dict such as {'cleanup.policy': "
            "'compact'} for 'configs', but this test has configs={'retention.ms': None}",
            "@pytest.mark.kafka_broker takes options by name only, but this test has "
            "kafka_broker(3)",
        ]
    )
    assert "Traceback" not in result.stdout.str()


def test_old_name_of_the_marker_counts_and_warns(together: str) -> None:
    assert outcomes(together, "old_name") == {"PASSED": 2}
    warning = "PytestDeprecationWarning: @pytest.mark.kafka is deprecated"
    assert re.search(f"{warning}.*use @pytest.mark.kafka_broker", together)
    assert " 2 warnings, " in together


def test_markers_of_others_by_the_old_name_are_left_alone(together: str) -> None:
    assert outcomes(together, "markers_of_others") == {"PASSED": 3}


def test_works_without_any_async_plugin(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "import sys\nfor name in ('pytest_asyncio', 'anyio'):\n    sys.modules[name] = None"
    )
    result = run(
        """
        import asyncio
        import aiokafka

        async def produce(bootstrap_servers):
            async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap_servers) as producer:
                await producer.send_and_wait("t", b"v")

        def test_sync(kafka_broker):
            asyncio.run(produce(kafka_broker.bootstrap_servers))
            assert kafka_broker.wait_for_records("t")[0].value == b"v"
        """,
        "-p", "no:asyncio", "-p", "no:anyio", ini="[pytest]",
    )  # fmt: skip
    result.assert_outcomes(passed=1)


def test_works_with_pytest_asyncio_in_strict_mode_and_with_anyio(together: str) -> None:
    pytest.importorskip("anyio")
    assert outcomes(together, "strict_mode_and_anyio") == {"PASSED": 2}


def test_serves_other_processes(together: str) -> None:
    assert outcomes(together, "other_processes") == {"PASSED": 1}


def test_each_worker_of_xdist_has_its_own(run: Run) -> None:
    pytest.importorskip("xdist")
    result = run(
        """
        import os
        import pytest

        @pytest.mark.parametrize("number", range(8))
        def test_alone(kafka_broker, kafka_topic, number):
            assert os.environ["PYTEST_XDIST_WORKER"] in ("gw0", "gw1")
            kafka_broker.produce(kafka_topic, str(number))
            assert [record.value for record in kafka_broker.records(kafka_topic)] == [
                b"%d" % number
            ]
            assert len(kafka_broker.topics) == 1
        """,
        "-n", "2",
    )  # fmt: skip
    result.assert_outcomes(passed=8)


def test_exception_in_the_broker_fails_the_test(together: str) -> None:
    assert outcomes(together, "exception") == {"PASSED": 1, "ERROR": 1}
    assert "ZeroDivisionError: a bug" in together


def test_plugin_brings_nothing_into_a_run_that_does_not_use_it() -> None:
    code = (
        "import pytest, sys; before = set(sys.modules); import aiokafka_lite.pytest_plugin; "
        "print(*set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    loaded = set(done.stdout.split()) - {"aiokafka_lite._implementation"}  # if one is chosen
    assert loaded == {
        "aiokafka_lite", "aiokafka_lite._version", "aiokafka_lite.pytest_plugin",
    }  # fmt: skip


@pytest.mark.real_time
def test_broker_is_up_in_milliseconds() -> None:
    times_s, cpu_s = [], []
    for _ in range(10):
        start, start_cpu = time.perf_counter(), time.process_time()
        with BrokerThread(BrokerConfig(nodes=3)):
            times_s.append(time.perf_counter() - start)
        cpu_s.append(time.process_time() - start_cpu)
    assert min(times_s) < 0.02
    # 1 ms of three nodes, with their end 2: whatever else the machine does.
    assert min(cpu_s) < 0.006


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
