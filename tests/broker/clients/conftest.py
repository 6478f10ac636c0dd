"""The same tools and clients against the embedded broker and a real one."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from aiokafka_lite.broker import BrokerConfig
from aiokafka_lite.broker.thread import BrokerThread
from tests.support.cluster import unique
from tests.support.java import ToolResult
from tests.support.java_runner import JavaRunner
from tests.support.real_kafka import KAFKA_VERSION

# What the two clusters are told apart by, and what differs from run to run.
_NORMAL_FORMS = [
    (re.compile(r"TopicId: [\w-]{22}"), "TopicId: ID"),
    (re.compile(r"adminclient-\d+"), "adminclient-N"),
    # Columns are as wide as the address is long.
    (re.compile(r"(ADDRESS +\(\d+\)) +"), r"\1 "),
    # Where Java was: after some calls by reflection it takes another way there.
    (re.compile(r"^\tat .*\n", re.M), ""),
    # A new cluster of Kafka 4.3 has this set for all brokers (KIP-966); ours has no ELR.
    (re.compile(r"(DYNAMIC_DEFAULT|STATIC)_BROKER_CONFIG:min\.insync\.replicas=\d+, "), ""),
    (re.compile(r"min\.insync\.replicas=1,|,?min\.insync\.replicas=1(?=\n)"), ""),
]  # fmt: skip
# The embedded broker has this config of Kafka 4.4.
if tuple(map(int, KAFKA_VERSION.split(".")[:2])) < (4, 4):
    _NORMAL_FORMS.append((re.compile(r"^ *errors\.deadletterqueue\..*\n", re.M), ""))

# Tools and options that change nothing.
_LOOKING = {"get-offsets", "--describe", "--list", "--verify"}
SETTLING_TIME_S = 10


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    """A broker for blocking clients, with Kafka's own sizes."""
    config = BrokerConfig(segment_bytes=1 << 30, offsets_topic_partitions=4)
    with BrokerThread(config) as thread:
        yield thread
    thread.raise_if_failed()


@pytest.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.real_kafka)])
def address(request: pytest.FixtureRequest) -> str:
    """Where a client finds a cluster: the embedded broker, then a real Kafka."""
    if request.param == "real":
        return str(request.getfixturevalue("real_kafka"))
    thread: BrokerThread = request.getfixturevalue("broker")
    return thread.bootstrap_servers


@pytest.fixture
def topic() -> str:
    """A topic's name that no other test uses."""
    return unique("clients")


@dataclass
class BothKafkas:
    """Runs a tool against the embedded broker and a real one.

    Attributes:
        topic: The name of a topic for the test, which goes with it.
        group: The name of a group.
    """

    runner: JavaRunner
    embedded: str
    real: str
    topic: str = field(default_factory=lambda: unique("tools"))
    group: str = field(default_factory=lambda: unique("tools"))

    def run(self, tool: str, *arguments: str, stdin: bytes = b"") -> ToolResult:
        """Run a tool on both, and return what it printed on either: the same on both.

        What changes nothing, also since it is to be refused, Kafka may be asked several times.
        """
        embedded = self._run(self.embedded, tool, arguments, stdin)
        real = self._run(self.real, tool, arguments, stdin)
        if embedded.returncode or tool in _LOOKING or _LOOKING & set(arguments):
            # Kafka's brokers hear of changes a moment after the controller made them.
            deadline = time.monotonic() + SETTLING_TIME_S
            while embedded != real and time.monotonic() < deadline:
                real = self._run(self.real, tool, arguments, stdin)
        assert embedded == real
        return embedded

    def prints(self, tool: str, *arguments: str, stdin: bytes = b"") -> str:
        """Run a tool that succeeds on both, and return what it printed."""
        result = self.run(tool, *arguments, stdin=stdin)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def refuses(self, tool: str, *arguments: str) -> str:
        """Run a tool that fails on both, and return why."""
        result = self.run(tool, *arguments)
        assert result.returncode != 0, result.stdout
        return result.stdout + result.stderr

    def _run(self, address: str, tool: str, arguments: tuple[str, ...], stdin: bytes) -> ToolResult:
        result = self.runner.run(tool, "--bootstrap-server", address, *arguments, stdin=stdin)
        return ToolResult(
            result.returncode, _normal(result.stdout, address), _normal(result.stderr, address)
        )


def _normal(text: str, address: str) -> str:
    text = text.replace(address, "ADDRESS")
    for pattern, replacement in _NORMAL_FORMS:
        text = pattern.sub(replacement, text)
    return text


@pytest.fixture
def both(java_runner: JavaRunner, broker: BrokerThread, real_kafka: str) -> Iterator[BothKafkas]:
    """The embedded broker and a real one; the test's topic is on neither."""
    kafkas = BothKafkas(java_runner, broker.bootstrap_servers, real_kafka)
    yield kafkas
    for address in (kafkas.embedded, kafkas.real):
        java_runner.run(
            "topics", "--bootstrap-server", address, "--delete", "--topic", f"{kafkas.topic}.*"
        )


@pytest.fixture
def json_file(tmp_path: Path) -> Path:
    """Where a tool's input can be written."""
    return tmp_path / "input.json"
