"""Who starts and stops what dead letters are written with."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.processing.handling import DeadRecord, RunContext
from aiokafka_lite.errors import IllegalStateError
from aiokafka_lite.processing import DeadLetters, OutboxWriter, OwnProducer
from aiokafka_lite.producing.batch import Output
from aiokafka_lite.structs import ConsumerRecord

RECORD: ConsumerRecord[bytes, bytes] = ConsumerRecord("t", 0, 3, 0, 0, b"k", b"v", None, 1, 1, ())
LETTER = Output("dead", b"k", b"v", 0)


class Noting:
    """A producer, or an outbox, that notes what is called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def start(self) -> None:
        self.calls.append("start")

    async def stop(self) -> None:
        self.calls.append("stop")

    async def open(self) -> None:
        self.calls.append("open")

    async def close(self) -> None:
        self.calls.append("close")

    async def lease(self) -> Noting:
        return self

    async def count_partitions(self, topic: str, limit_s: float) -> int:
        return 3

    def lend(self, why: str) -> object:
        self.calls.append("lend")
        return object()


def run_of(arguments: ConsumerConfig, outbox: Any, stack: AsyncExitStack) -> RunContext:
    return RunContext(arguments, "g", False, lambda topic: False, outbox, None, {}, stack)


@pytest.mark.parametrize("is_outbox", [False, True])
async def test_a_producer_or_outbox_that_is_given_is_neither_started_nor_stopped(
    *, is_outbox: bool
) -> None:
    given: Any = Noting()
    arguments: ConsumerConfig = ConsumerConfig(group_id="g")
    letters = DeadLetters("dead", producer=None if is_outbox else given)
    outbox = given if is_outbox else None
    for _ in range(2):
        async with AsyncExitStack() as stack:
            await letters.open(run_of(arguments, outbox, stack))
            await letters.close()
    assert given.calls == []


async def test_a_producer_is_created_once_and_again_after_it_was_dismissed() -> None:
    made: list[Noting] = []

    def make() -> Any:
        made.append(Noting())
        return made[-1]

    source = OwnProducer(make)
    await source.dismiss()
    lease = await source.lend()
    assert await source.lend() is lease
    await source.dismiss()
    await source.dismiss()
    assert [each.calls for each in made] == [["start", "lend", "stop"]]
    assert await source.lend() is not lease
    assert len(made) == 2


async def test_one_producer_is_created_for_callers_at_the_same_time() -> None:
    made: list[Noting] = []

    class Slow(Noting):
        async def start(self) -> None:
            await asyncio.sleep(0)
            await super().start()

    def make() -> Any:
        made.append(Slow())
        return made[-1]

    source = OwnProducer(make)
    await source.lend()
    await source.dismiss()
    assert len(set(await asyncio.gather(*(source.lend() for _ in range(3))))) == 1
    await source.dismiss()
    assert [each.calls for each in made] == [["start", "lend", "stop"]] * 2


async def test_what_no_run_processes_cannot_be_written_with_its_offset() -> None:
    writer = OutboxWriter(cast("Any", Noting()))
    with pytest.raises(IllegalStateError, match="only for records that consumer"):
        await writer.write(DeadRecord(RECORD, ValueError("bad"), 1), LETTER)
