"""The faults of the campaign: those of the package, and what only these tests need."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, Final

from aiokafka_lite import errors
from aiokafka_lite.broker.handlers.base import RequestContext
from aiokafka_lite.simulation.cluster import host_of
from aiokafka_lite.simulation.faults import FAULTS, TIMES, Carry, FaultRunner
from aiokafka_lite.simulation.history import Kind
from aiokafka_lite.simulation.schedule import Fault
from aiokafka_lite.structs import TopicPartition
from tests.simulation.cluster import GROUP, INPUT, SECOND, GroupCluster
from tests.simulation.member import Member
from tests.simulation.plan import SHARING

if TYPE_CHECKING:
    from tests.simulation.course import Course

# A throttle time after which its connection is reset, and the wait for a request that gets it.
THROTTLE_S: Final = 1.5
THROTTLED_WITHIN_S: Final = 3.0
# How late records of a producer are that another one fences.
LATE_S: Final = 1.0
# Longer than `stop` may take.
OUTAGE_S: Final = 13.0
FILLING: Final = 40
MOST_PARTITIONS: Final = 8


SHARE_APIS: Final = ("ShareFetch", "ShareAcknowledge", "ShareGroupHeartbeat", "ShareFetch")
SHARE_REFUSALS: Final = (
    ("ShareFetch", errors.ShareSessionNotFoundError),
    ("ShareFetch", errors.InvalidShareSessionEpochError),
    ("ShareFetch", errors.ShareSessionLimitReachedError),
    ("ShareAcknowledge", errors.ShareSessionNotFoundError),
    ("ShareAcknowledge", errors.InvalidShareSessionEpochError),
    ("ShareGroupHeartbeat", errors.CoordinatorLoadInProgressError),
    ("ShareGroupHeartbeat", errors.NotCoordinatorError),
    ("ShareGroupHeartbeat", errors.UnknownMemberIdError),
    ("ShareGroupHeartbeat", errors.FencedMemberEpochError),
)


class Faults(FaultRunner):
    """Carries out faults. Each is one method."""

    table: ClassVar[Mapping[str, Carry]]
    _world: Course
    _cluster: GroupCluster

    async def _expire_session(self, fault: Fault) -> None:
        if self._world.plan.way == SHARING:
            await super()._expire_session(fault)
            return
        member = self._process(fault)
        if isinstance(member, Member) and member.consumer is not None:
            session = GROUP, member.consumer.group_metadata().member_id
            self._broker.expire_session(*session)
            # A classic member that waits for a JoinGroup or SyncGroup response stays.
            if session not in self._cluster.group_members():
                self._history.note(Kind.FENCED, member.name)

    async def _evict_sessions(self, fault: Fault) -> None:
        for node in self._broker.nodes.values():
            node.fetch_sessions.clear()

    async def _answer_with_old_metadata(self, fault: Fault) -> None:
        old, tp = self._broker.leaders_now(), self._partition(fault)
        if tp is None:
            return
        self._broker.move_leader(tp)
        await asyncio.sleep(fault.detail)
        rule = self._broker.on("Metadata").stale_metadata(old, 1 + fault.target % TIMES)
        await asyncio.sleep(fault.lasts_s)
        rule.remove()

    async def _fence(self, fault: Fault) -> None:
        """Have the coordinator refuse a member's epoch, or its generation once."""
        member = self._process(fault)
        if member is None:
            return
        if self._world.plan.protocol == "consumer":
            if isinstance(member, Member) and member.consumer is not None:
                self._cluster.raise_epoch(member.consumer.group_metadata().member_id)
                self._history.note(Kind.FENCED, member.name)
            return
        request = self._broker.on("Heartbeat", client_id=member.name)
        rule = request.fail(errors.IllegalGenerationError)
        await asyncio.sleep(max(fault.lasts_s, THROTTLED_WITHIN_S))
        rule.remove()

    async def _lose_heartbeat(self, fault: Fault) -> None:
        """Lose the answers to a few heartbeats or joins, also those with an assignment."""
        is_classic = self._world.plan.protocol != "consumer"
        apis = ["Heartbeat", "JoinGroup", "SyncGroup"] if is_classic else ["ConsumerGroupHeartbeat"]
        rule = self._broker.on(apis[fault.target % len(apis)]).silence(
            1 + int(fault.detail * TIMES), handled=True
        )
        await asyncio.sleep(fault.lasts_s)
        rule.remove()

    async def _lose_share_answers(self, fault: Fault) -> None:
        """Lose requests of share groups, or the answers to them."""
        api = SHARE_APIS[fault.target % len(SHARE_APIS)]
        rule = self._broker.on(api).silence(
            1 + int(fault.detail * TIMES), handled=fault.detail > 0.3
        )
        await asyncio.sleep(fault.lasts_s)
        rule.remove()

    async def _refuse_shares(self, fault: Fault) -> None:
        api, error = SHARE_REFUSALS[fault.target % len(SHARE_REFUSALS)]
        rule = self._broker.on(api).fail(error, 1 + int(fault.detail * TIMES))
        await asyncio.sleep(fault.lasts_s)
        rule.remove()

    async def _throttle_and_reset(self, fault: Fault) -> None:
        """Throttle an answer, then lose its connection."""
        api = "Produce"  # a client has one connection for them, to each node
        mark = self._broker.requests.total
        # Several clients may send one at the same time.
        caught: list[tuple[str | None, int]] = []

        def catch(context: RequestContext, _: object) -> bool:
            caught.append((context.client_id, context.node.id))
            return True

        rule = self._broker.on(api, when=catch).throttle(THROTTLE_S)
        try:
            await rule.reached(timeout_s=THROTTLED_WITHIN_S)
        except TimeoutError:
            return
        finally:
            rule.remove()
        reached_at_s = self._loop.now
        await asyncio.sleep(0.02)
        answered = [
            each
            for each in self._broker.requests.of(api, since=mark)
            if (each.client_id, each.node_id) == caught[-1]
            and each.answered_at
            and each.arrived_at <= reached_at_s
        ]
        if not answered:
            return
        seen = answered[-1]
        client, answered_at = seen.client_id or "", seen.answered_at or 0.0
        if seen.peer not in self._net.addresses_of(client):
            return  # it had closed the connection, whose last requests a partition held
        if not self._net.has_received(client, host_of(seen.node_id)):
            return  # it would not learn of the throttle time
        self._net.reset(host_of(seen.node_id), client)
        await asyncio.sleep(answered_at + THROTTLE_S - self._loop.now)
        failed = self._history.of(Kind.RAISED)
        if any(each.who == client and each.at_s > answered_at for each in failed):
            return  # its application has another client since, which was not throttled
        early = [
            each
            for each in self._broker.requests.of(api, since=seen.number, node=seen.node_id)
            if each.client_id == client
            and each.peer != seen.peer
            and each.arrived_at < answered_at + THROTTLE_S
        ]
        for each in early:
            note = f"{client} sent {api} to node {seen.node_id} after {answered_at:.3f}"
            self._history.note(Kind.THROTTLED, client, note=f"{note}: {each.arrived_at:.3f}")

    async def _lose_unflushed(self, fault: Fault) -> None:
        """Have a node lose the end of its logs, and the members next to it die, which read it."""
        node_id, lost = self._node(fault), set[TopicPartition]()
        for tp in self._cluster.input_partitions():
            partition = self._broker.partition(*tp)
            if partition.leader_id == node_id and partition.high_watermark:
                end = max(0, partition.high_watermark - 1 - fault.target)
                self._history.note(Kind.CUT_LOG, "truncation", tp, self._broker.truncate(tp, end))
                lost.add(tp)
        died = [] if fault.detail < 0.2 else self._owners(lost)
        for member in died:
            member.kill(is_silent=True)
        try:
            await self._node_down(fault, is_clean=False, has_power=False)
        finally:
            for member in died:
                self._world.start(member.slot)

    def _owners(self, tps: Collection[TopicPartition]) -> list[Member]:
        return [
            member
            for member in self._world.alive_members()
            if member.consumer is not None and not member.consumer.assignment().isdisjoint(tps)
        ]

    async def _refill(self, fault: Fault) -> None:
        """Recreate a topic, and write more records at once than the old one had."""
        self._broker.recreate_topic(INPUT)
        for tp in self._cluster.input_partitions():
            if tp.topic == INPUT:
                self._history.note(Kind.CUT_LOG, "recreated", tp, 0)
                for number in range(FILLING):
                    value = f"w{tp.partition}x{fault.at_s}-{number}"
                    # A compacted topic takes only records with a key, and keeps the last of each.
                    key = value if self._world.plan.is_compacted else None
                    self._broker.produce(INPUT, value, key=key, partition=tp.partition)

    async def _add_partitions(self, fault: Fault) -> None:
        topic = self._broker.topic(INPUT)
        if topic is not None and topic.partition_count < MOST_PARTITIONS:
            self._broker.add_partitions(INPUT, topic.partition_count + 1)

    async def _compact(self, fault: Fault) -> None:
        if self._world.plan.is_compacted:
            for tp in self._cluster.input_partitions():
                self._history.note(Kind.CUT_LOG, "compaction", tp)
            await self._broker.clean_logs()

    async def _recreate_smaller(self, fault: Fault) -> None:
        """Recreate a topic without its last partition."""
        before = self._cluster.partitions_of(INPUT)
        self._broker.recreate_topic(INPUT, max(1, len(before) - 1))
        for tp in before:
            self._history.note(Kind.CUT_LOG, "recreated", tp, 0)

    async def _delete_topic(self, fault: Fault) -> None:
        """Delete the second topic, and create it again later."""
        if not self._broker.has_topic(SECOND):
            return
        before = self._cluster.partitions_of(SECOND)
        self._broker.delete_topic(SECOND)
        for tp in before:
            self._history.note(Kind.CUT_LOG, "recreated", tp, 0)
        try:
            await asyncio.sleep(fault.lasts_s)
        finally:
            self._cluster.create_second()

    async def _twin_producer(self, fault: Fault) -> None:
        """Start another producer with the transactional id of one, whose records are late."""
        able = [each for each in self._world.producers if each.kind == "transactional"]
        if not able:
            return
        first = able[fault.target % len(able)]
        rule = self._broker.on("Produce", client_id=first.name).delay(LATE_S)
        with suppress(TimeoutError):
            await rule.reached(timeout_s=THROTTLED_WITHIN_S)
        rule.remove()
        self._world.start_twin_of(first)

    async def _stop_in_an_outage(self, fault: Fault) -> None:
        """Stop a member that no node answers."""
        member = self._process(fault)
        if member is None:
            return
        links = self._net.cut([member.name], [*self._cluster.hosts])
        ended = asyncio.ensure_future(self._world.stop(member))
        try:
            await asyncio.sleep(OUTAGE_S)
        finally:
            self._net.heal(links)
            await self._replace(member, fault, asyncio.shield(ended))

    async def _twin_member(self, fault: Fault) -> None:
        """Start another member with the instance id of one, and stop the first one later."""
        member = self._process(fault)
        if member is None or not self._world.plan.static:
            return
        self._world.start(member.slot)
        try:
            await asyncio.sleep(fault.lasts_s)
        finally:
            if member.is_alive:
                await asyncio.shield(self._world.stop(member))


Faults.table = {
    **FAULTS,
    "session expires": Faults._expire_session,
    "stale metadata": Faults._answer_with_old_metadata,
    "sessions evicted": Faults._evict_sessions,
    "member fenced": Faults._fence,
    "lost heartbeat": Faults._lose_heartbeat,
    "share answers lost": Faults._lose_share_answers,
    "share refusals": Faults._refuse_shares,
    "stop in an outage": Faults._stop_in_an_outage,
    "throttled, reset": Faults._throttle_and_reset,
    "twin producer": Faults._twin_producer,
    "twin member": Faults._twin_member,
    "unflushed": Faults._lose_unflushed,
    "refilled": Faults._refill,
    "partitions added": Faults._add_partitions,
    "compaction": Faults._compact,
    "recreated smaller": Faults._recreate_smaller,
    "topic deleted": Faults._delete_topic,
}
