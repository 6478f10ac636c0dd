"""Where records go, and in which order."""

from __future__ import annotations

import asyncio
import io
import threading

import pytest

from aiokafka_lite.cli.cat.formats import raw_values
from aiokafka_lite.cli.cat.sinks import StreamSink
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
