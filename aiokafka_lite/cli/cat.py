"""`aiokafka-lite cat TOPIC` and `tail TOPIC`: a topic in a terminal, a pipe or a file.

Options → records and filters (reading.py) → bytes (formats.py) → output.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from aiokafka_lite._compat import override
from aiokafka_lite.cli import formats, loops
from aiokafka_lite.cli.arguments import Declaration, Kind, positive_int, unescaped
from aiokafka_lite.cli.asking import (
    FORMS,
    TopicPosition,
    ask_for_topic,
    find,
    partitions_of,
    place,
)
from aiokafka_lite.cli.connecting import Connecting, connecting
from aiokafka_lite.cli.formats import Formatter
from aiokafka_lite.cli.problems import CommandError, Interrupted, MissingExtraError, UsageError
from aiokafka_lite.cli.reading import (
    KNOWN_FOR_S,
    Filter,
    Record,
    Span,
    filter_of,
    follow,
    records_of,
)
from aiokafka_lite.client.offsets import ISOLATION_LEVELS
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.structs import TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite import AIOKafkaConsumer
    from aiokafka_lite.records.arrow import ArrowColumns

FORMATS: Final = ("text", "json", "hex", "raw")
TAIL_LAST: Final = 10

_WHICH: Final = f"""
which records:
--from WHERE  start at this position: {FORMS}
--until WHERE  stop before this position (default: the topic's current end)
-n, --last N
  start N offsets before the end of each partition. With --grep, --key or --header: read the whole
  topic, and print each partition's last N matching records
-c, --count N  stop after N records, counted over all partitions
-p, --partition N[,N-N…]  only these partitions, such as 0,4-7
--grep REGEX
  only records with a value that matches REGEX. If headers are printed, a matching header is enough
--key REGEX  only records with a key that matches REGEX
--header NAME=REGEX ...
  only records with a header NAME whose value matches REGEX (repeatable)
-F, --fixed-strings
  treat --grep, --key and --header as plain text, not as regular expressions
-i, --ignore-case  ignore case in --grep, --key and --header
-v, --invert-match  only records that --grep, --key and --header would leave out
--isolation-level
  read_committed omits records of transactions that were not committed (default: =read_uncommitted)
"""
_HOW: Final = r"""
the output format:
-k, --keys  with keys
-H, --headers  with headers
-t, --timestamps  print times, in UTC
-o, --offsets  with partition:offset
-a, --all  print all of these
--format
  text: fields separated by tabs, the value last (default). json: one object per line. hex: like
  text, with keys, header values and values in hexadecimal. raw: only the values, without separators
| -j, --json  --format json
--unpack  with --json: print keys and values that contain JSON as JSON, not as strings
--null TEXT  the text printed for null (default: empty)
-d, --delimiter TEXT  the text printed after each record, such as '\0' (default: '\n')
--output FILE
  write the records to this file. FILE.parquet and FILE.arrow are written as tables, and need
  aiokafka-lite[arrow]
"""
_CAT: Final = f"""
Print the records of a topic, one per line, from its beginning to its current end. With -f, continue
with new records. Records are in order within a partition, but not across partitions.

arguments:
TOPIC  the topic to read
-f, --follow  continue with new records
{_WHICH}{_HOW}
examples:
  aiokafka-lite cat orders                            every value, one per line
  aiokafka-lite cat orders -a --from 10m              recent records, with keys, times, headers
  aiokafka-lite cat orders -p 3 --from 1234 -c 1 -a   one record
  aiokafka-lite cat orders -n 5 --json | jq .value    the last five records of each partition
  aiokafka-lite cat orders --key '^customer-17$' -a   the history of one customer
  aiokafka-lite cat orders -f --grep '"error"' -o     new errors, with partitions and offsets
  aiokafka-lite cat orders --output orders.parquet    the topic as a table
"""
_TAIL: Final = f"""
Print the last records of each partition of a topic, then new records until Ctrl-C. This is
`cat -f --last 10`, with the same options.

arguments:
TOPIC  the topic to read
{_WHICH}{_HOW}
examples:
  aiokafka-lite tail orders              the last ten records of each partition, then new records
  aiokafka-lite tail orders -n 0 -a      only new records, with all fields
  aiokafka-lite tail orders -n 0 -c 1    only the next record
"""


def _count(text: str) -> int:
    return 0 if text == "0" else positive_int(text)


# --- Running -------------------------------------------------------------------------------
def run_tail(options: argparse.Namespace) -> int:
    options.follow = True
    if options.start is None and options.last is None:
        options.last = TAIL_LAST
    return run(options)


def run(options: argparse.Namespace) -> int:
    options.format = "json" if options.json else options.format
    _check(options)
    # Wrong options are found before any connection or output.
    sees_headers = formats.HEADERS in _fields(options) or options.format == "json"
    keep = filter_of(options, sees_headers=sees_headers)
    if options.invert_match and keep is None:
        raise UsageError("-v needs --grep, --key or --header, because it inverts these filters")
    where = connecting(options)
    formatter = _formatter(options)
    copying = _Copying(options, where, keep)
    if options.output is None:
        is_prompt = options.follow or sys.stdout.isatty()
        sys.stdout.flush()
        loops.run(copying.run(StreamSink(formatter, sys.stdout.buffer, is_prompt=is_prompt)))
        return 0
    end: Exception | None = None
    suffix = options.output.suffix
    with replacing(options.output) as path:
        if suffix in TABLES:
            end = copying.run_to_file(TableSink(path, is_parquet=suffix == ".parquet"))
        else:
            with path.open("wb") as file:
                sink = StreamSink(formatter, file, is_prompt=options.follow)
                end = copying.run_to_file(sink)
    if end is not None:
        raise end
    return 0


def _check(options: argparse.Namespace) -> None:
    if options.follow and options.until is not None:
        raise UsageError("--until sets an end, and -f reads without an end: leave one out")
    if _ends_before_it_begins(options.start, options.until):
        raise UsageError(
            f"--until {options.until.text} is before --from {options.start.text}, so there are no "
            "records to read"
        )
    if options.last is not None and options.start is not None:
        raise UsageError("--from and --last both set the start: leave one out")
    is_table = options.output is not None and options.output.suffix in TABLES
    if is_table and options.format is not None:
        raise UsageError(f"{options.output} is written as a table, so leave out --format")
    if options.unpack and options.format != "json":
        raise UsageError("--unpack needs --json")
    if options.delimiter is not None and options.format not in (None, "text"):
        raise UsageError(f"--delimiter applies only to --format text, not to {options.format}")
    if options.format == "raw" and _fields(options):
        raise UsageError("--format raw prints only values, so leave out -k, -H, -t, -o and -a")


def _ends_before_it_begins(start: TopicPosition | None, until: TopicPosition | None) -> bool:
    if start is None or until is None:
        return False
    if start.offset is not None and until.offset is not None:
        return until.offset < start.offset
    return start.is_time and until.is_time and until.time_ms < start.time_ms


def _fields(options: argparse.Namespace) -> set[str]:
    flags = {
        formats.OFFSET: options.offsets,
        formats.TIMESTAMP: options.timestamps,
        formats.KEY: options.keys,
        formats.HEADERS: options.headers,
    }
    return {name for name, is_wanted in flags.items() if is_wanted or options.all}


def _formatter(options: argparse.Namespace) -> Formatter:
    null = (options.null or "").encode()
    match options.format:
        case "json":
            return formats.json_formatter(unpacks=options.unpack)
        case "hex":
            return formats.text_formatter(_fields(options), null=null, is_hex=True)
        case "raw":
            return formats.raw_values
    return formats.text_formatter(
        _fields(options),
        delimiter=b"\n" if options.delimiter is None else unescaped(options.delimiter),
        null=null,
        is_for_terminal=options.output is None and sys.stdout.isatty(),
    )


def _warn_of_missing_offset(
    start: TopicPosition, begins: dict[TopicPartition, int], ends: dict[TopicPartition, int]
) -> None:
    if start.offset is None:
        return
    for tp in begins:
        if not begins[tp] <= start.offset <= ends[tp]:
            print(
                f"warning: partition {tp.partition} of {tp.topic} has only offsets {begins[tp]} to "
                f"{ends[tp]}, so reading starts at the nearest offset instead of {start.offset}",
                file=sys.stderr,
            )


class _Copying:
    """Copies the records of a topic to a sink. Looks up the offsets at once."""

    def __init__(self, options: argparse.Namespace, where: Connecting, keep: Filter | None) -> None:
        self._options = options
        self._where = where
        self._keep = keep
        with where.cluster() as cluster:
            topic = ask_for_topic(cluster, options.topic)
            tps = partitions_of(topic, options.partition, action="read")
            level = options.isolation_level
            begins, ends, starts, stops = find(
                cluster, tps, options.start, options.until, isolation_level=level
            )
        if options.start is not None:
            _warn_of_missing_offset(options.start, begins, ends)
        if options.last is not None and keep is None:
            starts = {tp: max(begins[tp], stops[tp] - options.last) for tp in tps}
        self._known = topic.partitions.keys()
        self._spans = {tp: Span(starts[tp], stops[tp]) for tp in tps}

    def run_to_file(self, sink: Sink) -> Exception | None:
        """Write the records. Return the signal or error that ended -f. The file is complete."""
        try:
            loops.run(self.run(sink))
        except (Interrupted, KafkaError) as end:
            if not (self._options.follow and sink.has_records):
                raise
            return end
        return None

    async def run(self, sink: Sink) -> None:
        options, keep = self._options, self._keep
        left: int = sys.maxsize if options.count is None else options.count
        known_for_s = KNOWN_FOR_S if options.follow else math.inf
        try:
            async with (
                self._where.consumer(
                    isolation_level=options.isolation_level, metadata_max_age_s=known_for_s
                ) as consumer,
                aclosing(self._found(consumer)) as found,
            ):
                if options.last is not None and keep is not None:
                    left -= await self._write_last(consumer, keep, sink)
                    if not options.follow or not left:
                        return
                async for records in found:
                    kept: Sequence[Record] = records if keep is None else keep(records)
                    if len(kept) >= left:
                        await sink.write(kept[:left])
                        break
                    left -= len(kept)
                    if kept or not records:
                        await sink.write(kept)
        finally:
            await sink.close()

    async def _write_last(self, consumer: AIOKafkaConsumer, keep: Filter, sink: Sink) -> int:
        last: dict[int, deque[Record]] = {}
        async with aclosing(self._to_the_end(consumer)) as found:
            async for records in found:
                if kept := keep(records):
                    of_partition = last.setdefault(
                        kept[0].partition, deque(maxlen=self._options.last)
                    )
                    of_partition.extend(kept)
        records = [record for number in sorted(last) for record in last[number]]
        records = records[: self._options.count]
        await sink.write(records)
        return len(records)

    def _to_the_end(self, consumer: AIOKafkaConsumer) -> AsyncGenerator[list[Record], None]:
        return records_of(consumer, self._spans, patience_s=self._where.patience_s)

    def _found(self, consumer: AIOKafkaConsumer) -> AsyncGenerator[list[Record], None]:
        options = self._options
        if not options.follow:
            return self._to_the_end(consumer)
        is_read = options.last is not None and self._keep is not None
        starts = {tp: span.end if is_read else span.start for tp, span in self._spans.items()}
        topic = options.topic if options.partition is None else None
        return follow(consumer, starts, topic, self._known)


# --- Output ----------------------------------------------------------------------------------
WRITE_BYTES: Final = 1 << 20
ROWS_PER_GROUP: Final = 1 << 16
BYTES_PER_GROUP: Final = 64 << 20
TABLES: Final = (".parquet", ".arrow", ".feather")


class Sink(ABC):
    """Writes records in its own thread, in order. A cancelled write continues, before `close`."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="write")
        self.has_records = False

    @abstractmethod
    async def write(self, records: Sequence[Record]) -> None:
        """Take some records. An empty list means that no more are available now."""

    async def close(self) -> None:
        try:
            await self._in_turn(self._finish)
        finally:
            self._thread.shutdown(wait=False)

    @abstractmethod
    def _finish(self) -> None: ...

    async def _in_turn(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, work)


class StreamSink(Sink):
    """Writes bytes in large pieces, or with `is_prompt` at once, for a terminal.

    The caller closes the stream.
    """

    def __init__(self, formatter: Formatter, stream: BinaryIO, *, is_prompt: bool) -> None:
        super().__init__()
        self._formatter = formatter
        self._stream = stream
        self._is_prompt = is_prompt
        self._pieces: list[bytes] = []
        self._size_bytes = 0

    @override
    async def write(self, records: Sequence[Record]) -> None:
        if records:
            self.has_records = True
            piece = self._formatter(records)
            self._pieces.append(piece)
            self._size_bytes += len(piece)
        if self._is_prompt or not records or self._size_bytes >= WRITE_BYTES:
            await self._in_turn(self._finish)

    @override
    def _finish(self) -> None:
        pieces, self._pieces, self._size_bytes = self._pieces, [], 0
        if pieces:
            self._stream.write(b"".join(pieces))
            self._stream.flush()


class TableSink(Sink):
    """Writes a Parquet file or an Arrow file (IPC) in groups of rows, which are kept in memory."""

    def __init__(self, path: Path, *, is_parquet: bool) -> None:
        try:
            import pyarrow as pa

            from aiokafka_lite.records.arrow import ArrowColumns
        except ModuleNotFoundError:
            raise MissingExtraError("pyarrow", extra="arrow") from None
        super().__init__()
        self._arrow: ArrowColumns = ArrowColumns()
        self._rows: list[Record] = []
        self._size_bytes = 0
        if is_parquet:
            import pyarrow.parquet as pq

            self._writer = pq.ParquetWriter(path, self._arrow.schema, compression="zstd")
        else:
            self._writer = pa.ipc.new_file(str(path), self._arrow.schema)

    @override
    async def write(self, records: Sequence[Record]) -> None:
        self._rows += records
        self._size_bytes += sum(len(each.value or b"") + len(each.key or b"") for each in records)
        self.has_records |= bool(records)
        if len(self._rows) >= ROWS_PER_GROUP or self._size_bytes >= BYTES_PER_GROUP:
            await self._in_turn(self._write_group)

    def _write_group(self) -> None:
        rows, self._rows, self._size_bytes = self._rows, [], 0
        if rows:
            self._writer.write_batch(self._arrow.from_records(rows))

    @override
    def _finish(self) -> None:
        self._write_group()
        self._writer.close()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which replaces `path` if the block ends without an error."""
    is_file = path.is_file() or not path.exists()
    aside = path.with_name(f".{path.name}.{os.getpid()}.part") if is_file else path
    try:
        yield aside
        if is_file:
            aside.replace(path)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if is_file:
            aside.unlink(missing_ok=True)


_KINDS: Final[dict[str, Kind]] = {
    "start": place,
    "until": place,
    "last": _count,
    "format": FORMATS,
    "isolation_level": tuple(ISOLATION_LEVELS),
}
COMMANDS: Final = {
    "cat": Declaration(run, _CAT, _KINDS),
    "tail": Declaration(run_tail, _TAIL, _KINDS),
}
