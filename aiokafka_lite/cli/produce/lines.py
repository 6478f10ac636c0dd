"""Lines as they come, and the records in them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from typing import BinaryIO, Final, NamedTuple

READ_BYTES: Final = 128 << 10
# How many pieces are read ahead of whoever takes them.
AHEAD: Final = 2


class LineReader:
    """Reads a stream in a thread, so that the event loop goes on while there is nothing to read.

    The thread ends with the stream; one that waits for more does not keep the process alive.
    """

    def __init__(self, stream: BinaryIO, delimiter: bytes) -> None:
        self._read = _reading(stream)
        self._delimiter = delimiter
        self._rest = bytearray()
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[bytes | OSError | None] = asyncio.Queue()
        self._room = threading.Semaphore(AHEAD)
        threading.Thread(target=self._run, name="read lines", daemon=True).start()

    def _run(self) -> None:
        piece: bytes | OSError = b" "
        while piece and not isinstance(piece, OSError):
            self._room.acquire()
            try:
                piece = self._read(READ_BYTES)
            except OSError as error:
                piece = error
            try:
                self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)
            except RuntimeError:  # the loop is closed: nobody wants it
                return

    def interrupt(self) -> None:
        """Let `lines` return, whether or not there is something to read."""
        self._pieces.put_nowait(None)

    async def lines(self) -> Sequence[bytes] | None:
        """Return lines as soon as there is something to read, maybe none; None at the end.

        What is after the last delimiter is a line, too, unless it is empty.

        Raises:
            OSError: The stream cannot be read.
        """
        piece = await self._pieces.get()
        if piece is None:
            return ()
        self._room.release()
        if isinstance(piece, OSError):
            raise piece
        if not piece:
            return self._last()
        looked_at = max(0, len(self._rest) - len(self._delimiter) + 1)
        self._rest += piece
        if self._rest.find(self._delimiter, looked_at) < 0:
            return ()
        *lines, rest = bytes(self._rest).split(self._delimiter)
        self._rest = bytearray(rest)
        return lines

    def _last(self) -> Sequence[bytes] | None:
        if not self._rest:
            return None
        last, self._rest = bytes(self._rest), bytearray()
        self._pieces.put_nowait(b"")
        return (last,)


def _reading(stream: BinaryIO) -> Callable[[int], bytes]:
    """Return what reads a stream as far as it is there.

    Not by its buffer, if it has a file: whoever waits there holds a lock that the end of the
    process takes.
    """
    try:
        number = stream.fileno()
    except OSError:
        return stream.read
    return lambda size: os.read(number, size)


class ProducerRecord(NamedTuple):
    """A record to produce; without a partition its key decides, or the producer."""

    key: bytes | None
    value: bytes | None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()


def record_of_text(
    line: bytes,
    *,
    key_separator: bytes | None,
    null: bytes | None,
) -> ProducerRecord:
    """Return the record of a line: its value, with a key ahead of the separator if there is one."""
    key: bytes | None = None
    value: bytes | None = line
    if key_separator is not None:
        ahead, found, behind = line.partition(key_separator)
        if found:
            key, value = ahead, behind
    if null is not None:
        key, value = (None if each == null else each for each in (key, value))
    return ProducerRecord(key, value)


def record_of_json(line: bytes) -> ProducerRecord:
    """Return the record of an object such as `cat --json` prints; topic and offset do not count.

    Raises:
        LineProblem: It is none.
    """
    # Only now: it imports the broker that loads the same lines.
    from aiokafka_lite.cli.load import UTF8_MARK, parse_line

    # The first line may begin with the mark, as in files from Windows.
    _, record = parse_line(line.removeprefix(UTF8_MARK), topic="")
    key, value, headers = (_as_bytes(record.key), _as_bytes(record.value), record.headers)
    pairs = [(name, _as_bytes(content)) for name, content in headers]
    return ProducerRecord(key, value, record.partition, record.timestamp_ms, pairs)


def _as_bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
