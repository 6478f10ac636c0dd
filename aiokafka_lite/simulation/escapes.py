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
from collections.abc import Callable, Iterator, Sequence
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
    """What is confined now: the run of a thread."""

    thread_id: int | None = None
    loop: Loop
    rng: random.Random
    escape: EscapeError | None = None
    is_installed = False

    @property
    def is_here(self) -> bool:
        return threading.get_ident() == self.thread_id

    def audit(self, event: str, args: tuple[object, ...]) -> None:
        if event in ESCAPES and self.is_here:
            if event == "socket.getaddrinfo" and _is_numeric(args[0]):
                return
            self.refuse(event)

    def refuse(self, event: str) -> NoReturn:
        what, instead = ESCAPES[event]
        error = EscapeError(f"the test leaves the simulation with {what}, {_caller()}: {instead}")
        self.escape = self.escape or error
        raise error

    def instead_of(self, original: Callable[..., Any], here: Callable[..., Any]) -> Any:
        """Return a function that calls another one in a run.

        A module that is imported in a run may keep it, so it remains right after the run.
        """

        @functools.wraps(original)
        def call(*args: Any) -> Any:
            return (here if self.is_here else original)(*args)

        return call


_guard: Final = _Guard()


def _now() -> float:
    return _guard.loop.now


def _now_ns() -> int:
    return round(_guard.loop.now * 1e9)


# Names of modules, and what they are in a run. Older versions of Python do not audit all of them.
REPLACED: Final[Sequence[tuple[Any, str, Callable[..., Any]]]] = (
    (time, "time", lambda: wall_ns() / 1e9),
    (time, "time_ns", wall_ns),
    (time, "monotonic", _now),
    (time, "monotonic_ns", _now_ns),
    (time, "perf_counter", _now),
    (time, "perf_counter_ns", _now_ns),
    (time, "sleep", lambda seconds: _guard.refuse("time.sleep")),
    (os, "urandom", lambda size: _guard.rng.randbytes(size)),
    (threading.Thread, "start", lambda thread: _guard.refuse(THREAD)),
)


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
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in REPLACED]
    state = random.getstate()
    random.seed(seed)
    for (owner, name, here), (*_, original) in zip(REPLACED, originals, strict=True):
        setattr(owner, name, _guard.instead_of(original, here))
    _guard.loop, _guard.rng = loop, random.Random(f"{seed}:urandom")
    _guard.escape, _guard.thread_id = None, threading.get_ident()
    try:
        yield lambda: _guard.escape
    finally:
        _guard.thread_id = None
        del _guard.loop
        for owner, name, original in originals:
            setattr(owner, name, original)
        random.setstate(state)
