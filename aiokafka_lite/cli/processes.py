"""Several processes of the command `run`: one starts, watches, restarts and stops the others.

Each process is a static member of the group, and sends reports over a pipe. By the pipe's end it
notices that the first process has died. It has a session of its own, because a terminal sends
Ctrl-C to all processes of one, and ignores SIGTERM, which systemd sends to all: the first process
forwards signals as `STOP`.

=======  =====================================================================================
signal   effect in the first process
=======  =====================================================================================
first    `STOP` to each process, which drains. After `KILL_S`, processes that remain are killed
second   `STOP` again, which cancels the handlers
third    the processes are killed
=======  =====================================================================================

A process that fails ends the command, with the error that a single process would end with. One that
dies, hangs, or cannot start for a temporary reason, such as an outage, is restarted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from aiokafka_lite._signals import STOP_SIGNALS, StopSignals, name_of
from aiokafka_lite._tasks import Event, TaskScope
from aiokafka_lite._threads import compute
from aiokafka_lite.cli import loops
from aiokafka_lite.cli.problems import CommandError, plain_text
from aiokafka_lite.cli.run import FORMAT, consumer_of, handle_all, is_temporary, load, serve
from aiokafka_lite.consumer.processing.draining import DRAIN_S
from aiokafka_lite.errors import KafkaError

if TYPE_CHECKING:
    from aiokafka_lite import AIOKafkaConsumer
    from aiokafka_lite.processing import RunSummary

log = logging.getLogger(__name__)

# 0 on Windows, which cannot send it to one process.
STOP: Final[int] = getattr(signal, "SIGUSR1", 0)
# Longer than a process takes to drain.
KILL_S: Final = DRAIN_S + 3
# The delay of the first restart. Each further one doubles it.
FIRST_DELAY_S: Final = 0.5
# So many processes may die in a row, each within this time of its start.
MOST_DEATHS: Final = 8
HEALTHY_AFTER_S: Final = 60.0
# How often ends and messages of processes are looked for, and between reports.
LOOK_S: Final = 0.2
REPORT_S: Final = 1.0
# Without a report for so long, a process hangs: a handler may block the event loop.
SILENT_S: Final = 30.0
# After that it is killed. By then the group has reassigned its partitions.
HUNG_S: Final = 60.0


class Report(NamedTuple):
    """The state of one process's consumer."""

    health: dict[str, Any]
    metrics: dict[str, Any]


class Failed(NamedTuple):
    """A process ends by an error. `is_permanent`: a restart would not help."""

    text: str
    is_permanent: bool


# --- A started process ------------------------------------------------------------------------
def work() -> NoReturn:
    """Run in a process that was started with the file descriptor of its pipe as the argument."""
    for each in STOP_SIGNALS:
        # In contrast to SIG_IGN, programs and processes that a handler starts do not inherit it.
        earlier = signal.signal(each, lambda *_: None)
        os.register_at_fork(after_in_child=partial(signal.signal, each, earlier))
    connection = Connection(int(sys.argv[1]))
    os.set_inheritable(connection.fileno(), False)
    options, number = connection.recv()
    logging.basicConfig(format=f"[{number}] {FORMAT}", level=options.log_level.upper())
    threading.Thread(target=_end_with_parent, args=[connection], daemon=True).start()
    with _failing(connection):
        main = _handle(options, number, load(options.handler), connection)
    sys.exit(loops.run(main, options.loop, handles_signals=False))


@contextlib.contextmanager
def _failing(connection: Connection) -> Iterator[None]:
    """Report an error that ends this process."""
    try:
        yield
    except (CommandError, KafkaError) as error:
        _send(connection, Failed(plain_text(error), not is_temporary(error)))
        sys.exit(1)


_sending: Final = threading.Lock()


def _send(connection: Connection, message: Report | Failed | RunSummary) -> None:
    with _sending, contextlib.suppress(BrokenPipeError):
        connection.send(message)


def _end_with_parent(connection: Connection) -> None:
    """Stop as soon as the first process has died, by SIGKILL if nothing else helps."""
    with contextlib.suppress(EOFError, OSError):
        connection.recv()
    log.warning("the first process has died: this one stops")
    os.kill(os.getpid(), STOP)
    time.sleep(KILL_S)
    os.kill(os.getpid(), signal.SIGKILL)


async def _handle(
    options: argparse.Namespace, number: int, handler: object, connection: Connection
) -> None:
    with _failing(connection):
        consumer = consumer_of(options, number, handler)
        reporting = TaskScope("reports")
        reporting.spawn(_report(consumer, connection), name="report")
        try:
            summary = await handle_all(consumer, handler, options, stop_on=(STOP,))
        finally:
            await reporting.close()
    if summary is not None and summary.is_complete:
        _send(connection, summary)


async def _report(consumer: AIOKafkaConsumer, connection: Connection) -> NoReturn:
    while True:
        report = Report(dataclasses.asdict(consumer.health()), consumer.metrics())
        # In a thread: the first process may be slow to read. Handlers may use up the default ones.
        await compute(partial(_send, connection, report))
        await asyncio.sleep(REPORT_S)


# --- The first process ------------------------------------------------------------------------
def start(connection: Connection) -> subprocess.Popen[bytes]:
    number = connection.fileno()
    program = f"import sys; sys.path = {sys.path!r}; from {__name__} import work; work()"
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    command = [sys.executable, *flags, "-c", program, str(number)]
    return subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.DEVNULL, pass_fds=[number], start_new_session=True
    )


class Worker:
    """One process after the other, with the same number."""

    def __init__(self, options: argparse.Namespace, number: int) -> None:
        self._options, self.number = options, number
        self._process: subprocess.Popen[bytes] | None = None
        self.start_count = 0
        self._stopping = Event()
        self.was_killed = False
        self.summary: RunSummary | None = None
        # Of the latest process.
        self.failed: Failed | None = None
        self._report: Report | None = None
        self._kill_at = self._reported_at = math.inf

    async def run(self) -> None:
        """Start a process again until one has reached its end, has failed, or has to stop."""
        deaths = 0
        while not self._stopping.is_set():
            self.start_count += 1
            self.failed = self._report = None
            self._kill_at = self._reported_at = math.inf
            started_at = time.monotonic()
            failed = await self._live()
            if self.summary is not None or self._stopping.is_set():
                return
            deaths = 1 if time.monotonic() - started_at > HEALTHY_AFTER_S else deaths + 1
            if deaths >= MOST_DEATHS and not failed.is_permanent:
                failed = Failed(f"it ended {deaths} times ({failed.text})", is_permanent=True)
            self.failed = failed
            if failed.is_permanent:
                return
            delay_s = FIRST_DELAY_S * 2 ** (deaths - 1)
            log.error(
                "process %d ended (%s), and starts again in %g s",
                self.number, failed.text, delay_s,
            )  # fmt: skip
            await self._stopping.wait(asyncio.get_running_loop().time() + delay_s)

    async def _live(self) -> Failed:
        """Start a process, and return how it has ended."""
        with contextlib.ExitStack() as stack:
            try:
                ours, theirs = (stack.enter_context(each) for each in Pipe())
                with theirs:
                    self._process = process = start(theirs)
                with contextlib.suppress(ConnectionError):  # it has died: see its exit code
                    ours.send((self._options, self.number))
                while process.poll() is None:
                    self._read(ours)
                    now = time.monotonic()
                    if now >= self._kill_at:
                        self.kill(f"it has not ended in {KILL_S:g} s")
                    elif now >= self._reported_at + HUNG_S:
                        self.kill(f"it has not reported for {HUNG_S:g} s")
                    await asyncio.sleep(LOOK_S)
                self._read(ours)
                reason = f"exit code {process.returncode}"
            except OSError as error:  # such as too many processes or files
                reason = str(error)
            finally:
                self.kill("the command ends")
        return self.failed or Failed(reason, is_permanent=False)

    def _read(self, connection: Connection) -> None:
        with contextlib.suppress(EOFError, ConnectionError):
            while connection.poll():
                message: Report | Failed | RunSummary = connection.recv()
                if isinstance(message, Report):
                    self._report, self._reported_at = message, time.monotonic()
                    continue
                if isinstance(message, Failed):
                    self.failed = message
                else:
                    self.summary = message
                self._must_end()

    def _must_end(self) -> None:
        self._kill_at = min(self._kill_at, time.monotonic() + KILL_S)

    def state(self) -> tuple[dict[str, Any], Report | None]:
        """Return the health, and the last report unless the process has failed or hangs."""
        failed, report = self.failed, self._report
        if failed is not None:
            return {"verdict": "dead", "reasons": [failed.text]}, None
        if report is None:
            return {"verdict": "starting"}, None
        if self.summary is None and time.monotonic() - self._reported_at > SILENT_S:
            return {"verdict": "dead", "reasons": [f"no report for {SILENT_S:g} s"]}, None
        return report.health, report

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        self._stopping.set()
        self._must_end()
        if self._process is not None:
            self._process.send_signal(STOP)

    def kill(self, reason: str) -> None:
        if self._process is not None and self._process.poll() is None:
            log.error("process %d is killed: %s", self.number, reason)
            self._kill_at = self._reported_at = math.inf
            self.was_killed = self.is_stopping
            self._process.kill()


class Supervisor:
    """Runs the command in several processes."""

    def __init__(self, options: argparse.Namespace) -> None:
        if not STOP:
            raise CommandError("--processes needs a signal that Windows lacks: start it N times")
        self._options = options
        self.workers = [Worker(options, number) for number in range(options.processes)]
        self._received: list[int] = []

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        async with contextlib.AsyncExitStack() as stack:
            signals = StopSignals()
            stack.callback(signals.give_back)
            signals.take(lambda number: loop.call_soon_threadsafe(self._heed, number))
            await serve(stack, self._options, self.workers)
            scope = TaskScope("processes")
            stack.push_async_callback(scope.close)
            left = {scope.spawn(each.run(), name=f"process {each.number}") for each in self.workers}
            while left:
                ended, left = await asyncio.wait(left, timeout=LOOK_S)
                for each in ended:
                    each.result()
                for worker in self._failed():
                    if not worker.is_stopping:
                        self._stop(f"process {worker.number} has failed")
        return self._code()

    def _failed(self) -> list[Worker]:
        return [each for each in self.workers if each.failed and each.failed.is_permanent]

    def _heed(self, number: int) -> None:
        self._received.append(number)
        if len(self._received) <= 2:
            self._stop(name_of(number))
            return
        for each in self.workers:
            each.kill(f"{name_of(number)} was received {len(self._received)} times")

    def _stop(self, reason: str) -> None:
        log.info("%s: %d processes stop", reason, len(self.workers))
        for each in self.workers:
            each.stop()

    def _code(self) -> int:
        for each in self._failed():
            assert each.failed is not None  # noqa: S101 -- it is beyond help
            raise CommandError(f"process {each.number}: {each.failed.text}")
        for each in self.workers:
            if each.summary is not None:
                print(f"[{each.number}] {each.summary}")
        unfinished = [each.number for each in self.workers if each.summary is None]
        is_unfinished = bool(unfinished) and self._options.until is not None
        if is_unfinished:
            print(f"processes {unfinished} stopped before the end")
        is_interrupted = len(self._received) > 1 or signal.SIGINT in self._received[:1]
        if is_unfinished or is_interrupted or any(each.was_killed for each in self.workers):
            return 128 + self._received[0]
        return 0
