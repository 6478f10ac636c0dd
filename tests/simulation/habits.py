"""What members do besides reading: in their reading task after some records, or next to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from aiokafka_lite.errors import (
    ConsumerStoppedError,
    FencedMemberEpochError,
    IllegalGenerationError,
    IllegalStateError,
    KafkaError,
    RebalanceInProgressError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from aiokafka_lite.simulation.history import Kind
from aiokafka_lite.structs import TopicPartition
from tests.simulation.cluster import INPUT, SECOND
from tests.simulation.listener import BACK, Listener
from tests.simulation.plan import ACKS, RUNS
from tests.simulation.ways import REQUEST_MS, Consumer, Record, place

if TYPE_CHECKING:
    from tests.simulation.member import Member

Follow: TypeAlias = Callable[["Member", Consumer, Record], Awaitable[None]]
Beside: TypeAlias = Callable[["Member", Consumer], Awaitable[None]]

# Each so many reads, a member does what its habit is.
HABIT_EACH: Final = 8
REQUEST_S: Final = REQUEST_MS / 1000
# A member that stays away is removed from the group.
AWAY_S: Final = (5.0, 8.0)
# What the coordinator answers about a member's epoch: the application gets a CommitFailedError.
EPOCH_ERRORS: Final = (
    FencedMemberEpochError,
    IllegalGenerationError,
    RebalanceInProgressError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)


# --- In the reading task --------------------------------------------------------------------
async def _seek(member: Member, consumer: Consumer, record: Record) -> None:
    tp = place(record)
    if tp not in consumer.assignment():
        return
    member.handled_to.pop(tp, None)
    how = member.rng.random()
    if how < 0.1:
        member.history.note(Kind.SOUGHT, member.name, tp, 0)
        with suppress(KafkaError):
            await consumer.seek_to_beginning(tp)
        return
    if how < 0.5:
        goal = max(0, record.offset + 1 - member.rng.randrange(BACK))
        member.history.note(Kind.SOUGHT, member.name, tp, goal)
        consumer.seek(tp, goal)
        return
    with suppress(KafkaError):
        for each, committed in (await consumer.seek_to_committed(tp)).items():
            if committed is not None:
                member.history.note(Kind.SOUGHT, member.name, each, committed)


async def _subscribe_to_none(member: Member, consumer: Consumer, record: Record) -> None:
    """Be a member without partitions for a while."""
    listener = Listener(member)
    if member.plan.second == "pattern":
        consumer.subscribe(pattern="^none$", listener=listener)
    else:
        consumer.subscribe(["none"], listener=listener)
    with member.handling():  # a stop waits for the end of the sleep
        await asyncio.sleep(member.rng.uniform(0.1, 3.0))
    member.subscribe()


async def _subscribe_to_less(member: Member, consumer: Consumer, record: Record) -> None:
    """Give up one of two topics for a while: none of its records are returned."""
    if member.plan.second != "named":
        return
    topic = member.rng.choice((INPUT, SECOND))
    for tp in sorted(consumer.assignment()):
        if tp.topic == topic:
            member.history.note(Kind.PAUSED, member.name, tp, note="no longer subscribed")
    member.subscribe([SECOND if topic == INPUT else INPUT])
    member.is_subscribed_to_less = True
    _begin(member, _subscribe_to_all(member))


async def _subscribe_to_all(member: Member) -> None:
    await asyncio.sleep(member.rng.uniform(0.1, 3.0))
    if not member.must_end:
        for tp in member.cluster.input_partitions():
            member.history.note(Kind.RESUMED, member.name, tp)
        member.is_subscribed_to_less = False
        with suppress(ConsumerStoppedError, IllegalStateError):
            member.subscribe()


def _begin(member: Member, coroutine: Coroutine[object, object, None]) -> None:
    task = asyncio.ensure_future(coroutine)
    member.tasks.add(task)
    task.add_done_callback(member.tasks.discard)


async def _unsubscribe(member: Member, consumer: Consumer, record: Record) -> None:
    """Leave the group for a while: no record is returned, and all that were are committed."""
    member.history.note_partitions(Kind.REVOKED, member.name, consumer.assignment())
    consumer.unsubscribe()
    with member.handling():
        await asyncio.sleep(member.rng.uniform(0.0, 3.0))
    member.subscribe()


async def _stay_away(member: Member, consumer: Consumer, record: Record) -> None:
    if member.rng.random() < 0.3:
        with member.handling():
            await asyncio.sleep(member.rng.uniform(*AWAY_S))


async def _commit(member: Member, consumer: Consumer, record: Record) -> None:
    """Commit all that was handled. Those that return have to be in the log."""
    owed = dict(member.handled_to)
    if not await _committed(member, consumer):
        return
    for tp, offset in owed.items():
        member.history.note(Kind.CONFIRMED, member.name, tp, offset, note="by commit()")


async def _committed(member: Member, consumer: Consumer) -> bool:
    began_s = member.now()
    try:
        await consumer.commit()
    except EPOCH_ERRORS as error:
        member.history.note(Kind.RAISED, member.name, note=f"an epoch error: {error!r}")
    except ConsumerStoppedError:
        raise
    except KafkaError:
        pass
    else:
        return True
    finally:
        member.check_time("commit()", began_s, REQUEST_S)
    return False


# --- Next to it -----------------------------------------------------------------------------
async def _pause_and_resume(member: Member, consumer: Consumer) -> None:
    await asyncio.sleep(member.rng.uniform(0.5, 3.0))
    paused = [tp for tp in sorted(consumer.assignment()) if member.rng.random() < 0.5]
    consumer.pause(*paused)
    await asyncio.sleep(member.rng.uniform(0.2, 3.0))
    consumer.resume(*sorted(consumer.paused()))


async def _commit_at_times(member: Member, consumer: Consumer) -> None:
    """Commit what is finished, while others are being processed."""
    await asyncio.sleep(member.rng.uniform(0.05, 2.0))
    await _committed(member, consumer)


async def _ask(member: Member, consumer: Consumer) -> None:
    """Ask for anything that needs brokers, or is known."""
    await asyncio.sleep(member.rng.uniform(0.1, 1.5))
    consumer.health(), consumer.metrics()
    tps = sorted(consumer.assignment())
    if not tps:
        return
    tp = member.rng.choice(tps)
    consumer.explain(tp)
    calls: tuple[Callable[[], Awaitable[Any]], ...] = (
        lambda: consumer.position(tp),
        lambda: consumer.committed(tp),
        lambda: consumer.end_offsets(tps),
        lambda: consumer.beginning_offsets(tps),
        lambda: consumer.offsets_for_times({tp: 0}),
    )
    began_s = member.now()
    with suppress(KafkaError, IllegalStateError):  # the partition may be gone
        await member.rng.choice(calls)()
    member.check_time("a question", began_s, 2 * REQUEST_S)


_FOLLOWED: Final[Mapping[str, Follow]] = MappingProxyType(
    {
        "seeks": _seek,
        "subscribes again": _subscribe_to_none,
        "subscribes to less": _subscribe_to_less,
        "unsubscribes": _unsubscribe,
        "stays away": _stay_away,
        "commits": _commit,
    }
)
_BESIDE: Final[Mapping[str, Beside]] = MappingProxyType(
    {
        "pauses": _pause_and_resume,
        "commits": _commit_at_times,
        "asks": _ask,
    }
)


async def follow(member: Member, record: Record) -> None:
    """Do what the habit is, each so many reads. Only the reading task does it."""
    consumer = member.consumer
    assert consumer is not None
    if member.is_subscribed_to_less or not member.is_wild:
        return
    member.read_count += 1
    if member.plan.habit == "names commits":
        if member.read_count % HABIT_EACH == 0:
            _begin_commit(member, consumer, place(record), max(0, record.offset + 1 - BACK))
        _begin_commit(member, consumer, place(record), record.offset + 1)
    elif member.read_count % HABIT_EACH == 0:
        is_beside = member.plan.habit == "commits" and member.plan.way in (*RUNS, *ACKS)
        act = None if is_beside else _FOLLOWED.get(member.plan.habit)
        if act is not None:
            await act(member, consumer, record)


def _begin_commit(member: Member, consumer: Consumer, tp: TopicPartition, offset: int) -> None:
    async def commit() -> None:
        member.history.note(Kind.NAMED, member.name, tp, offset)
        with suppress(KafkaError):  # the group may have moved the partition
            await consumer.commit({tp: offset})

    if tp in consumer.assignment():
        _begin(member, commit())


@asynccontextmanager
async def following(member: Member, consumer: Consumer) -> AsyncIterator[None]:
    """Do what the habit is next to the block, if it is such a one."""
    act = _BESIDE.get(member.plan.habit)
    if act is None or (act is _commit_at_times and member.plan.way not in (*RUNS, *ACKS)):
        yield
        return

    async def go_on() -> None:
        with suppress(ConsumerStoppedError):
            while member.is_wild:
                await act(member, consumer)

    task = asyncio.ensure_future(go_on())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()
