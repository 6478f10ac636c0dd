"""Output of formatted records: a stream of bytes, or a table in a file."""

from __future__ import annotations

import asyncio
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from aiokafka_lite._compat import override
from aiokafka_lite.cli.cat.reading import Record
from aiokafka_lite.cli.problems import CommandError, MissingExtraError

if TYPE_CHECKING:
    from aiokafka_lite.cli.cat.formats import Formatter
    from aiokafka_lite.records.arrow import ArrowColumns

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


def standard_output() -> BinaryIO:
    sys.stdout.flush()
    return sys.stdout.buffer
