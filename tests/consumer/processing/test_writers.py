"""Who starts and stops what dead letters are written with."""

from __future__ import annotations

from typing import Any, cast

import pytest

from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.processing.handling import DeadRecord, RunContext
from aiokafka_lite.errors import IllegalStateError
from aiokafka_lite.processing import (
    DeadLetters,
    OutboxWriter,
    OwnProducer,
    PlainWriter,
)
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


@pytest.mark.parametrize("is_given", [False, True])
async def test_a_producer_that_is_given_is_neither_started_nor_stopped(*, is_given: bool) -> None:
    noting: Any = Noting()
    writer = PlainWriter(lambda: noting, noting if is_given else None)
    await writer.open()
    await writer.close()
    assert noting.calls == ([] if is_given else ["start", "stop"])


@pytest.mark.parametrize("is_own", [False, True])
async def test_an_outbox_of_the_run_is_neither_opened_nor_closed(*, is_own: bool) -> None:
    noting: Any = Noting()
    writer = OutboxWriter(noting, is_own=is_own)
    await writer.open()
    await writer.close()
    assert noting.calls == (["open", "close"] if is_own else [])


async def test_letters_of_a_run_with_transactions_leave_its_outbox_open() -> None:
    outbox: Any = Noting()
    arguments: ConsumerConfig = ConsumerConfig(group_id="g")
    letters = DeadLetters("dead")
    for _ in range(2):
        await letters.open(RunContext(arguments, None, cast("Any", None), outbox, {}))
        await letters.close()
    assert outbox.calls == []


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


async def test_what_no_run_processes_cannot_be_written_with_its_offset() -> None:
    writer = OutboxWriter(cast("Any", Noting()), is_own=False)
    with pytest.raises(IllegalStateError, match="only for records that consumer"):
        await writer.write(DeadRecord(RECORD, ValueError("bad"), 1), LETTER)
