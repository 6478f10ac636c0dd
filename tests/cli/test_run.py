"""`aiokafka-lite run`, as processes."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.cli import processes
from aiokafka_lite.cli.main import build_parser
from aiokafka_lite.cli.problems import CommandError, UsageError
from aiokafka_lite.cli.run import consumer_of, load
from aiokafka_lite.errors import (
    KafkaError,
    NodeNotReadyError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.structs import TopicPartition
from tests.cli.running import Running
from tests.support.cluster import KafkaHandle, unique
from tests.support.for_each import for_each
from tests.support.ports import free_port
from tests.support.programs import started, started_and_awaited
from tests.support.waiting import until

PATIENCE_S = 60.0
ROOT = Path(__file__).parents[2]
HANDLERS = """
import asyncio, os, signal, stat, sys, time
from aiokafka_lite.cli import processes

def say(*words):
    os.write(1, (" ".join(map(str, (os.getpid(), *words))) + "\\n").encode())

async def handle(record):
    say("began", record.partition, record.offset)
    await asyncio.sleep(0.05)
    say("ended", record.partition, record.offset)

async def show(record):
    say("optimized", sys.flags.optimize, "piped", stat.S_ISFIFO(os.fstat(0).st_mode))

async def slow(record):
    say("began", record.partition, record.offset)
    try:
        await asyncio.sleep(600)
    finally:
        say("cancelled", record.partition, record.offset)

async def terminate(record):
    # Returns once the program runs: a signal between a fork and that would be lost.
    program = os.posix_spawnp("sleep", ["sleep", "20"], os.environ)
    os.kill(program, signal.SIGTERM)
    say("program", os.waitpid(program, 0)[1])
    ours, theirs = os.pipe()
    if not (forked := os.fork()):
        os.write(theirs, b"runs")
        time.sleep(20)
    os.read(ours, 4)
    os.kill(forked, signal.SIGTERM)
    say("forked", os.waitpid(forked, 0)[1])

async def hang(record):
    processes.KILL_S = 1.0
    say("began", record.partition, record.offset)
    time.sleep(600)

async def hang_once(record):
    if not os.path.exists("hung"):
        open("hung", "w").close()
        await hang(record)
    say("ended", record.partition, record.offset)

async def fail_and_hang(record):
    thread = asyncio.to_thread(time.sleep, 600)
    await asyncio.wait({asyncio.ensure_future(thread)}, timeout=2)
    raise LookupError("of the handler")

async def fail(record):
    raise LookupError("of the handler")

async def lose_connection(record):
    raise BrokenPipeError(32, "Broken pipe")

nothing = None
by_topic = {"not_there": handle}
by_number = {5: handle}

class Inner:
    by_topic = {}
"""


@pytest.fixture
async def embedded() -> AsyncIterator[KafkaHandle]:
    # A killed static member of KIP-848 keeps its partitions for one session.
    async with Broker(group_consumer_session_timeout_ms=6_000) as broker:
        yield KafkaHandle("embedded", broker.bootstrap_servers)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "handlers_of_run.py").write_text(HANDLERS)
    (tmp_path / "broken_of_run.py").write_text("\nimport not_installed\n")
    (tmp_path / "wrong_of_run.py").write_text("def (\n")
    return tmp_path


class Command:
    """The command, and the lines that it has written so far."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def until(self, pattern: str, count: int = 1) -> None:
        """Read lines until so many match."""
        while sum(bool(re.search(pattern, each)) for each in self.lines) < count:
            assert await self.read(), f"{pattern!r} is not in {self.lines}"

    async def read(self) -> bool:
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        self.lines.append(line.decode().strip())
        return bool(line)

    async def follow(self) -> None:
        while await self.read():
            pass

    async def rest(self) -> int:
        assert self.process.stdout is not None
        self.lines += (await self.process.stdout.read()).decode().splitlines()
        return await self.process.wait()

    def records(self, word: str) -> dict[int, Counter[tuple[int, int]]]:
        """Return how often each record was handled, by process."""
        found: dict[int, Counter[tuple[int, int]]] = {}
        for each in self.lines:
            if match := re.fullmatch(rf"(\d+) {word} (\d+) (\d+)", each):
                pid, partition, offset = map(int, match.groups())
                found.setdefault(pid, Counter())[partition, offset] += 1
        return found


@asynccontextmanager
async def command(
    kafka: KafkaHandle,
    folder: Path,
    *arguments: str,
    program: Sequence[str] = ("-m", "aiokafka_lite"),
    patience_s: float = PATIENCE_S,
) -> AsyncIterator[Command]:
    async with timeout(patience_s), started(
        sys.executable, *program, "run", *arguments, "-b", kafka.bootstrap_servers,
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=PIPE, stdout=PIPE, stderr=asyncio.subprocess.STDOUT,
    ) as process:  # fmt: skip
        yield Command(process)


async def topic_of(kafka: KafkaHandle, count: int, partitions: int = 4) -> str:
    topic = await kafka.create_topic(unique("run"), partitions)
    for partition in range(partitions):
        values = [(b"k%d" % (n % 5), b"%d" % n) for n in range(count)]
        await kafka.produce(topic, partition, values)
    return topic


async def committed(kafka: KafkaHandle, topic: str, partitions: int = 4) -> list[int | None]:
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, group_id=topic)
    async with consumer:
        return [await consumer.committed(TopicPartition(topic, n)) for n in range(partitions)]


async def test_one_process_drains_at_sigterm(embedded: KafkaHandle, folder: Path) -> None:
    topic = await topic_of(embedded, 20)
    async with command(embedded, folder, "handlers_of_run:handle", "-g", topic, topic) as running:
        await running.until("ended", 5)
        running.process.send_signal(signal.SIGTERM)
        assert await running.rest() == 0
        ended = sum(running.records("ended").values(), Counter())
        assert running.records("began") == running.records("ended")
    assert sum(each or 0 for each in await committed(embedded, topic)) <= len(ended) <= 80
    async with command(
        embedded, folder, "handlers_of_run:handle", "-g", topic, topic, "--until", "end"
    ) as running:
        assert await running.rest() == 0
        assert f"{80 - len(ended)} of {80 - len(ended)} records finished" in running.lines[-1]
    assert await committed(embedded, topic) == [20] * 4


@asynccontextmanager
async def with_short_sessions(kafka: KafkaHandle) -> AsyncIterator[KafkaHandle]:
    """The same cluster, or an embedded broker that misses a killed member soon."""
    if kafka.kind == "real":
        yield kafka
        return
    async with Broker(
        group_consumer_session_timeout_ms=2_000, group_consumer_heartbeat_interval_ms=400
    ) as broker:
        yield KafkaHandle("embedded", broker.bootstrap_servers)


@pytest.mark.real_if_long
async def test_each_of_four_processes_is_killed_while_records_are_produced(
    kafka: KafkaHandle, folder: Path
) -> None:
    partitions, port = 8, free_port()
    # Per killed process, what was committed before: all later records may be repeated.
    killed: dict[int, list[int | None]] = {}
    async with with_short_sessions(kafka) as kafka:
        topic = await topic_of(kafka, 5, partitions)
        async with command(
            kafka, folder, "handlers_of_run:handle", topic, "-g", topic, "--processes", "4",
            "--web", f"127.0.0.1:{port}", patience_s=10 * PATIENCE_S,
        ) as running:  # fmt: skip
            following = asyncio.ensure_future(running.follow())
            count = 5
            while len(killed) < 4 or not is_restarted(running, 4):
                for partition in range(partitions):
                    await kafka.produce(topic, partition, [(b"k%d" % n, b"v") for n in range(5)])
                count += 5
                await asyncio.sleep(0.1)
                pids = [*running.records("began")]
                if len(killed) < 4 <= len(pids) and is_restarted(running, len(killed)):
                    killed[pids[len(killed)]] = await committed(kafka, topic, partitions)
                    os.kill([*killed][-1], signal.SIGKILL)
            everything = {(p, n) for p in range(partitions) for n in range(count)}
            while set().union(*running.records("ended").values()) != everything:
                assert not following.done(), running.lines
                await asyncio.sleep(0.1)
            await check_pages(port)
            running.process.send_signal(signal.SIGTERM)
            await following
            assert await running.rest() == 0
        assert await committed(kafka, topic, partitions) == [count] * partitions
    check_handled(running, killed)


def is_restarted(running: Command, count: int) -> bool:
    """Whether so many processes were restarted."""
    return sum("starts again" in each for each in running.lines) == count


def check_handled(running: Command, killed: Mapping[int, Sequence[int | None]]) -> None:
    """Check the order of a key's records, and that only open records of a killed process repeat."""
    began: dict[tuple[int, int], int] = {}
    ended = Counter[tuple[int, int]]()  # how many records of a partition's key
    for line in running.lines:
        if match := re.fullmatch(r"(\d+) (began|ended) (\d+) (\d+)", line):
            pid, partition, offset = int(match[1]), int(match[3]), int(match[4])
            key, place = (partition, offset % 5), offset // 5
            if match[2] == "ended":
                ended[key] = max(ended[key], place + 1)
                continue
            assert ended[key] >= place, f"{line} began before an earlier record of its key ended"
            if (earlier := began.get((partition, offset))) is not None:
                assert earlier in killed, f"{line} was begun by {earlier}, which is healthy"
                assert offset >= (killed[earlier][partition] or 0), f"{line} was committed"
            began[partition, offset] = pid


async def check_pages(port: int) -> None:
    """Check the pages of four processes that have started twice."""
    status, body = await asyncio.to_thread(get, port, "/health")
    health = json.loads(body)
    assert (status, [each["restarts"] for each in health["processes"]]) == (200, [1] * 4)
    status, body = await asyncio.to_thread(get, port, "/metrics")
    assert all(f'process="{number}"' in body for number in range(4))
    assert body.count("# TYPE aiokafka_lite_records_total counter") == 1
    status, body = await asyncio.to_thread(get, port, "/scale/60/0.5")
    assert json.loads(body).keys() == {"lag", "partitions_with_lag", "busy", "wanted"}


def get(port: int, path: str) -> tuple[int, str]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, answer.read().decode()


async def test_two_programs_of_one_machine_share_a_group(
    embedded: KafkaHandle, folder: Path, cli: Running
) -> None:
    topic = await topic_of(embedded, 1)
    arguments = ("handlers_of_run:handle", topic, "-g", topic, "--processes", "2")
    async with (
        command(embedded, folder, *arguments) as one,
        command(embedded, folder, *arguments) as another,
    ):
        members: list[object] = []
        while members != [4]:
            await asyncio.sleep(0.2)
            ended = await cli("groups", topic, "--json", "-b", embedded.bootstrap_servers)
            members = [each["members"] for each in ended.objects]
        for each in (one, another):
            each.process.send_signal(signal.SIGTERM)
            assert await each.rest() == 0


async def test_sigterm_before_the_end_is_no_success(embedded: KafkaHandle, folder: Path) -> None:
    topic = await topic_of(embedded, 20)
    until_end = ("--until", "end", "--concurrency", "1")
    for count in ("1", "2"):
        group = f"{topic}-{count}"
        async with command(
            embedded, folder, "handlers_of_run:handle", topic, "-g", group, *until_end,
            "--processes", count,
        ) as running:  # fmt: skip
            await running.until("ended")
            running.process.send_signal(signal.SIGTERM)
            assert await running.rest() == 143
            assert "stopped before the end" in running.lines[-1]


async def test_ctrl_c_while_the_command_starts_prints_no_traceback(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        silent = KafkaHandle("embedded", f"127.0.0.1:{listening.getsockname()[1]}")
        for more in ((), ("--processes", "2")):
            async with command(
                silent, folder, "handlers_of_run:handle", "t", "-g", "g", *more
            ) as running:
                accepted, _ = await asyncio.get_running_loop().sock_accept(listening)
                with accepted:
                    running.process.send_signal(signal.SIGINT)
                    assert await running.rest() == 130
                assert not re.search("Traceback|asyncio", "".join(running.lines))


async def test_errors_of_handlers_are_not_those_of_the_output(
    embedded: KafkaHandle, folder: Path, cli: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    topic = await topic_of(embedded, 1, 1)
    for handler, text in (
        ("handlers_of_run:lose_connection", "BrokenPipeError: [Errno 32] Broken pipe"),
        ("handlers_of_run:slow", "TimeoutError: "),
    ):
        ended = await cli(
            "run", handler, topic, "-g", topic, "-b", embedded.bootstrap_servers,
            "--log-level", "warning", "--handler-timeout", "0.1",
        )  # fmt: skip
        assert ended.code == 1
        assert f"error: {handler}: {text}" in ended.errors


async def test_processes_end_at_the_ends_and_print_what_they_did(
    embedded: KafkaHandle, folder: Path, cli: Running
) -> None:
    topic = await topic_of(embedded, 10)
    async with command(
        embedded, folder, "handlers_of_run:handle", topic, "-g", topic, "--processes", "2",
        "--until", "end",
    ) as running:  # fmt: skip
        assert await running.rest() == 0
    found = [re.search(r"^\[\d\] (\d+) of \1 records", each) for each in running.lines[-2:]]
    assert sum(int(each[1]) for each in found if each) == 40
    assert await committed(embedded, topic) == [10] * 4
    [group] = (await cli("groups", topic, "--json", "-b", embedded.bootstrap_servers)).objects
    assert group["members"] == 0


async def test_processes_have_the_options_of_the_interpreter_and_no_input(
    embedded: KafkaHandle, folder: Path
) -> None:
    topic = await topic_of(embedded, 1, 1)
    two = topic, "-g", topic, "--processes", "2", "--until", "end"
    program = "-O", "-m", "aiokafka_lite"
    async with command(embedded, folder, "handlers_of_run:show", *two, program=program) as running:
        assert await running.rest() == 0
    assert "optimized 1 piped False" in "".join(running.lines)


async def test_a_process_that_hangs_does_not_outlive_the_first(
    embedded: KafkaHandle, folder: Path
) -> None:
    topic = await topic_of(embedded, 1, 1)
    async with command(
        embedded, folder, "handlers_of_run:hang", topic, "-g", topic, "--processes", "2"
    ) as running:
        await running.until("began")
        running.process.kill()
        await running.rest()  # all processes have closed the output


@pytest.mark.parametrize("ending", ["again", "killed"])
async def test_a_second_signal_cancels_and_no_process_outlives_the_first(
    embedded: KafkaHandle, folder: Path, ending: str
) -> None:
    topic = await topic_of(embedded, 2)
    async with command(
        embedded, folder, "handlers_of_run:slow", topic, "-g", topic, "--processes", "2"
    ) as running:
        await running.until("began", 4)
        if ending == "killed":
            running.process.kill()
            await running.until("handlers are running")
            for pid in running.records("began"):
                os.kill(pid, signal.SIGUSR1)  # as the second signal
        else:
            running.process.send_signal(signal.SIGTERM)
            await running.until("handlers are running")
            running.process.send_signal(signal.SIGTERM)
        await running.until("cancelled", 4)
        code = await running.rest()  # all processes have closed the output
    assert code == (143 if ending == "again" else -signal.SIGKILL)


async def test_a_failed_or_wrong_handler_ends_the_command(
    embedded: KafkaHandle, folder: Path
) -> None:
    topic = await topic_of(embedded, 2, 1)
    two = topic, "--processes", "2"
    for handler, text, more in (
        ("handlers_of_run:fail", "handlers_of_run:fail: LookupError: of the handler", two),
        ("broken_of_run:handle", "cannot import broken_of_run: ModuleNotFoundError", two),
        ("handlers_of_run:nothing", "handler must be", two),
        ("handlers_of_run:nothing", "handler must be", (topic,)),
        ("handlers_of_run:by_topic", "topic 'not_there' was not found", ("--timeout", "1")),
        ("handlers_of_run:by_number", "by_number: a topic's name must be", ()),
        ("handlers_of_run:by_number", "by_number: a topic's name must be", two),
    ):
        async with command(embedded, folder, handler, *more, "-g", topic) as running:
            assert await running.rest() == 1
            assert text in running.lines[-1]
            assert not re.search("starts again|Unclosed", "".join(running.lines))


async def test_processes_of_a_handler_do_not_ignore_signals(
    embedded: KafkaHandle, folder: Path
) -> None:
    topic = await topic_of(embedded, 1, 1)
    async with command(
        embedded, folder, "handlers_of_run:terminate", topic, "-g", topic, "--processes", "2",
    ) as running:  # fmt: skip
        await running.until(r" program 15$")
        await running.until(r" forked 15$")
        running.process.send_signal(signal.SIGTERM)
        assert await running.rest() == 0


@pytest.fixture
def impatient(folder: Path) -> tuple[str]:
    """The command, whose first process waits for shorter times."""
    (folder / "impatient.py").write_text(
        "import sys\nfrom aiokafka_lite.cli import main, processes\n"
        "processes.KILL_S, processes.SILENT_S, processes.HUNG_S = 3.0, 2.0, 4.0\n"
        "if __name__ == '__main__':\n    sys.exit(main.main())\n"
    )
    return ("impatient.py",)


async def test_a_process_that_remains_after_its_failure_is_killed(
    embedded: KafkaHandle, folder: Path, impatient: tuple[str]
) -> None:
    topic, port = await topic_of(embedded, 1, 1), free_port()
    async with command(
        embedded, folder, "handlers_of_run:fail_and_hang", topic, "-g", topic, "--processes", "2",
        "--web", f"127.0.0.1:{port}", program=impatient,
    ) as running:  # fmt: skip
        await running.until(r"process \d has failed: 2 processes stop")
        assert "is killed" not in "".join(running.lines), "the others stop at once"
        await running.until(r"process \d is killed: it has not ended in 3 s")
        assert await running.rest() == 1
        assert "LookupError: of the handler" in running.lines[-1]


async def test_a_process_that_hangs_is_killed_and_starts_again(
    embedded: KafkaHandle, folder: Path, impatient: tuple[str]
) -> None:
    topic, port = await topic_of(embedded, 1, 1), free_port()
    async with command(
        embedded, folder, "handlers_of_run:hang_once", topic, "-g", topic, "--processes", "2",
        "--web", f"127.0.0.1:{port}", program=impatient,
    ) as running:  # fmt: skip
        await running.until("began")
        await asyncio.sleep(2.5)
        status, body = await asyncio.to_thread(get, port, "/health")
        health = json.loads(body)
        assert (status, health["verdict"]) == (200, "degraded")
        [dead] = [each for each in health["processes"] if each["verdict"] == "dead"]
        assert dead["reasons"] == ["no report for 2 s"]
        status, body = await asyncio.to_thread(get, port, "/metrics")
        assert (status, f'process="{dead["process"]}"' in body) == (200, False)
        await running.until(r"process \d is killed: it has not reported for 4 s")
        await running.until(r"ended \(exit code -9\), and starts again in 0.5 s")
        await running.until("ended 0 0")
        running.process.send_signal(signal.SIGTERM)
        assert await running.rest() == 0


async def test_errors_that_a_restart_does_not_cure_end_the_command(
    embedded: KafkaHandle, folder: Path
) -> None:
    topic = await topic_of(embedded, 1, 1)
    two, password = ("--processes", "2"), ("--username", "u", "--password", "wrong")
    async with Broker(security_protocol="SASL_PLAINTEXT", users={"u": "right"}) as broker:
        secured = KafkaHandle("embedded", broker.bootstrap_servers)
        for kafka, handler, text, more in (
            (
                secured,
                "handle",
                "refuses PLAIN authentication",
                (*password, "--security-protocol", "SASL_PLAINTEXT"),
            ),
            (embedded, "fail", "LookupError: of the handler", ("--until", "end")),
        ):
            async with command(
                kafka, folder, f"handlers_of_run:{handler}", topic, "-g", topic, *two, *more
            ) as running:
                assert await running.rest() == 1
                assert text in running.lines[-1]
                assert "starts again" not in "".join(running.lines)


async def test_only_a_process_that_starts_again_stays_in_the_group(
    embedded: KafkaHandle, cli: Running
) -> None:
    for error, count in (
        (NodeNotReadyError("t"), 1),
        (TopicAuthorizationFailedError("t"), 0),
        (UnknownTopicOrPartitionError("t"), 0),
        (None, 0),
    ):
        topic = await topic_of(embedded, 1)
        arguments = ["run", "m:h", topic, "-g", topic, "-b", embedded.bootstrap_servers]
        options = build_parser("run").parse_args([*arguments, "--processes", "2"])
        options.instance = "of-this-start"
        with suppress(KafkaError):
            async with consumer_of(options, 0, object()) as consumer:
                await until(consumer.assignment)
                if error is not None:
                    raise error
        [group] = (await cli("groups", topic, "--json", "-b", embedded.bootstrap_servers)).objects
        assert group["members"] == count, error


@pytest.mark.parametrize(
    "problem", ["127.0.0.1:1", "too many processes", "too many files", "code 3"]
)
def test_processes_that_never_begin_end_the_command(
    problem: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **_more: object) -> None:
        raise OSError(errno.EAGAIN, problem)

    def die(*_: object) -> subprocess.Popen[str]:
        with started_and_awaited([sys.executable, "-c", "import sys; sys.exit(3)"]) as process:
            process.wait()
        return process

    match problem:
        case "too many processes":
            monkeypatch.setattr(subprocess, "Popen", fail)
        case "too many files":
            monkeypatch.setattr(processes, "Pipe", fail)
        case "code 3":
            monkeypatch.setattr(processes, "start", die)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(processes, "FIRST_DELAY_S", 0.0)
    monkeypatch.setattr(processes, "MOST_DEATHS", 2)
    arguments = ("run", "handlers_of_run:handle", "t", "-g", "g", "-b", "127.0.0.1:1")
    options = build_parser("run").parse_args([*arguments, "--processes", "2"])
    options.instance = None
    with pytest.raises(CommandError, match=rf"ended 2 times .*{problem}"):
        asyncio.run(processes.Supervisor(options).run())


@for_each(
    [
        ("handle", UsageError, "write MODULE:HANDLER"),
        (":handle", UsageError, "write MODULE:HANDLER"),
        ("missing_of_run:handle", CommandError, "No module named 'missing_of_run'$"),
        ("handlers_of_run.sub:handle", CommandError, "No module named 'handlers_of_run.sub'"),
        ("broken_of_run:handle", CommandError, "'not_installed' .*broken_of_run.py, line 2"),
        ("wrong_of_run:handle", CommandError, "SyntaxError.*wrong_of_run.py, line 1"),
        ("handlers_of_run:handles", CommandError, "has no handles; did you mean handle?"),
        ("handlers_of_run:Inner.nothing", CommandError, "has no Inner.nothing"),
    ]
)
def test_handlers_that_cannot_be_imported(
    given: str, kind: type[Exception], text: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(kind, match=text):
        load(given)
    assert load("handlers_of_run:Inner.by_topic") == {}
