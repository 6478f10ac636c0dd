"""Confines a run: its clocks and random numbers are the loop's, and calls that leave it fail."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import random
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType, ModuleType
from typing import Any, Final, NamedTuple, NoReturn

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
    "socket.getaddrinfo": (
        "a real name lookup",
        "use kafka.bootstrap_servers, or loop.getaddrinfo for other names",
    ),
    "socket.sendto": ("a real socket", "connect with asyncio.open_connection"),
    "time.sleep": ("time.sleep", "use asyncio.sleep"),
    "os.fork": ("another process", "use kafka.start"),
    "os.posix_spawn": ("another process", "use kafka.start"),
    "os.system": ("another process", "use kafka.start"),
    "subprocess.Popen": ("another process", "use kafka.start"),
}


class EscapeError(RuntimeError):
    """The code under test leaves the simulation: its seed no longer decides the run."""


class Confinement:
    """What is confined now: the run of a thread, and why it has to end, if it does."""

    thread_id: int | None = None
    loop: Loop
    rng: random.Random
    escape: EscapeError | None = None
    # What a signal's handler has raised first, such as Ctrl-C's or pytest-timeout's.
    interrupt: BaseException | None = None
    is_installed = False

    @property
    def error(self) -> BaseException | None:
        return self.interrupt or self.escape

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
        def call(*args: Any, **kwargs: Any) -> Any:
            return (here if self.is_here else original)(*args, **kwargs)

        return call

    def handling(self, handler: Callable[..., Any]) -> Callable[[int, FrameType | None], None]:
        """Return a signal handler that calls another one, and notes its error.

        The error appears in any code that runs, which may handle or drop it.
        """

        def handle(number: int, frame: FrameType | None) -> None:
            __tracebackhide__ = True
            try:
                handler(number, frame)
            except BaseException as error:
                self.interrupt = self.interrupt or error
                raise

        return handle


_guard: Final = Confinement()


def _now() -> float:
    return _guard.loop.now


def _now_ns() -> int:
    return round(_guard.loop.now * 1e9)


def _at_now(original: Callable[..., Any], position: int = 0) -> Callable[..., Any]:
    """Return a function of `time` whose optional argument, at a position, is the present."""

    def call(*args: Any) -> Any:
        if len(args) > position and args[position] is not None:
            return original(*args)
        now: Any = wall_ns() / 1e9
        return original(*args[:position], LOCALTIME(now) if original in OF_TUPLES else now)

    return call


def _seed(rng: random.Random, a: Any = None, version: int = 2) -> None:
    """Do as `random.Random.seed`, which otherwise has the system's randomness if `a` is None."""
    SEED(rng, _guard.rng.getrandbits(256) if a is None else a, version)


def _refusing(event: str) -> Callable[..., NoReturn]:
    return lambda *args, **kwargs: _guard.refuse(event)


LOCALTIME: Final = time.localtime
SEED: Final = random.Random.seed
GET_SIGNAL: Final = signal.getsignal
SET_SIGNAL: Final = signal.signal
OF_TUPLES: Final = (time.strftime, time.asctime)
# Names of modules, and what they are in a run. Older versions of Python do not audit all of them.
REPLACED: Final[Sequence[tuple[Any, str, Callable[..., Any]]]] = (
    (time, "time", lambda: wall_ns() / 1e9),
    (time, "time_ns", wall_ns),
    (time, "monotonic", _now),
    (time, "monotonic_ns", _now_ns),
    (time, "perf_counter", _now),
    (time, "perf_counter_ns", _now_ns),
    (time, "gmtime", _at_now(time.gmtime)),
    (time, "localtime", _at_now(time.localtime)),
    (time, "ctime", _at_now(time.ctime)),
    (time, "asctime", _at_now(time.asctime)),
    (time, "strftime", _at_now(time.strftime, 1)),
    (time, "sleep", lambda seconds, /: _guard.refuse("time.sleep")),
    (os, "urandom", lambda size, /: _guard.rng.randbytes(size)),
    (random, "_urandom", lambda size, /: _guard.rng.randbytes(size)),
    (random.Random, "seed", lambda *args, **kwargs: _seed(*args, **kwargs)),
    (random, "seed", lambda *args, **kwargs: _seed(random._inst, *args, **kwargs)),
    (threading.Thread, "start", _refusing(THREAD)),
    (Loop, "subprocess_exec", _refusing("subprocess.Popen")),
    (Loop, "subprocess_shell", _refusing("subprocess.Popen")),
    (Loop, "create_unix_server", _refusing("socket.bind")),
    (Loop, "create_unix_connection", _refusing("socket.connect")),
    (signal, "signal", lambda signalnum, handler: _guard.loop.set_signal(signalnum, handler)),
    (signal, "getsignal", lambda signalnum: _guard.loop.get_signal(signalnum)),
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


class _Name(NamedTuple):
    owner: Any
    name: str
    original: Any
    here: Callable[..., Any]


# Modules that keep the right functions.
OWN: Final = ("aiokafka_lite", "simloop", "pytest", "_pytest")


def _of_others() -> Iterator[tuple[object, Mapping[str, Any]]]:
    """Yield modules with their names, but for Python's own and OWN. It loads no lazy module.

    Also their classes, with the cells in which dataclasses keep a `default_factory`.
    """
    modules: list[tuple[str, object]] = [*sys.modules.items()]
    for title, module in modules:
        # None: its import is forbidden. isinstance takes cffi's libraries for modules, too.
        if not issubclass(type(module), ModuleType) or title.partition(".")[0] in OWN:
            continue
        names: dict[str, Any] = object.__getattribute__(module, "__dict__")
        path = str(names.get("__file__") or LIBRARY)
        if path.startswith(PACKAGES) or not path.startswith(LIBRARY):
            yield module, names
            for value in [*names.values()]:
                if isinstance(value, type) and value.__module__ == title:
                    yield value, vars(value)
                    for cell in getattr(vars(value).get("__init__"), "__closure__", None) or ():
                        with contextlib.suppress(ValueError):  # it is empty
                            yield cell, {"cell_contents": cell.cell_contents}


def _names() -> list[_Name]:
    """Return what a run replaces, also in modules that have imported it by its name."""
    names = [_Name(owner, name, getattr(owner, name), here) for owner, name, here in REPLACED]
    known = {id(each.original): each for each in names if each.owner in (time, os, signal)}
    for module, held in _of_others():
        for name, value in [*held.items()]:
            if id(value) in known:
                names.append(known[id(value)]._replace(owner=module, name=name))
    return names


@contextlib.contextmanager
def _signals_noted() -> Iterator[None]:
    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for each in signal.valid_signals():
            if callable(handler := GET_SIGNAL(each)):
                handlers[each] = handler
                SET_SIGNAL(each, _guard.handling(handler))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            SET_SIGNAL(number, handler)


@contextlib.contextmanager
def confined(loop: Loop, seed: int) -> Iterator[Confinement]:
    """Confine what runs in this thread to a loop, and note what interrupts or leaves it.

    `time` returns the time of the loop. The module `random`, and `os.urandom` (which `uuid4` uses),
    return what the seed decides.
    """
    if not _guard.is_installed:
        sys.addaudithook(_guard.audit)  # cannot be removed
        _guard.is_installed = True
    names = _names()
    state = random.getstate()
    random.seed(seed)
    for each in names:
        setattr(each.owner, each.name, _guard.instead_of(each.original, each.here))
    _guard.loop, _guard.rng = loop, random.Random(f"{seed}:urandom")
    _guard.escape = _guard.interrupt = None
    _guard.thread_id = threading.get_ident()
    try:
        with _signals_noted():
            yield _guard
    finally:
        _guard.thread_id = None
        del _guard.loop
        for each in names:
            setattr(each.owner, each.name, each.original)
        random.setstate(state)
