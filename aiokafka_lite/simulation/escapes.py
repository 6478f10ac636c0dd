"""Confines a run: its clocks and random numbers are the loop's, and calls that leave it fail."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import random
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, NoReturn

from aiokafka_lite._virtual import wall_ns
from aiokafka_lite.simulation.engine import SIMLOOP, Loop

LIBRARY: Final = sysconfig.get_path("stdlib")
PACKAGES: Final = sysconfig.get_path("purelib")
THREAD: Final = "_thread.start_new_thread"
# Events of `sys.audit`, and how a simulation does the same.
ESCAPES: Final = {
    THREAD: ("a thread", "use a task, or asyncio.to_thread"),
    "socket.bind": ("a real socket", "listen with asyncio.start_server"),
    "socket.connect": ("a real socket", "connect with asyncio.open_connection"),
    "socket.getaddrinfo": ("a real name lookup", "use loop.getaddrinfo"),
    "socket.sendto": ("a real socket", "connect with asyncio.open_connection"),
    "time.sleep": ("time.sleep", "use asyncio.sleep"),
    "os.fork": ("another process", "use kafka.start"),
    "os.posix_spawn": ("another process", "use kafka.start"),
    "os.system": ("another process", "use kafka.start"),
    "subprocess.Popen": ("another process", "use kafka.start"),
}


class EscapeError(RuntimeError):
    """The code under test leaves the simulation: its seed no longer decides the run."""


class _Guard:
    """What is watched in the thread of the run."""

    thread_id: int | None = None
    escape: EscapeError | None = None
    is_installed = False

    def audit(self, event: str, args: tuple[object, ...]) -> None:
        if event not in ESCAPES or threading.get_ident() != self.thread_id:
            return
        if event == "socket.getaddrinfo" and _is_numeric(args[0]):
            return
        self.refuse(event)

    def refuse(self, event: str) -> NoReturn:
        what, instead = ESCAPES[event]
        error = EscapeError(f"the test leaves the simulation with {what}, {_caller()}: {instead}")
        self.escape = self.escape or error
        raise error

    def instead_of(self, function: Callable[..., Any], event: str) -> Callable[..., Any]:
        """Return a function that older versions of Python do not audit."""

        @functools.wraps(function)
        def call(*args: Any) -> Any:
            if threading.get_ident() == self.thread_id:
                self.refuse(event)
            return function(*args)

        return call


_guard: Final = _Guard()


def _is_numeric(host: object) -> bool:
    try:
        ipaddress.ip_address(host.decode() if isinstance(host, bytes) else str(host))
    except ValueError:
        return False
    return True


def _caller() -> str:
    """Name the innermost line that is not of Python's own library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        is_library = name.startswith((LIBRARY, "<")) and not name.startswith(PACKAGES)
        if not (is_library or name == __file__ or name.startswith(SIMLOOP)):
            return f"at {name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return "in an executor"


@contextlib.contextmanager
def confined(loop: Loop, seed: int) -> Iterator[Callable[[], EscapeError | None]]:
    """Confine what runs in this thread to a loop. Yield a function that returns the first escape.

    `time` returns the time of the loop. The module `random`, and `os.urandom` (which `uuid4` uses),
    return what the seed decides.
    """
    if not _guard.is_installed:
        sys.addaudithook(_guard.audit)  # cannot be removed
        _guard.is_installed = True
    rng = random.Random(f"{seed}:urandom")

    def monotonic() -> float:
        return loop.now

    def monotonic_ns() -> int:
        return round(loop.now * 1e9)

    def wall() -> float:
        return wall_ns() / 1e9

    replaced: list[tuple[Any, str, Any]] = [
        (time, "time", wall),
        (time, "time_ns", wall_ns),
        (time, "monotonic", monotonic),
        (time, "monotonic_ns", monotonic_ns),
        (time, "perf_counter", monotonic),
        (time, "perf_counter_ns", monotonic_ns),
        (time, "sleep", _guard.instead_of(time.sleep, "time.sleep")),
        (threading.Thread, "start", _guard.instead_of(threading.Thread.start, THREAD)),
        (os, "urandom", rng.randbytes),
    ]
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    state = random.getstate()
    random.seed(seed)
    for owner, name, replacement in replaced:
        setattr(owner, name, replacement)
    _guard.escape, _guard.thread_id = None, threading.get_ident()
    try:
        yield lambda: _guard.escape
    finally:
        _guard.thread_id = None
        for owner, name, original in originals:
            setattr(owner, name, original)
        random.setstate(state)
