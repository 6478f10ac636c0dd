"""A real Apache Kafka for tests, benchmarks and playing: KRaft nodes from Maven's jars.

Needs `java` (17 or newer) and `mvn`. The jars (about 55 MB) are kept in the user's cache folder,
outside the tree; logs and data live in a temporary folder that goes when the cluster stops.

    python -m tests.support.real_kafka --nodes 3      what `make kafka` runs
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tests.support.maven import Jars, JarsUnavailableError, cache_dir
from tests.support.ports import free_port

KAFKA_VERSION = os.environ.get("KAFKA_VERSION", "4.3.1")
FIRST_PORT = 9092
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
CLUSTER_ID = "YWlva2Fma2FfbGl0ZV9wbA"
HEAP_MIB = 512
JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:-UsePerfData")
# Without the second compiler a node is up for 4 s of CPU time, not 6. For figures the JVM is as it
# comes.
SHORT_LIVED = ("-XX:TieredStopAtLevel=1",)

# The command after this becomes a process that is killed when its standard input is closed: at the
# latest when the process that started it ends, however that ends.
ENDS_WITH_STARTER = (
    "sh", "-c",
    'exec 3<&0; (read -r _ <&3; kill -KILL $$) & exec "$@" 3<&- </dev/null',
    "sh",
)  # fmt: skip

POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>aiokafka-lite</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId>
      <version>{version}</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId>
      <version>{version}</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId>
      <version>1.7.36</version></dependency>
  </dependencies>
</project>
"""


class KafkaUnavailableError(Exception):
    """A real Kafka cannot be had here; the message says what to install."""


def java_command() -> str:
    """Find `java`.

    Raises:
        KafkaUnavailableError: There is none.
    """
    java = shutil.which("java")
    if java is None:
        raise KafkaUnavailableError(
            "no java on the PATH: install a JDK, 17 or newer (Debian: apt-get install "
            "openjdk-17-jdk-headless), or set BOOTSTRAP=host:port to use a running Kafka"
        )
    return java


def kafka_libs(version: str = KAFKA_VERSION) -> Path:
    """Return the folder of Kafka's jars (brokers, tools, clients), fetching them once.

    `KAFKA_LIBS` names a folder to use for the release that tests run on.

    Raises:
        KafkaUnavailableError: The jars are not cached, and `mvn` is missing or fails.
    """
    if version == KAFKA_VERSION and (given := os.environ.get("KAFKA_LIBS")):
        return Path(given)
    title = f"the jars of Apache Kafka {version} (about 55 MB)"
    try:
        return Jars(f"kafka-{version}", title, POM.format(version=version)).fetch()
    except JarsUnavailableError as error:
        raise KafkaUnavailableError(
            f"{error}, or set BOOTSTRAP=host:port to use a running Kafka"
        ) from error


def can_connect(port: int) -> bool:
    """Whether somebody listens on 127.0.0.1 at this port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass
class Node:
    """One process: broker and controller in one, or one of the two."""

    node_id: int
    port: int
    controller_port: int
    home: Path
    roles: str = "broker,controller"
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def log_path(self) -> Path:
        return self.home / "kafka.log"

    @property
    def last_log_path(self) -> Path:
        """The log of the start before the last."""
        return self.home / "kafka.log.1"


class RealKafka:
    """A cluster of real Kafka nodes on this machine; use it in a `with`.

    Args:
        nodes: How many; with three, topics are replicated three times.
        host: The address at which clients reach the nodes.
        ports: The nodes' ports; free ones by default.
        properties: Broker settings that override those made here.
        controllers: So many more nodes are the controllers, and the others only brokers; with 0
            each is both.
        heap_mib: The most memory that a node's objects may take.
        jvm_options: More options of the nodes' JVMs.
        version: The release of Kafka.

    Attributes:
        nodes: The brokers, by their ids from 1.
        controllers: The nodes that are controllers only, by their ids, which go on from there.
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        host: str = "127.0.0.1",
        ports: Sequence[int] = (),
        properties: dict[str, str] | None = None,
        controllers: int = 0,
        heap_mib: int = HEAP_MIB,
        jvm_options: Sequence[str] = SHORT_LIVED,
        version: str = KAFKA_VERSION,
    ) -> None:
        self._java = java_command()
        self._libs = kafka_libs(version)
        self._properties = properties or {}
        self._host = host
        self._heap_mib = heap_mib
        self._jvm_options = (*JVM_OPTIONS, *jvm_options)
        self._home = Path(tempfile.mkdtemp(prefix="aiokafka-lite-kafka-"))
        broker_ports = list(ports) or [free_port() for _ in range(nodes)]
        roles = "broker" if controllers else "broker,controller"
        self.nodes = {
            n: Node(n, port, free_port(), self._home / f"node{n}", roles)
            for n, port in enumerate(broker_ports, start=1)
        }
        self.controllers = {
            n: Node(n, 0, free_port(), self._home / f"node{n}", "controller")
            for n in range(len(broker_ports) + 1, len(broker_ports) + 1 + controllers)
        }

    @property
    def bootstrap_servers(self) -> str:
        """All nodes as "host:port,host:port"."""
        return ",".join(f"{self._host}:{node.port}" for node in self.nodes.values())

    def __enter__(self) -> RealKafka:
        try:
            # Controllers first: a broker waits for one.
            everyone = (*self.controllers.values(), *self.nodes.values())
            for node in everyone:
                self._format(node)
                self._launch(node)
            for node in everyone:
                self._await_start(node)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start_node(self, node_id: int) -> None:
        """Start a node that was killed or stopped, and wait until it serves."""
        node = self._node(node_id)
        self._launch(node)
        self._await_start(node)

    def kill_node(self, node_id: int, sig: signal.Signals = signal.SIGKILL) -> None:
        """Send a node a signal and wait for its end."""
        process = self._node(node_id).process
        if process is not None:
            process.send_signal(sig)
            process.wait()
            _release(process)

    def pause_node(self, node_id: int) -> None:
        """Have a node do nothing any more, with its connections open, until it is resumed."""
        process = self._node(node_id).process
        if process is not None:
            process.send_signal(signal.SIGSTOP)

    def resume_node(self, node_id: int) -> None:
        """Let a paused node go on."""
        process = self._node(node_id).process
        if process is not None:
            process.send_signal(signal.SIGCONT)

    def _node(self, node_id: int) -> Node:
        return self.nodes.get(node_id) or self.controllers[node_id]

    def close(self) -> None:
        """Stop every node and remove their data; idempotent."""
        everyone = (*self.nodes.values(), *self.controllers.values())
        started = [node.process for node in everyone if node.process]
        for process in started:
            process.terminate()
            process.send_signal(signal.SIGCONT)  # a paused one would not hear of it
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for process in started:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _release(process)
        shutil.rmtree(self._home, ignore_errors=True)

    def _settings(self, node: Node) -> dict[str, str]:
        replicas = "3" if len(self.nodes) >= 3 else "1"
        in_sync = "2" if len(self.nodes) >= 3 else "1"
        quorum = (self.controllers or self.nodes).values()
        voters = ",".join(f"{n.node_id}@127.0.0.1:{n.controller_port}" for n in quorum)
        address = f"PLAINTEXT://{self._host}:{node.port}"
        listeners = []
        advertised = {}
        if "broker" in node.roles:
            listeners.append(address)
            advertised = {"advertised.listeners": address}
        if "controller" in node.roles:
            listeners.append(f"CONTROLLER://127.0.0.1:{node.controller_port}")
        return {
            "process.roles": node.roles,
            "node.id": str(node.node_id),
            "controller.quorum.voters": voters,
            "listeners": ",".join(listeners),
            **advertised,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(node.home / "data"),
            "broker.rack": f"rack{node.node_id}",
            "num.partitions": "4",
            "default.replication.factor": replicas,
            "min.insync.replicas": in_sync,
            "offsets.topic.num.partitions": "8",
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": in_sync,
            # Transactions that a test leaves open stay so through the longest run.
            "transaction.max.timeout.ms": str(4 * 3600 * 1000),
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": in_sync,
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
            # Tests and people at a prompt do not wait three seconds for each new group, nor one
            # for each assignment of KIP-848, and see a dead broker and a compacted log as soon
            # as they can.
            "group.initial.rebalance.delay.ms": "0",
            "group.consumer.assignment.interval.ms": "0",
            "log.cleaner.backoff.ms": "500",
            # Tests write records of past years, which Kafka would delete after five minutes.
            "log.retention.check.interval.ms": str(24 * 3600 * 1000),
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            **self._properties,
        }

    def _format(self, node: Node) -> None:
        node.home.mkdir(parents=True)
        config = node.home / "server.properties"
        lines = [f"{name}={value}" for name, value in self._settings(node).items()]
        config.write_text("\n".join(lines) + "\n")
        command = [self._java, "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp",
                   f"{self._libs}/*", "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID,
                   "-c", str(config)]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise KafkaUnavailableError(
                f"Kafka's storage tool failed: {done.stdout}{done.stderr[-2000:]}"
            )

    def _launch(self, node: Node) -> None:
        level = "-Dorg.slf4j.simpleLogger"
        command = [
            *ENDS_WITH_STARTER, self._java, f"-Xmx{self._heap_mib}m", *self._jvm_options,
            f"{level}.defaultLogLevel=warn", f"{level}.log.kafka.server.KafkaRaftServer=info",
            # First: with older releases comes another that would be the logger.
            "-cp", f"{self._libs}/slf4j-simple-1.7.36.jar:{self._libs}/*", "kafka.Kafka",
            str(node.home / "server.properties"),
        ]  # fmt: skip
        if node.log_path.exists():  # what a start waits for must be this start's
            node.log_path.replace(node.last_log_path)
        with node.log_path.open("wb") as log:
            node.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT,
                cwd=node.home, start_new_session=True,  # Ctrl-C is ours to handle
            )  # fmt: skip

    def _await_start(self, node: Node) -> None:
        assert node.process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if "Kafka Server started" in node.log_path.read_text(errors="replace"):
                return
            if node.process.poll() is not None:
                break
            time.sleep(0.1)
        tail = node.log_path.read_text(errors="replace")[-2000:]
        raise KafkaUnavailableError(f"Kafka node {node.node_id} did not come up:\n{tail}")


def _release(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe to a process that has ended."""
    if process.stdin is not None:
        process.stdin.close()


@contextlib.contextmanager
def announced(state: Path, kafka: RealKafka) -> Iterator[None]:
    """Say in a file that this cluster is up, for as long as it is."""
    state.parent.mkdir(parents=True, exist_ok=True)
    state.write_text(json.dumps({"pid": os.getpid(), "address": kafka.bootstrap_servers}))
    try:
        yield
    finally:
        state.unlink(missing_ok=True)


def running_address(state: Path) -> str | None:
    """The address of the cluster that `make kafka` has up, or None."""
    try:
        noted = json.loads(state.read_text())
        os.kill(int(noted["pid"]), 0)
        address = str(noted["address"])
        port = int(address.partition(",")[0].rpartition(":")[2])
    except (OSError, ValueError, KeyError):
        return None
    # After a crash another program may have the process's number.
    return address if can_connect(port) else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a real Kafka until Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="make kafka", description="Run a real Apache Kafka on 127.0.0.1 until Ctrl-C."
    )
    parser.add_argument("--nodes", type=int, default=1, choices=range(1, 10), metavar="1..9")
    parser.add_argument("--port", type=int, default=FIRST_PORT, help="first port (%(default)s)")
    options = parser.parse_args(arguments)
    if not 1 <= options.port <= 65_536 - options.nodes:
        parser.error(f"ports are numbers from 1 to 65535, not {options.port}")
    state = cache_dir() / "running.json"
    if address := running_address(state):
        print(f"a Kafka is up already: {address}")
        return 0
    ports = range(options.port, options.port + options.nodes)
    if taken := [port for port in ports if can_connect(port)]:
        print(
            f"port {taken[0]} is in use by another program: choose one with PORT=", file=sys.stderr
        )
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with (
            RealKafka(options.nodes, ports=ports, jvm_options=()) as kafka,
            announced(state, kafka),
        ):
            print(f"Apache Kafka {KAFKA_VERSION} is up: {kafka.bootstrap_servers}")
            print(f"try it:  make run BOOTSTRAP={kafka.bootstrap_servers}    (Ctrl-C stops Kafka)")
            sys.stdout.flush()
            while all(n.process and n.process.poll() is None for n in kafka.nodes.values()):
                time.sleep(0.5)
            print("a node ended by itself", file=sys.stderr)
            return 1
    except KafkaUnavailableError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped")
        return 0


if __name__ == "__main__":
    sys.exit(main())
