"""The servers that contestants are served by: a real Kafka, and embedded brokers.

An embedded broker runs as its users run it, by the command line, in a process of its own. It is
started when the first contestant asks for it, and stopped with all others in the end.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from benchmarks.measure import RunError
from benchmarks.topics import Topic
from tests.support.real_kafka import RealKafka

_STOP_TIMEOUT_S: Final = 20.0
_LISTENING: Final = re.compile(r"listening on (\S+:\d+)")
TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
_HERE: Final = ("127.0.0.1", "localhost", "[::1]")
_LISTEN: Final = "0A"  # a socket's state in /proc/net/tcp


@dataclass(frozen=True, slots=True)
class Server:
    """What serves a contestant.

    Attributes:
        name: As contestants' names end.
        is_embedded: An embedded broker of ours, not the real Kafka.
        has_directory: It keeps its logs in files.
    """

    name: str
    is_embedded: bool = True
    has_directory: bool = False


KAFKA: Final = Server("Kafka", is_embedded=False)
MEMORY: Final = Server("memory")
DIRECTORY: Final = Server("directory", has_directory=True)
SHORT_LOCKS: Final = {"group.share.min.record.lock.duration.ms": "1000"}
"""Kafka's least lock of a share group is 15 s otherwise, which is long for a quick run."""
SERVERS: Final = {each.name: each for each in (KAFKA, MEMORY, DIRECTORY)}


@contextmanager
def kafka_at(bootstrap_servers: str | None) -> Iterator[str]:
    """Give the address of a real Kafka, started for this run unless one was named.

    Raises:
        KafkaUnavailableError: None was named, and none can be started.
    """
    if bootstrap_servers:
        yield bootstrap_servers
        return
    with RealKafka(jvm_options=(), properties=SHORT_LOCKS) as kafka:
        yield kafka.bootstrap_servers


class EmbeddedBroker:
    """The embedded broker in a process of its own; use it in a `with`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._home: Path | None = None
        self._process: subprocess.Popen[str] | None = None
        self.bootstrap_servers = ""
        self.pid = 0

    def __enter__(self) -> EmbeddedBroker:
        command = [sys.executable, "-m", "aiokafka_lite", "broker", "--listen", "127.0.0.1:0"]
        if self._server.has_directory:
            self._home = Path(tempfile.mkdtemp(prefix="aiokafka-lite-bench-"))
            command += ["--data", str(self._home / "data")]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self._process.stdout is not None
        told = self._process.stdout.readline()
        listening = _LISTENING.search(told)
        if listening is None:
            self.close()
            raise RunError(f"the embedded broker did not start: {told.strip()!r}")
        self.bootstrap_servers, self.pid = listening.group(1), self._process.pid
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop it and remove its data. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)


class Servers:
    """All servers of a run; use it in a `with`.

    Args:
        kafka: The address of the real Kafka.
        reads_once: Whether each topic is read before its first client. Cold pages cost up to half
            of a client's time.
    """

    def __init__(self, kafka: str, *, reads_once: bool = False) -> None:
        self._kafka: Final = kafka
        self._reads_once: Final = reads_once
        self._stack: Final = ExitStack()
        self._embedded: Final[dict[Server, EmbeddedBroker]] = {}
        self._ready: Final[set[tuple[Server, Topic]]] = set()

    def __enter__(self) -> Servers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def address(self, server: Server, topics: Sequence[Topic]) -> str:
        """Return where a server is; an embedded one is started, and given its topics, if need be.

        The real Kafka has its topics already.

        Raises:
            RunError: It does not start, or cannot be loaded or read.
        """
        if server.is_embedded and server not in self._embedded:
            self._embedded[server] = self._stack.enter_context(EmbeddedBroker(server))
        address = self._embedded[server].bootstrap_servers if server.is_embedded else self._kafka
        new = [topic for topic in topics if (server, topic) not in self._ready]
        if new and (server.is_embedded or self._reads_once):
            from benchmarks.loading import TopicError, ensure_topics, read_once  # confluent-kafka's

            try:
                if server.is_embedded:
                    ensure_topics(address, new)
                if self._reads_once:
                    read_once(address, new)
            except TopicError as error:
                raise RunError(f"{server.name}: {error}") from error
        self._ready.update((server, topic) for topic in new)
        return address


class ServerMeter:
    """Measures the CPU time of whoever listens at an address of this machine (Linux)."""

    def __init__(self, bootstrap_servers: str) -> None:
        host, _, port = bootstrap_servers.split(",")[0].rpartition(":")
        # Who listens at this port here has nothing to do with a broker elsewhere.
        self._pid: Final = listener_pid(int(port)) if host in _HERE else None
        self._before_s = self._cpu_s()

    def restart(self) -> None:
        """Measure from now on."""
        self._before_s = self._cpu_s()

    def figures(self, records: int) -> dict[str, float]:
        """Return the figure "broker_cpu_ns", a record; none if the process cannot be found."""
        used_s = self._used_s()
        return {} if used_s is None else {"broker_cpu_ns": used_s * 1e9 / records}

    def share(self, wall_s: float) -> dict[str, float]:
        """Return the figure "broker_cpu_percent", of `wall_s`; none as above."""
        used_s = self._used_s()
        return {} if used_s is None else {"broker_cpu_percent": 100 * used_s / wall_s}

    def _used_s(self) -> float | None:
        now_s = self._cpu_s()
        return None if now_s is None or self._before_s is None else now_s - self._before_s

    def _cpu_s(self) -> float | None:
        return None if self._pid is None else process_cpu_seconds(self._pid)


def process_cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process, in steps of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


def process_resident_bytes(pid: int) -> int:
    """Return how much memory a process has at present."""
    _, resident_pages, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    return int(resident_pages) * os.sysconf("SC_PAGE_SIZE")


def listener_pid(port: int) -> int | None:
    """Return the process that listens on a TCP port of this machine, None if that is not known."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            links = [_link(fd) for fd in folder.iterdir()]
        except OSError:
            continue  # it ended, or belongs to somebody else
        if not sockets.isdisjoint(links):
            return int(folder.parent.name)
    return None


def _link(fd: Path) -> str:
    try:
        return os.readlink(fd)
    except OSError:
        return ""  # it was closed since


def _listening_inodes(port: int) -> list[str]:
    inodes = []
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        if table.exists():
            for line in table.read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.append(fields[9])
    return inodes
