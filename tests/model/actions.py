"""What an application does: one function each, by the names in `habits`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiokafka_lite._compat import timeout
from aiokafka_lite.errors import ConsumerStoppedError, KafkaError
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.model.ledger import (
    TO_COMMITTED,
    UNSUBSCRIBED,
    Blocked,
    CommitAsked,
    CommitDone,
    Note,
    Paused,
    Sought,
)
from tests.model.member import GRACE_S, TAKEN_AWAY_S, Member

LONG_WORK_S: Final = 0.8
ONE_S: Final = 0.3


# --- Gets -----------------------------------------------------------------------------------
async def get(member: Member) -> None:
    """Get some records in the member's way, and work on them."""
    standing = member.standing
    if standing.getting_since is None or standing.getting is not None:
        standing.getting_since, standing.getting = member.around.world.now(), None
    member.finish("get")
    await get_once(member)
    await asyncio.sleep(member.habits.work_s * member.rng.random())


async def get_once(member: Member) -> None:
    """Get some records, and note them before anything else can happen."""
    way, most = member.habits.way, member.habits.most_records
    wait_ms = member.rng.choice((0, 20, 100, 300))
    within_s = wait_ms / 1000 + GRACE_S
    consumer = member.consumer
    if not member.standing.topics:
        await asyncio.sleep(0.01)
    elif way == "getmany":
        getting = consumer.getmany(timeout_ms=wait_ms, max_records=most)
        member.handed(await member.call(f"getmany for {wait_ms} ms", getting, within_s))
    elif way == "poll":
        getting = consumer.poll(timeout_ms=wait_ms, max_records=most)
        member.handed(await member.call(f"poll for {wait_ms} ms", getting, within_s))
    else:
        await _one_by_one(member)


async def _one_by_one(member: Member) -> None:
    consumer, within_s = member.consumer, ONE_S + GRACE_S
    iterator = aiter(consumer)
    for _ in range(member.rng.randint(1, 30)):
        member.finish("next record")
        try:
            async with timeout(ONE_S):
                if member.habits.way == "getone":
                    record = await member.call("getone for 300 ms", consumer.getone(), within_s)
                else:
                    record = await member.call("anext for 300 ms", anext(iterator), within_s)
                member.handed({TopicPartition(record.topic, record.partition): [record]})
        except asyncio.TimeoutError:
            break
        except StopAsyncIteration:
            raise ConsumerStoppedError from None


async def _get_of_some(member: Member) -> None:
    """Get records of some partitions, for a while; a rebalance that takes them away ends it."""
    consumer, rng, standing = member.consumer, member.rng, member.standing
    world = member.around.world
    some = member.some()
    if not some:
        return
    standing.getting_since, standing.getting = world.now(), frozenset(some)
    for _ in range(rng.randint(1, 30)):
        member.finish("get of some")
        getting = asyncio.ensure_future(_one_get_of(member, some, rng.random() < 0.5))
        ends_at, taken_at = world.now() + rng.choice((0.2, 1.0, 6.0)), None
        try:
            while not getting.done() and world.now() < ends_at:
                await asyncio.wait({getting}, timeout=0.1)
                is_gone = consumer.assignment().isdisjoint(some) and standing.owned.isdisjoint(some)
                taken_at = (taken_at or world.now()) if is_gone else None
                if taken_at is not None and world.now() > taken_at + TAKEN_AWAY_S:
                    member.violate("a get waits for partitions that are gone", f"{some}", some[0])
                    return
        finally:
            if not getting.done():
                getting.cancel()
            await asyncio.wait({getting})
        if not getting.cancelled() and getting.exception() is not None:
            getting.result()


async def _one_get_of(member: Member, some: list[TopicPartition], is_one: bool) -> None:
    if is_one:
        record = await member.consumer.getone(*some)
        member.handed({TopicPartition(record.topic, record.partition): [record]})
    else:
        most = member.habits.most_records
        getting = member.consumer.getmany(*some, timeout_ms=200, max_records=most)
        member.handed(await member.call("getmany of some for 200 ms", getting, 0.2 + GRACE_S))


async def _cancelled_get(member: Member) -> None:
    member.finish("get")
    await member.cancelled("get", lambda: get_once(member), 10 * GRACE_S)


# --- Commits --------------------------------------------------------------------------------
async def commit(member: Member) -> None:
    """Commit the positions, when all that was handed out is finished."""
    member.finish("commit")
    await _commit(member, None, "")


async def commit_in_callback(member: Member) -> None:
    """Commit the positions, whatever the application is working on meanwhile."""
    await _commit(member, None, "")


async def commit_some(member: Member) -> None:
    """Commit offsets of what was handed out in this assignment."""
    offsets = {}
    for tp in member.some():
        if tp in member.standing.first and tp in member.standing.next:
            first, last = sorted((member.standing.first[tp], member.standing.next[tp]))
            offsets[tp] = member.rng.randint(first, last)
    if offsets:
        await _commit(member, offsets, "some")


async def _stale_commit(member: Member) -> None:
    """Commit what was handed out in an assignment that is over, and not again in this one."""
    owned, first, end = member.owned(), member.standing.first, member.standing.next
    offsets = {
        tp: member.stale[tp]
        for tp in owned
        if tp in member.stale
        and not (tp in first and tp in end and first[tp] <= member.stale[tp] <= end[tp])
    }
    if offsets:
        await _commit(member, offsets, "stale")


async def _cancelled_commit(member: Member) -> None:
    member.finish("commit")
    await member.cancelled("commit", lambda: _commit(member, None, ""), 10 * GRACE_S)


async def _commit(member: Member, offsets: Mapping[TopicPartition, int] | None, kind: str) -> None:
    member.numbers += 1
    number = member.numbers
    mark = f"{member.name}#{number}" if kind else ""
    owned, known = member.owned(), member.standing.next
    said = {tp: known[tp] for tp in owned if tp in known} if offsets is None else dict(offsets)
    member.write(CommitAsked(number=number, offsets=said, mark=mark, is_stale=kind == "stale"))
    given = None
    if offsets is not None:
        given = {tp: OffsetAndMetadata(offset, mark) for tp, offset in offsets.items()}
    error = "cancelled"
    try:
        within_s = member.habits.request_s + GRACE_S
        await member.call("commit", member.consumer.commit(given), within_s)
        error = ""
    except KafkaError as raised:
        error = repr(raised)
        if isinstance(raised, ConsumerStoppedError):
            raise
    finally:
        member.write(CommitDone(number=number, offsets=said, mark=mark, error=error))


# --- Positions ------------------------------------------------------------------------------
def _sought(member: Member, tp: TopicPartition, target: int | None, how: str) -> None:
    member.write(Sought(tp=tp, target=target, how=how, limit=member.around.ends[tp]))
    standing = member.standing
    standing.stirred_at[tp] = member.around.world.now()
    if target is None:
        standing.next.pop(tp, None)
        standing.first.pop(tp, None)
    else:
        standing.next[tp] = target
        standing.first[tp] = min(target, standing.first.get(tp, target))


async def seek_back(member: Member) -> None:
    """Go back by some records."""
    for tp in member.some()[:1]:
        position = member.standing.next.get(tp, member.around.acknowledged[tp])
        target = max(0, position - member.rng.randint(1, 40))
        member.consumer.seek(tp, target)
        _sought(member, tp, target, "back")


async def seek_forward(member: Member) -> None:
    """Leave some records out."""
    for tp in member.some()[:1]:
        end = member.around.acknowledged[tp]
        position = member.standing.next.get(tp, end - 20)
        target = min(end, max(0, position + member.rng.randint(1, 40)))
        member.consumer.seek(tp, target)
        _sought(member, tp, target, "forward")


def _one_to_move(member: Member) -> list[TopicPartition]:
    """Return a partition whose position can still be moved: not of a consumer that is stopped."""
    return [] if member.consumer._closed else member.some()[:1]


async def _seek_to_beginning(member: Member) -> None:
    tps = _one_to_move(member)
    for tp in tps:
        _sought(member, tp, 0, "to the beginning")
        member.standing.next.pop(tp)  # it is looked up
    if tps:
        seeking = member.consumer.seek_to_beginning(*tps)
        await member.call("seek_to_beginning", seeking, member.habits.request_s + GRACE_S)


async def _seek_to_end(member: Member) -> None:
    tps = _one_to_move(member)
    if tps:
        member.drain()
        for tp in tps:
            _sought(member, tp, None, "to the end: called")
        seeking = member.consumer.seek_to_end(*tps)
        is_done = await member.call("seek_to_end", seeking, member.habits.request_s + GRACE_S)
        member.drain()
        for tp in tps if is_done else ():
            if tp in member.standing.owned:
                _sought(member, tp, None, "to the end: done")


async def _seek_to_committed(member: Member) -> None:
    tps = member.some()[:1]
    if tps:
        seeking = member.consumer.seek_to_committed(*tps)
        within_s = member.habits.request_s + GRACE_S
        found = await member.call("seek_to_committed", seeking, within_s)
        for tp, offset in found.items():
            if offset is not None and tp in member.consumer.assignment():
                _sought(member, tp, offset, TO_COMMITTED)


async def pause(member: Member) -> None:
    """Pause some partitions."""
    if tps := member.some():
        member.consumer.pause(*tps)
        member.write(Paused(tps=frozenset(tps)))
        member.standing.paused |= set(tps)


async def _resume(member: Member) -> None:
    tps = [tp for tp in member.standing.paused if tp in member.consumer.assignment()]
    if tps:
        member.consumer.resume(*tps)
        member.write(Paused(tps=frozenset(tps), is_paused=False))
        member.standing.paused -= set(tps)
        now = member.around.world.now()
        member.standing.stirred_at.update(dict.fromkeys(tps, now))
    else:
        member.standing.paused &= member.standing.owned


# --- Subscriptions --------------------------------------------------------------------------
async def _unsubscribe(member: Member) -> None:
    member.drain()
    member.finish("unsubscribe")  # which commits all that was handed out, as a stop does
    member.consumer.unsubscribe()
    member.standing.topics = frozenset()
    member.let_go(member.standing.owned, UNSUBSCRIBED)
    await asyncio.sleep(member.rng.choice((0.0, 0.1, 1.0)))
    member.subscribe(member.habits.topics)


async def _subscribe_to_others(member: Member) -> None:
    topics = sorted(member.around.partitions)
    chosen = member.rng.sample(topics, member.rng.randint(1, len(topics)))
    if member.habits.instance_id is not None:
        chosen = topics
    member.drain()
    member.subscribe(chosen)


# --- Keeping the group waiting --------------------------------------------------------------
async def _block(member: Member) -> None:
    _block_for(member, member.rng.uniform(0.1, 0.7))


async def _block_for_long(member: Member) -> None:
    _block_for(member, member.habits.session_s * member.rng.uniform(0.8, 2.5))


def _block_for(member: Member, seconds: float) -> None:
    member.write(Blocked(seconds=seconds))
    for call in member.standing.calls:
        call.due_at += seconds
    member.around.world.block(seconds)
    member.write(Blocked(seconds=0.0))  # now it is over


async def _work_and_block(member: Member) -> None:
    """Work for long on what a get brings, the end of it without a look at the loop."""
    await get(member)
    await asyncio.sleep(member.rng.choice((0.2, 1.0, 2.0)))
    await _block(member)


async def _work_and_commit(member: Member) -> None:
    await _work_and_block(member)
    await commit(member)


async def _stay_away(member: Member) -> None:
    if member.habits.max_poll_s < 10:
        member.write(Note(words="stays away"))
        await asyncio.sleep(member.habits.max_poll_s * member.rng.uniform(0.8, 1.5))


async def _work_for_long(member: Member) -> None:
    await asyncio.sleep(member.rng.uniform(0.2, LONG_WORK_S))


# --- Questions ------------------------------------------------------------------------------
async def _ask_for_offsets(member: Member) -> None:
    around, rng = member.around, member.rng
    tps = rng.sample(sorted(around.ends), rng.randint(1, len(around.ends)))
    within_s = member.habits.request_s * 2 + GRACE_S
    if rng.random() < 0.5:
        await member.call("beginning_offsets", member.consumer.beginning_offsets(tps), within_s)
    else:
        await member.call("end_offsets", member.consumer.end_offsets(tps), within_s)


async def _ask_for_position(member: Member) -> None:
    for tp in member.some()[:1]:
        asking = member.consumer.position(tp)
        position = await member.call("position", asking, member.habits.request_s + GRACE_S)
        member.drain()
        known = member.standing.next.get(tp)
        if tp in member.standing.owned and known is not None and known != position:
            member.violate("position is another", f"{position}, handed out to {known}", tp)


async def _ask_for_committed(member: Member) -> None:
    if tps := member.some():
        asking = member.consumer.committed(tps[0])
        await member.call("committed", asking, member.habits.request_s + GRACE_S)


async def _look_at_health(member: Member) -> None:
    health = member.consumer.health()
    # Its listener may have stopped it.
    if health.verdict == "dead" and not member.consumer._closed:
        member.violate("health says dead of a consumer that runs", "; ".join(health.reasons))
    member.consumer.metrics()
    await asyncio.sleep(0)


Action = Callable[[Member], Awaitable[None]]
ACTIONS: Final[Mapping[str, Action]] = {
    "get": get,
    "get of some": _get_of_some,
    "cancelled get": _cancelled_get,
    "commit": commit,
    "commit of some": commit_some,
    "stale commit": _stale_commit,
    "cancelled commit": _cancelled_commit,
    "seek back": seek_back,
    "seek forward": seek_forward,
    "seek to beginning": _seek_to_beginning,
    "seek to end": _seek_to_end,
    "seek to committed": _seek_to_committed,
    "pause": pause,
    "resume": _resume,
    "unsubscribe": _unsubscribe,
    "subscribe to others": _subscribe_to_others,
    "block": _block,
    "block for long": _block_for_long,
    "work and block": _work_and_block,
    "work and commit": _work_and_commit,
    "stay away": _stay_away,
    "work for long": _work_for_long,
    "ask for offsets": _ask_for_offsets,
    "ask for position": _ask_for_position,
    "ask for committed": _ask_for_committed,
    "look at health": _look_at_health,
}
