"""`aiokafka-lite produce TOPIC`: lines of the standard input as records."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from aiokafka_lite import producing
from aiokafka_lite.cli import loops
from aiokafka_lite.cli.arguments import Declaration, unescaped
from aiokafka_lite.cli.asking import ask_for_topic
from aiokafka_lite.cli.connecting import Connecting, connecting
from aiokafka_lite.cli.json_records import UTF8_MARK, parse_line
from aiokafka_lite.cli.output import counted
from aiokafka_lite.cli.problems import CommandError, LineProblem, UsageError, plain_text
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.producing.batch import Output
from aiokafka_lite.producing.engine import BulkProducer
from aiokafka_lite.records.codec import Codec

_PRODUCE: Final = r"""
Produce records from the standard input, one per line. Each record is written once and in order,
even if brokers fail. A key selects the same partition as in Java's producer. For records without a
key, the partition changes after each batch.

arguments:
TOPIC  the topic, which must exist
-K, --key-separator TEXT  the text between key and value in a line
--key TEXT  the key of every record
-H, --header NAME=VALUE ...  a header of every record (repeatable)
-p, --partition N  the partition of every record
-j, --json
  read lines of JSON objects, as `cat --json` prints them: {"key": "42", "value": {"amount": 3},
  "headers": {}, "partition": 0, "timestamp": …}, with {"base64": "…"} for binary data
--null TEXT  write null instead of a key or value that equals this text
-d, --delimiter TEXT  the text between records, such as '\0' (default: =\n)
-z, --compression  compress batches (default: =none)

examples:
  echo hello | aiokafka-lite produce greetings
  aiokafka-lite produce orders -K: < orders.txt       key:value in each line
  aiokafka-lite produce orders --key 42 --header trace=a1 < order.json -d '\0'
  aiokafka-lite cat orders --json -b prod:9092 | aiokafka-lite produce orders --json
"""


def run(options: argparse.Namespace) -> int:
    if options.json and (options.key_separator is not None or options.null is not None):
        raise UsageError(
            "--json takes keys and nulls from the JSON objects: leave out --key-separator and "
            "--null"
        )
    if options.key is not None and options.key_separator is not None:
        raise UsageError("--key and --key-separator both set the key: leave one out")
    if not options.delimiter or options.key_separator == "":
        raise UsageError("a delimiter or separator must have at least one character")
    where = connecting(options)
    with where.cluster() as cluster:
        ask_for_topic(cluster, options.topic)
    with _without_warnings():
        count = loops.run(_produce(options, where))
    if sys.stderr.isatty():
        print(f"{counted(count, 'record')} to {options.topic}", file=sys.stderr)
    return 0


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Suppress the producer's warnings, because the command's error names the lost lines."""
    log = logging.getLogger(producing.__name__)
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


async def _produce(options: argparse.Namespace, where: Connecting) -> int:
    reader = LineReader(sys.stdin.buffer, options.delimiter)
    async with where.bulk_producer(options.compression, reader.interrupt) as producer:
        sender = LineSender(reader, producer, _parser(options))
        await sender.run()
        return producer.acknowledged_count


def _parser(options: argparse.Namespace) -> Callable[[bytes], Output | None]:
    """Return a function from a line to its record, or to None for an empty line between objects."""
    separator = None if options.key_separator is None else unescaped(options.key_separator)
    null = None if options.null is None else options.null.encode()
    key = None if options.key is None else options.key.encode()
    headers = [(name, value.encode()) for name, value in options.header]

    def parse(line: bytes) -> Output | None:
        if options.json:
            if not line.strip():
                return None
            # The first line may begin with the mark, as in files from Windows.
            record = parse_line(line.removeprefix(UTF8_MARK), options.topic)
        else:
            record = Output(options.topic, *key_and_value(line, separator, null))
        if key is not None:
            record = record._replace(key=key)
        if options.partition is not None:
            record = record._replace(partition=options.partition)
        return record._replace(headers=[*record.headers, *headers]) if headers else record

    return parse


# How long an interrupted command waits for acknowledgements.
INTERRUPTED_S: Final = 1.0
MOST_NAMED_RANGES: Final = 5


@dataclass(eq=False)
class LineSender:
    """Sends the lines of a stream, until one is not written.

    `to_record` returns None for a line to ignore.
    """

    reader: LineReader
    producer: BulkProducer
    to_record: Callable[[bytes], Output | None]
    _sent_count: int = field(default=0, init=False)
    # The number of records sent before each ignored line.
    _ignored: list[int] = field(default_factory=list, init=False)

    async def run(self) -> None:
        """Send all lines, and wait until they are written.

        If it is cancelled, sent lines have a second to be acknowledged, and stderr names the
        others.
        """
        problem: str | None = None
        timeout_s: float | None = None
        try:
            problem = await self._send_all()
        except asyncio.CancelledError:
            timeout_s = INTERRUPTED_S
            raise
        finally:
            await self.producer.stop(timeout_s)
            if timeout_s is not None:
                print(f"\n{self._outcome()}", file=sys.stderr)
        named: Sequence[int] = ()
        if self.producer.losses:
            first = min(self.producer.losses, key=lambda each: each.numbers[0])
            named = first.at_fault
            problem = f"{self._lines_text(named)}: {plain_text(first.error)}"
        if problem is not None:
            raise CommandError(f"{problem}; {self._outcome(named)}")

    async def _send_all(self) -> str | None:
        """Return the text of a failure."""
        send_nowait, to_record = self.producer.send_nowait, self.to_record
        while not self.producer.losses:
            try:
                lines = await self.reader.lines()
            except OSError as error:
                return f"cannot read the standard input: {error.strerror or error}"
            if lines is None:
                break
            for line in lines:
                try:
                    record = to_record(line)
                    if record is None:
                        self._ignored.append(self._sent_count)
                        continue
                    if not send_nowait(record):
                        await self.producer.send(record)
                except LineProblem as problem:
                    return f"{self._lines_text([self._sent_count + 1])}: {problem}"
                except KafkaError as error:
                    return f"{self._lines_text([self._sent_count + 1])}: {plain_text(error)}"
                self._sent_count += 1
        return None

    def _outcome(self, named: Sequence[int] = ()) -> str:
        """Return the number of written lines, and which lines are not, except the named ones."""
        count, sent_count = self.producer.acknowledged_count, self._sent_count
        if count == sent_count:
            return f"{counted(count, 'line')} {'was' if count == 1 else 'were'} written"
        text = f"{count:,} of {sent_count:,} lines were written"
        lost = [number for each in self.producer.losses for number in each.numbers]
        return text if sorted(lost) == sorted(named) else f"{text}, not {self._lines_text(lost)}"

    def _lines_text(self, numbers: Sequence[int]) -> str:
        """Return "lines 2, 4 to 6" for the numbers of records."""
        lines = sorted(each + bisect_left(self._ignored, each) for each in numbers)
        ranges: list[list[int]] = []
        for line in lines:
            if ranges and line == ranges[-1][1] + 1:
                ranges[-1][1] = line
            else:
                ranges.append([line, line])
        texts = [f"{a}" if a == b else f"{a} to {b}" for a, b in ranges[:MOST_NAMED_RANGES]]
        if len(ranges) > MOST_NAMED_RANGES:
            texts.append(f"others up to {lines[-1]}")
        return f"line{'' if len(lines) == 1 else 's'} {', '.join(texts)}"


READ_BYTES: Final = 128 << 10
# The number of pieces that are read ahead.
AHEAD: Final = 2


class LineReader:
    """Reads a stream in a thread, so that the event loop is not blocked.

    A thread that waits for input does not keep the process alive.
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
            except RuntimeError:  # the loop is closed
                return

    def interrupt(self) -> None:
        self._pieces.put_nowait(None)

    async def lines(self) -> Sequence[bytes] | None:
        """Return the lines of the next input, perhaps an empty list. None at the end.

        The text after the last delimiter is a line, unless it is empty.
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
    """Return a function that reads the available bytes of a stream.

    A thread that waits in a buffer holds a lock that the end of the process needs.
    """
    try:
        number = stream.fileno()
    except OSError:
        return stream.read
    return lambda size: os.read(number, size)


def key_and_value(
    line: bytes, key_separator: bytes | None, null: bytes | None
) -> tuple[bytes | None, bytes | None]:
    """Return the key before the separator, if there is one, and the value."""
    key: bytes | None = None
    value: bytes | None = line
    if key_separator is not None:
        ahead, found, behind = line.partition(key_separator)
        if found:
            key, value = ahead, behind
    if null is not None:
        key, value = (None if each == null else each for each in (key, value))
    return key, value


_CODECS: Final = tuple(codec.name.lower() for codec in Codec)
COMMANDS: Final = {
    "produce": Declaration(
        run, _PRODUCE, {"partition": int, "compression": _CODECS, "delimiter": unescaped}
    )
}
