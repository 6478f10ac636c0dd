"""What a member's application does while its tasks have records in hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiokafka_lite.structs import TopicPartition
from tests.model.pairs.journal import short
from tests.model.pairs.member import EXCUSED_S, Member

Event = Callable[[Member], Awaitable[None]]
UNTIL_IN_HAND_S: Final = 1.0


def _one(member: Member) -> TopicPartition | None:
    """Return a partition of which records are in hand."""
    member.drain()
    found = sorted(member.in_hand() & member.consumer.assignment())
    return member.rng.choice(found) if found else None


# --- Commits --------------------------------------------------------------------------------
async def _commit(member: Member) -> None:
    await member.commit()


async def _named_commit(member: Member) -> None:
    """Commit the first offset of a partition that is not finished, or that comes next."""
    tp = _one(member)
    if tp is not None:
        offset = member.journal.first_unfinished(member.around.group, tp)
        offset = min(offset, member.first_in_hand(tp))
        member.note(f"commits {offset} of {short(tp)} by name")
        await member.consumer.commit({tp: offset})


# --- Positions ------------------------------------------------------------------------------
async def _seek(member: Member) -> None:
    tp = _one(member)
    if tp is not None:
        offset = max(0, member.next.get(tp, 0) + member.rng.randint(-10, 2))
        offset = min(offset, member.around.end_of(tp))
        member.sought(tp, offset)
        member.consumer.seek(tp, offset)


async def _seek_to_beginning(member: Member) -> None:
    tp = _one(member)
    if tp is not None:
        member.sought(tp, 0)
        await member.consumer.seek_to_beginning(tp)
        member.found(tp, 0)


async def _pause(member: Member) -> None:
    tp = _one(member)
    if tp is not None:
        member.consumer.pause(tp)
        member.paused.add(tp)
        await asyncio.sleep(member.rng.choice((0.0, 0.1, 0.5)))
        if tp in member.consumer.assignment():
            member.consumer.resume(tp)
        member.paused.discard(tp)


# --- Subscriptions --------------------------------------------------------------------------
async def _subscribe(member: Member) -> None:
    topics = member.around.topics
    some = member.rng.sample(topics, member.rng.randint(1, len(topics)))
    member.consumer.subscribe(some)
    await asyncio.sleep(member.rng.choice((0.0, 0.3, 1.0)))
    member.consumer.subscribe(topics)


async def _unsubscribe(member: Member) -> None:
    if member.way.reading_finishes:
        member.finish_all()  # it commits all that was returned, as a stop does
    member.is_giving_up = True
    member.consumer.unsubscribe()
    member.let_go(member.owned)
    member.is_giving_up = False
    await asyncio.sleep(member.rng.choice((0.0, 0.1, 0.5)))
    member.subscribe()


async def _assign(member: Member) -> None:
    """Assign only some of the partitions for a while."""
    tps = member.around.tps()
    some = member.rng.sample(tps, member.rng.randint(1, len(tps)))
    if member.way.reading_finishes:
        member.finish_all()
    member.assign(some)
    await asyncio.sleep(member.rng.choice((0.0, 0.1, 0.5)))
    member.assign(member.around.tps())


# --- Interruptions --------------------------------------------------------------------------
async def _cancel(member: Member) -> None:
    for reader in member.readers:
        if reader.turn is not None and member.rng.random() < 0.7:
            reader.turn.cancel()


async def _time_out(member: Member) -> None:
    for reader in member.readers:
        if reader.turn is not None and not reader.turn.done():
            reader.expire(member.rng.uniform(0.001, 0.04))


async def _block(member: Member) -> None:
    _block_for(member, member.rng.uniform(0.1, 0.7))


async def _block_for_a_session(member: Member) -> None:
    member.journal.excuse(member.around.group, EXCUSED_S)
    _block_for(member, 2 * member.around.session_s)


def _block_for(member: Member, seconds: float) -> None:
    if not member.around.world.can_block:
        return
    member.note(f"blocks its loop for {seconds:.1f} s")
    member.around.world.block(seconds)
    member.blocked_at = member.around.world.now()


async def _cut(member: Member) -> None:
    member.note("its connections are cut")
    loop = asyncio.get_running_loop()
    for transport in list(loop._transports.values()):  # type: ignore[attr-defined]
        transport.abort()


# --- Brokers and other producers ----------------------------------------------------------------
async def _fence(member: Member) -> None:
    """Start another producer under its transactional id, as a second copy of the program does."""
    producer = member.new_producer()
    try:
        await producer.start()
    finally:
        await producer.stop()


EVENTS: Final[Mapping[str, Event]] = {
    "commit()": _commit,
    "named commit": _named_commit,
    "seek": _seek,
    "looked-up seek": _seek_to_beginning,
    "pause": _pause,
    "subscribe": _subscribe,
    "unsubscribe": _unsubscribe,
    "assign": _assign,
    "cancel": _cancel,
    "timeout": _time_out,
    "loop blocked": _block,
    "loop blocked for a session": _block_for_a_session,
    "connections cut": _cut,
    "producer fenced": _fence,
}
"""What can happen to one member, by its name in the table."""


async def act(member: Member) -> None:
    """Do one of the things that members who read so have met least, once records are in hand."""
    around, rng = member.around, member.rng
    for _ in range(int(UNTIL_IN_HAND_S / 0.01)):
        if member.in_hand():
            break
        await asyncio.sleep(0.01)
    if not member.in_hand() or member.ending:
        return
    rarest = around.table.rarest(member.way.name, around.events)
    favoured = [name for name in rarest if name in around.favoured]
    if not favoured or rng.random() < 0.5:
        favoured = rarest[: max(3, len(rarest) // 3)]
    name = rng.choice(favoured)
    member.note(f"event: {name}")
    member.meet(name)
    await EVENTS[name](member)
