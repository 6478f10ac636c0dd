"""Several processes of the command `run`: one starts, watches, restarts and stops the others.

Each process is spawned, and is a static member of the group. It sends reports over a pipe, and
notices by the pipe's end that the first process has died. It ignores SIGTERM and SIGINT, which a
terminal or systemd sends to all processes: the first process forwards them as `STOP`.

=======  =====================================================================================
signal   effect in the first process
=======  =====================================================================================
first    `STOP` to each process, which drains. After `KILL_S`, processes that remain are killed
second   `STOP` again, which cancels the handlers
third    the processes are killed
=======  =====================================================================================

A process that has reported its end, but remains because of a hung thread, is killed as well.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import importlib
import json
import logging
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeAlias

from aiokafka_lite._signals import STOP_SIGNALS, StopSignals, name_of
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.cli import loops
from aiokafka_lite.cli.problems import CommandError, plain_text
from aiokafka_lite.cli.run import FORMAT, consumer_of, handle_all, is_of_arguments, load
from aiokafka_lite.consumer.membership.recovery import Recovery, recovery_for
from aiokafka_lite.consumer.processing.draining import DRAIN_S
from aiokafka_lite.errors import ConsumerStoppedError, KafkaError, UnknownTopicOrPartitionError

if TYPE_CHECKING:
    from aiokafka_lite import AIOKafkaConsumer
    from aiokafka_lite.processing import RunSummary

log = logging.getLogger(__name__)

# None on Windows, which cannot send it to one process.
STOP: Final[int | None] = getattr(signal, "SIGUSR1", None)
# Longer than a process takes to drain.
KILL_S: Final = DRAIN_S + 3
FIRST_DELAY_S: Final = 0.5
LAST_DELAY_S: Final = 30.0
# A process that ran this long before it failed is restarted after the first delay.
HEALTHY_AFTER_S: Final = 60.0
# So often a process may end in a row before its consumer has begun.
MOST_UNHEARD: Final = 5
# How often signals, ends of processes and due restarts are looked for, and between reports.
LOOK_S: Final = 0.2
REPORT_S: Final = 1.0
# Without a report for so long, a process hangs: a handler may block the event loop.
SILENT_S: Final = 30.0


class Report(NamedTuple):
    """The state of one process's consumer, at a time of the monotonic clock."""

    health: dict[str, Any]
    metrics: dict[str, Any]
    at_s: float


class Failed(NamedTuple):
    """A process ends by an error. `is_permanent`: a restart would not help."""

    text: str
    is_permanent: bool


class Done(NamedTuple):
    """A process has reached its end (`--until end`)."""

    summary: RunSummary


Message: TypeAlias = "Report | Failed | Done"


# --- A spawned process ------------------------------------------------------------------------
def work(options: argparse.Namespace, number: int, connection: Connection) -> None:
    """Run in a spawned process."""
    for each in STOP_SIGNALS:
        # In contrast to SIG_IGN, programs and processes that a handler starts do not inherit it.
        earlier = signal.signal(each, lambda *_: None)
        os.register_at_fork(after_in_child=partial(signal.signal, each, earlier))
    logging.basicConfig(format=f"[{number}] {FORMAT}", level=options.log_level.upper(), force=True)
    threading.Thread(target=_end_with_parent, args=[connection], daemon=True).start()
    try:
        handler = load(options.handler)
    except CommandError as error:
        _send(connection, Failed(plain_text(error), is_permanent=True))
        sys.exit(1)
    main = _handle(options, number, handler, connection)
    sys.exit(loops.run(main, options.loop, handles_signals=False))


_sending: Final = threading.Lock()


def _send(connection: Connection, message: Message) -> None:
    with _sending, contextlib.suppress(BrokenPipeError):
        connection.send(message)


def _end_with_parent(connection: Connection) -> None:
    """Stop as soon as the first process has died, by SIGKILL if nothing else helps."""
    with contextlib.suppress(EOFError, OSError):
        connection.recv()
    log.warning("the first process has died: this one stops")
    os.kill(os.getpid(), STOP or signal.SIGTERM)
    time.sleep(KILL_S)
    os.kill(os.getpid(), signal.SIGKILL)


async def _handle(
    options: argparse.Namespace, number: int, handler: object, connection: Connection
) -> int:
    consumer = consumer_of(options, number)
    reporting = TaskScope("reports")
    has_begun = False
    try:
        async with consumer:
            has_begun = True
            reporting.spawn(_report(consumer, connection), name="report")
            summary = await handle_all(consumer, handler, options, stop_on=(STOP,))
    except ConsumerStoppedError:
        return 0
    except Exception as error:
        if not has_begun:
            is_wrong = isinstance(error, UnknownTopicOrPartitionError) or (
                isinstance(error, KafkaError) and recovery_for(error) is Recovery.SURFACE
            )
        else:
            is_wrong = isinstance(error, (TypeError, ValueError)) and is_of_arguments(consumer)
        if not is_wrong:
            log.exception("the process ends, because run() has failed")
        is_permanent = is_wrong or (has_begun and options.until is not None)
        _send(connection, Failed(f"{type(error).__name__}: {plain_text(error)}", is_permanent))
        return 1
    finally:
        await reporting.close()
    if summary is not None and summary.is_complete:
        _send(connection, Done(summary))
    return 0


async def _report(consumer: AIOKafkaConsumer, connection: Connection) -> NoReturn:
    while True:
        health = dataclasses.asdict(consumer.health())
        report = Report(health, consumer.metrics(), time.monotonic())
        # In a thread: the first process may be slow to read.
        await asyncio.to_thread(_send, connection, report)
        await asyncio.sleep(REPORT_S)


# --- The first process ------------------------------------------------------------------------
class Worker:
    """One process after the other, with the same number."""

    def __init__(self, options: argparse.Namespace, number: int) -> None:
        self._options, self.number = options, number
        self.process: BaseProcess | None = None
        self._connection: Connection | None = None
        self.report: Report | None = None
        self.failed: Failed | None = None
        self.done: Done | None = None
        self.starts_at = self._started_at = 0.0
        self.kills_at = math.inf
        self.start_count = self._failure_count = self._unheard_count = 0

    def start(self) -> None:
        self.report = self.failed = None
        self.kills_at = math.inf
        self._started_at = time.monotonic()
        self.start_count += 1
        self._unheard_count += 1
        context = multiprocessing.get_context("spawn")
        try:
            ours, theirs = context.Pipe()
            with theirs:
                given = self._options, self.number, theirs
                process = context.Process(target=work, args=given, name=f"run-{self.number}")
                process.start()
        except OSError as error:  # such as too many processes
            self._restart_later(str(error))
        else:
            self.process, self._connection = process, ours

    @property
    def waited_for(self) -> Iterator[Any]:
        if self.process is not None and self._connection is not None:
            yield self.process.sentinel
            yield self._connection

    def look(self, *, is_stopping: bool) -> None:
        """Read messages, and note the process's end."""
        process, connection = self.process, self._connection
        if process is None or connection is None:
            return
        is_alive = process.is_alive()  # before the last messages are read
        with contextlib.suppress(EOFError, OSError):
            while connection.poll():
                self._take(connection.recv())
        if is_alive:
            return
        process.join()
        connection.close()
        self.process = self._connection = None
        if self.done is None and not is_stopping:
            self._restart_later(f"exit code {process.exitcode}")

    def _restart_later(self, reason: str) -> None:
        now = time.monotonic()
        if now - self._started_at > HEALTHY_AFTER_S:
            self._failure_count = 0
        delay_s = min(FIRST_DELAY_S * 2**self._failure_count, LAST_DELAY_S)
        self._failure_count += 1
        self.starts_at = now + delay_s
        if self.failed is None:
            self.failed = Failed(reason, is_permanent=False)
        reason = self.failed.text
        if self._unheard_count >= MOST_UNHEARD:
            self.failed = Failed(f"it ended {MOST_UNHEARD} times ({reason})", is_permanent=True)
        if not self.failed.is_permanent:
            log.error(
                "process %d ended (%s), and starts again in %g s", self.number, reason, delay_s
            )

    def _take(self, message: Message) -> None:
        match message:
            case Report():
                self.report, self._unheard_count = message, 0
            case Failed():
                self.failed = message
                self._must_end()
            case Done():
                self.done = message
                self._must_end()

    def _must_end(self) -> None:
        self.kills_at = min(self.kills_at, time.monotonic() + KILL_S)

    def state(self) -> tuple[dict[str, Any], Report | None]:
        """Return the health, and the last report unless the process has failed or hangs."""
        failed, report = self.failed, self.report
        if failed is not None:
            return {"verdict": "dead", "reasons": [failed.text]}, None
        if report is None:
            return {"verdict": "starting"}, None
        if self.done is None and time.monotonic() - report.at_s > SILENT_S:
            return {"verdict": "dead", "reasons": [f"no report for {SILENT_S:g} s"]}, None
        return report.health, report

    def stop(self) -> None:
        self._must_end()
        if self.process is not None and self.process.pid is not None and STOP is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, STOP)

    def kill(self) -> None:
        self.kills_at = math.inf
        if self.process is not None:
            self.process.kill()


class Supervisor:
    """Runs the command in several processes."""

    def __init__(self, options: argparse.Namespace) -> None:
        if STOP is None:
            raise CommandError("--processes needs a signal that Windows lacks: start it N times")
        self._options = options
        self.workers = [Worker(options, number) for number in range(options.processes)]
        self._received: list[int] = []
        self._is_stopping = False
        self._killed_count = 0

    def run(self) -> int:
        signals = StopSignals()
        signals.take(self._received.append)
        heeded = 0
        try:
            with _serving(self._options.web, self.workers):
                while not self._is_over():
                    self._start_due()
                    wait([each for worker in self.workers for each in worker.waited_for], LOOK_S)
                    for number in self._received[heeded:]:
                        heeded += 1
                        self._heed(number, heeded)
                    now = time.monotonic()
                    late = [each for each in self.workers if now >= each.kills_at]
                    self._kill(late, f"they have not ended in {KILL_S:g} s")
                    for worker in self.workers:
                        worker.look(is_stopping=self._is_stopping)
                    for worker in self._beyond_help():
                        self._stop(f"process {worker.number} has failed")
        finally:
            signals.give_back()
            for worker in self.workers:
                worker.kill()
        return self._code()

    def _is_over(self) -> bool:
        return all(
            each.process is None and (self._is_stopping or each.done is not None)
            for each in self.workers
        )

    def _beyond_help(self) -> list[Worker]:
        return [each for each in self.workers if each.failed and each.failed.is_permanent]

    def _start_due(self) -> None:
        for each in self.workers:
            is_due = each.process is None and each.done is None
            if is_due and not self._is_stopping and time.monotonic() >= each.starts_at:
                each.start()

    def _heed(self, number: int, count: int) -> None:
        if not self._is_stopping:
            self._stop(name_of(number))
        elif count <= 2:
            for each in self.workers:
                each.stop()
        else:
            self._kill(self.workers, f"{name_of(number)} was received {count} times")

    def _stop(self, reason: str) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            log.info("%s: %d processes stop", reason, len(self.workers))
            for each in self.workers:
                each.stop()

    def _kill(self, workers: Sequence[Worker], reason: str) -> None:
        left = [each for each in workers if each.process is not None]
        if left:
            log.error("processes %s are killed: %s", [each.number for each in left], reason)
        if self._is_stopping:
            self._killed_count += len(left)
        for each in left:
            each.kill()

    def _code(self) -> int:
        for each in self._beyond_help():
            assert each.failed is not None  # noqa: S101 -- it is beyond help
            raise CommandError(f"process {each.number}: {each.failed.text}")
        for each in self.workers:
            if each.done is not None:
                print(f"[{each.number}] {each.done.summary}")
        unfinished = [each.number for each in self.workers if each.done is None]
        is_unfinished = bool(unfinished) and self._options.until is not None
        if is_unfinished:
            print(f"processes {unfinished} stopped before the end")
        is_interrupted = len(self._received) > 1 or signal.SIGINT in self._received[:1]
        if is_unfinished or self._killed_count or is_interrupted:
            return 128 + self._received[0]
        return 0


# --- /health and /metrics ---------------------------------------------------------------------
@contextlib.contextmanager
def _serving(address: tuple[str, int] | None, workers: Sequence[Worker]) -> Iterator[None]:
    """Serve the state of all processes in a thread."""
    if address is None:
        yield
        return

    scalings: dict[int, Any] = {}

    class Requests(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, kind, body = _answer(self.path, workers, scalings)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    try:
        server = ThreadingHTTPServer(address, Requests)
    except OSError as error:
        raise CommandError(f"cannot listen on {address[0]}:{address[1]}: {error}") from error
    server.daemon_threads = True
    print(f"health: http://{address[0]}:{server.server_address[1]}/health", file=sys.stderr)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _answer(
    path: str, workers: Sequence[Worker], scalings: dict[int, Any]
) -> tuple[int, str, bytes]:
    """`scalings` are those of the processes, by their numbers."""
    found = [(each, *each.state()) for each in workers]
    reports = [(each.number, report) for each, _, report in found if report is not None]
    if path == "/health":
        states = [
            {
                "process": each.number,
                "restarts": max(0, each.start_count - 1),
                **health,
            }
            for each, health, _ in found
        ]
        verdicts = {str(each["verdict"]) for each in states}
        verdict = min(verdicts) if len(verdicts) == 1 else "degraded"
        body = json.dumps({"verdict": verdict, "processes": states}).encode()
        return 503 if verdict == "dead" else 200, "application/json", body
    if path == "/metrics":
        try:
            # By name: extras are above the commands.
            prometheus = importlib.import_module("aiokafka_lite.extras.web.prometheus")
        except ModuleNotFoundError:
            return 501, "text/plain", b"pip install 'aiokafka-lite[web]'\n"
        shown = [
            (
                {**prometheus.labels_of(report.metrics), "process": str(number)},
                report.metrics,
                report.health["verdict"],
            )
            for number, report in reports
        ]
        return 200, prometheus.CONTENT_TYPE, prometheus.render_all(shown)
    # By name, too.
    scale = importlib.import_module("aiokafka_lite.extras.web.scale")
    if (target := scale.Target.of(path[1:])) is not None:
        answers = [
            scalings.setdefault(number, scale.Scaling()).answer(
                report.metrics, target, time.monotonic()
            )
            for number, report in reports
            if report.health["verdict"] != "dead"
        ]
        if answers:
            return 200, "application/json", json.dumps(scale.added(answers)).encode()
        return 503, "text/plain", b"no process has a consumer that works\n"
    return 404, "text/plain", b"there are /health, /metrics and /scale\n"
