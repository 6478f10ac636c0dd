"""Files of the data directory, and a queue that keeps slow disk work off the event loop.

Files change atomically. JSON is checked against the types of the stored values, because a value of
another type, in a file that was edited or damaged, would fail at some later request."""

from __future__ import annotations

import asyncio
import functools
import json
import os
from asyncio import _get_running_loop
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypedDict, get_args, get_origin, get_type_hints

from aiokafka_lite._compat import Buffer
from aiokafka_lite._virtual import simulation_of
from aiokafka_lite.errors import KafkaStorageError

FILE_MODE: Final = 0o644


def replace_file(path: Path, contents: Buffer, mode: int = FILE_MODE) -> None:
    """Write a file, so that a crash leaves its old or its new contents."""
    temporary = path.with_name(path.name + ".new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with open(fd, "wb") as file:
        file.write(contents)
        file.flush()
        os.fsync(fd)
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make created, renamed and removed names durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_NOTHING: Final[Future[None]] = Future()
_NOTHING.set_result(None)


class DiskQueue:
    """Writes, flushes and deletes small files in one thread, so that each lane keeps its order.

    Files that clients wait for precede flushes and deletions of logs, of which there may be more
    than the disk can handle. After the first failure, every wait raises it. A simulated loop does
    the work itself, in later steps.
    """

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._front = _Lane()
        self._back = _Lane()
        self._failure: OSError | None = None

    def submit(self, work: Callable[[], None]) -> None:
        self._enqueue(self._front, work)

    def submit_behind(self, work: Callable[[], None]) -> None:
        """Queue work that runs in order while no work of `submit` waits."""
        self._enqueue(self._back, work)

    def _enqueue(self, lane: _Lane, work: Callable[[], None]) -> None:
        loop = _get_running_loop()
        if loop is not None and simulation_of(loop) is not None:
            lane.append(work)
            loop.call_soon(self._run_next)
            return
        if self._executor is None:  # no thread without disk work
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="broker-disk")
        lane.append(work)
        self._executor.submit(self._run_next)

    def _run_next(self) -> None:
        work, done = (self._front.waiting or self._back.waiting).popleft()
        try:
            work()
        except OSError as error:
            self._failure = self._failure or error
        except BaseException as error:  # noqa: BLE001 — raised by the waiting method
            done.set_exception(error)
            return
        done.set_result(None)

    async def settled(self) -> None:
        """Wait for all work of `submit`. Raise KafkaStorageError if some failed, also earlier."""
        await self._until(self._front.latest)

    async def drained(self) -> None:
        """Wait for all work. Raises like `settled`."""
        await self._until(self._front.latest, self._back.latest)

    async def _until(self, *latest: Future[None]) -> None:
        for future in latest:
            if not future.done():
                await asyncio.wrap_future(future)
            future.result()
        if self._failure is not None:
            raise KafkaStorageError(
                f"the broker could not write to its data directory: {self._failure}"
            ) from self._failure

    async def close(self) -> None:
        """Wait for all work and end the thread. Raises like `settled`."""
        try:
            await self.drained()
        finally:
            if self._executor is not None:
                self._executor.shutdown()
                self._executor = None


class _Lane:
    """Work in FIFO order. The loop appends, the thread removes."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Callable[[], None], Future[None]]] = deque()
        self.latest = _NOTHING

    def append(self, work: Callable[[], None]) -> None:
        self.latest = Future()
        self.latest.set_running_or_notify_cancel()  # waiting methods cannot cancel it
        self.waiting.append((work, self.latest))


FORMAT: Final = 1
_INT64: Final = range(-(1 << 63), 1 << 63)
_hints_of: Final = functools.cache(get_type_hints)


class _Formatted(TypedDict):
    format: int


def load_json(stored: bytes, kind: type) -> Any:
    """Return JSON that fits a class with annotated fields, or raise ValueError or KeyError."""
    try:
        value = json.loads(stored)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deeply") from error
    _check(value, kind, "it")
    return value


def load_formatted(path: Path, stored: bytes, kind: type) -> Any:
    """As `load_json`. Raise KafkaStorageError if the file has another format."""
    found = load_json(stored, _Formatted)["format"]
    if found != FORMAT:
        raise KafkaStorageError(
            f"{path} has format {found}, but this version of aiokafka_lite reads only format "
            f"{FORMAT}: choose another data directory"
        )
    return load_json(stored, kind)


def _check(value: object, kind: Any, place: str) -> None:
    """Check a value. Tuples and sequences are lists in JSON."""
    args = get_args(kind)
    match get_origin(kind), value:
        case None, bool() | int() | str():
            _check_single(value, kind, place)
        case None, dict() if hasattr(kind, "__annotations__") and not hasattr(kind, "_fields"):
            for key in getattr(kind, "__required_keys__", ()):
                if key not in value:
                    raise KeyError(f"{place} has no {key!r}")
            for key, each in _hints_of(kind).items():
                if key in value:
                    _check(value[key], each, f"{place}[{key!r}]")
        case None, list() if hasattr(kind, "_fields"):
            _check_each(value, [*_hints_of(kind).values()], place)
        case origin, list() if origin is tuple:
            _check_each(value, args, place)
        case origin, list() if origin in (list, Sequence):
            for item in value:
                _check(item, args[0], place)
        case origin, dict() if origin is dict:
            for key, item in value.items():
                _check_single(key, str, place)
                _check(item, args[1], f"{place}[{key!r}]")
        case _:
            raise ValueError(f"{place} is {value!r:.40}")


def _check_each(values: Sequence[object], kinds: Sequence[Any], place: str) -> None:
    if len(values) != len(kinds):
        raise ValueError(f"{place} has {len(values)} values instead of {len(kinds)}")
    for value, kind in zip(values, kinds, strict=True):
        _check(value, kind, place)


def _check_single(value: bool | int | str, kind: Any, place: str) -> None:
    if type(value) is not kind or (isinstance(value, int) and value not in _INT64):
        raise ValueError(f"{place} is {value!r:.40}")
    if isinstance(value, str):
        value.encode()  # UnicodeEncodeError is a ValueError, too
