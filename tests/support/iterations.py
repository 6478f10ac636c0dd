"""The per-message paths, with what iterates over them in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple, cast

import pytest

from aiokafka_lite._compat import Self
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.buffer.chunk import Record
from aiokafka_lite.consumer.delivery import _iteration_py, next_record
from aiokafka_lite.consumer.delivery.gets import RecordIterator
from aiokafka_lite.consumer.delivery.record_cursor import RecordCursor
from aiokafka_lite.errors import ConsumerStoppedError
from tests.support.buffers import Buffers


class ReaderMethods:
    """A consumer reduced to its iteration, over buffers that are filled by hand."""

    buffers: Buffers

    def __aiter__(self) -> Self:
        return self

    async def _next_record(self) -> Record:
        try:
            return await self.buffers.gets.one(())
        except ConsumerStoppedError:
            raise StopAsyncIteration from None


class Reader(ReaderMethods, RecordIterator):
    pass


class PlainReader(ReaderMethods, _iteration_py.RecordIterator):
    pass


class AwaitableIterator(next_record.Iteration):
    """Like the compiled iterator, in plain Python; it uses no awaitable again."""

    def _iterate_over(self, cursor: RecordCursor) -> None:
        self.cursor = cursor
        self.spare = None

    def __anext__(self) -> next_record.NextRecord:
        awaitable = next_record.NextRecord()
        awaitable.renew(self)
        return awaitable


class AwaitableReader(ReaderMethods, AwaitableIterator):
    pass


def plain_consumer() -> type[AIOKafkaConsumer]:
    """Return the consumer as it is where the extension is not built."""
    if issubclass(AIOKafkaConsumer, _iteration_py.RecordIterator):
        return AIOKafkaConsumer
    return consumer_with(_iteration_py.RecordIterator)


def consumer_with(iterator: type) -> type[AIOKafkaConsumer]:
    """Return a consumer that iterates like this."""
    methods = {"_next_record": AIOKafkaConsumer._next_record}
    made = type("PlainConsumer", (iterator, AIOKafkaConsumer), methods)
    return cast("type[AIOKafkaConsumer]", made)


class Iteration(NamedTuple):
    """The classes of one per-message path."""

    reader: type[Reader] | type[PlainReader] | type[AwaitableReader]
    consumer: type[AIOKafkaConsumer]

    @property
    def is_compiled(self) -> bool:
        return self.reader is not PlainReader

    def read(self, buffers: Buffers) -> Reader | PlainReader:
        """Iterate over what is and comes into the buffers."""
        reader = cast("type[PlainReader]", self.reader)()
        reader.buffers = buffers
        iterate_over(reader, buffers)
        return reader


ITERATIONS = {"python": Iteration(PlainReader, plain_consumer())}
if RecordIterator is not _iteration_py.RecordIterator:
    ITERATIONS["compiled"] = Iteration(Reader, AIOKafkaConsumer)
else:  # what the compiled path uses, in plain Python
    ITERATIONS["awaitable"] = Iteration(AwaitableReader, consumer_with(AwaitableIterator))

Step = Coroutine[Any, Any, Record]


def iterate_over(reader: RecordIterator | _iteration_py.RecordIterator, buffers: Buffers) -> None:
    """Let an iterator take what the buffers have ready."""
    reader._iterate_over(buffers.ready.cursor)


def step_of(reader: Reader | PlainReader) -> Step:
    """What `async for` asks for. It may be treated as a coroutine, so the tests do."""
    return anext(reader)


async def read_until_stop(reader: Reader | PlainReader) -> list[int]:
    """Read all, and return the offsets."""
    return [record.offset async for record in reader]


async def rounds(count: int) -> None:
    """Let everybody else run."""
    for _ in range(count):
        await asyncio.sleep(0)


def stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the loop's clock, so that no time slice ends."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)


def is_in_get(buffers: Buffers) -> bool:
    """Whether the application waits for a record, so that it is not idle."""
    now = asyncio.get_running_loop().time()
    buffers.state.reads.idle_s(now)  # notes what was handed out
    return buffers.state.reads.idle_s(now + 9) < 8


def stop(buffers: Buffers) -> None:
    """Have every get raise from now on that the consumer is stopped."""
    buffers.state.gate.die(ConsumerStoppedError("stopped"))
    buffers.buffer.wake()
