"""Where records go, and in which order."""

from __future__ import annotations

import asyncio
import io
import threading
from pathlib import Path

import pytest

from aiokafka_lite.cli import cat
from aiokafka_lite.cli.cat import StreamSink, TableSink
from aiokafka_lite.cli.formats import raw_values
from tests.cli.cat.records import record


class SlowStream(io.BytesIO):
    """Begins to write when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_writing, self.may_write = threading.Event(), threading.Event()

    def write(self, content: object) -> int:
        self.is_writing.set()
        assert self.may_write.wait(10)
        return super().write(content)  # type: ignore[arg-type]


async def test_what_was_being_written_when_cancelled_stays_ahead_of_the_rest() -> None:
    stream = SlowStream()
    sink = StreamSink(raw_values, stream, is_prompt=True)
    writing = asyncio.ensure_future(sink.write([record(b"first")]))
    await asyncio.to_thread(stream.is_writing.wait)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    asyncio.get_running_loop().call_soon(stream.may_write.set)
    await sink.close()
    assert stream.getvalue() == b"first"


async def test_records_are_collected_until_they_are_a_large_piece() -> None:
    stream = io.BytesIO()
    sink = StreamSink(raw_values, stream, is_prompt=False)
    await sink.write([record(b"x" * 1_000)])
    assert stream.getvalue() == b""
    await sink.write([])  # nothing more for now
    assert len(stream.getvalue()) == 1_000
    await sink.write([record(b"x" * (1 << 20))])
    assert len(stream.getvalue()) == 1_000 + (1 << 20)
    await sink.write([record(b"end")])
    await sink.close()
    assert stream.getvalue().endswith(b"xend")


async def test_a_table_keeps_no_more_than_some_bytes_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(cat, "BYTES_PER_GROUP", 1_000)
    sink = TableSink(tmp_path / "t.parquet", is_parquet=True)
    for _ in range(3):
        await sink.write([record(b"x" * 600, b"k" * 400)])
    await sink.write([record(None)])
    await sink.close()
    assert pq.read_metadata(tmp_path / "t.parquet").num_row_groups == 4
