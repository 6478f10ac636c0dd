"""What a get awaits of the application before a share's next records can be handed out.

That is: deserialisers that may wait, and the callable given as `on_bad_record`. It runs within the
get that comes to it, and only when that get has nothing to hand out yet. So whatever it does, the
records ahead have been delivered; and a get that is cancelled during it has moved nothing, and the
next one calls it again. Other gets wait for the one that is at work on a share.

While it waits anything may happen to the partition. What comes of it is put into the share in one
go, if that is still current.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, NamedTuple

from aiokafka_lite._event import Event
from aiokafka_lite.consumer.buffer.delivering import check_verdict, describe
from aiokafka_lite.errors import CorruptRecordException, IllegalStateError, KafkaError
from aiokafka_lite.structs import ConsumerRecord

if TYPE_CHECKING:
    from aiokafka_lite.bad_records import BadRecord, BadRecordHandler, Verdict
    from aiokafka_lite.consumer.buffer.bad_records import PoisonRule
    from aiokafka_lite.consumer.buffer.chunk import Chunk
    from aiokafka_lite.consumer.buffer.decode import TimeSlice
    from aiokafka_lite.consumer.buffer.deserialising import AwaitedDeserialising
    from aiokafka_lite.consumer.buffer.line import Line


class Work(NamedTuple):
    """The get that is at work on a share."""

    task: asyncio.Task[object] | None
    is_done: Event


async def work_on(part: Chunk, line: Line, poison: PoisonRule, time_slice: TimeSlice) -> None:
    """Do what a share waits for, or some of it.

    Raises:
        IllegalStateError: The application's code, called from here, has come back for records.
        Exception: What `on_bad_record` raised; the next get calls it again.
    """
    task = asyncio.current_task()
    if part.work is not None:
        if part.work.task is task:
            raise IllegalStateError(
                f"a deserialiser, or on_bad_record, asks for records of {part.partition.tp}, "
                "which wait for what it returns"
            )
        await part.work.is_done.wait()
        return
    work = part.work = Work(task, Event())
    try:
        if part.error is not None:
            await _decide(part, part.error, poison)
        elif (awaited := part.delivery.awaited) is not None:
            await _deserialise(part, awaited, time_slice)
    except BaseException:
        # What hangs or fails must not keep the other partitions from being served.
        line.move_to_end(part.partition)
        raise
    finally:
        part.work = None
        work.is_done.set()


async def _deserialise(part: Chunk, awaited: AwaitedDeserialising, time_slice: TimeSlice) -> None:
    """Deserialise what is decoded, until an error, or until the application takes its time."""
    loop = asyncio.get_running_loop()
    while part.error is None and part.raw:
        began = loop.time()
        converted = await awaited.convert(part.raw[: awaited.max_records])
        if not part.is_current:
            return
        part.accept(converted)
        now = loop.time()
        if part.decoded and now - began > time_slice.length_s:
            return  # those that are there need not wait for the others
        if now >= time_slice.begin():
            await time_slice.let_others_run()


async def _decide(part: Chunk, error: KafkaError, poison: PoisonRule) -> None:
    """Ask `on_bad_record` what becomes of the record or batch of an error."""
    if isinstance(error, CorruptRecordException) and poison.fetch_again(part, error):
        return
    bad = describe(error)
    handler = part.delivery.bad.handler
    verdict: Verdict = "skip" if handler is None else await _ask(handler, bad)
    if not part.is_current or part.error is not error:
        return
    if verdict == "raise":
        part.is_undecided = False
    elif bad.is_batch:
        if isinstance(verdict, ConsumerRecord):
            poison.replace_batch(part, bad.next_offset, verdict)
        else:
            part.delivery.bad.skipped(error)
            poison.skip_batch(part, bad.next_offset)
    else:
        part.settle_bad_record(verdict, error)


async def _ask(handler: BadRecordHandler, bad: BadRecord) -> Verdict:
    answer = handler(bad)
    if isinstance(answer, Awaitable):
        answer = await answer
    return check_verdict(answer, bad)
