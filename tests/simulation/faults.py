"""Carries out the faults of a plan, each in a task, and undoes them when faults stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from aiokafka_lite import errors
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.simulation.history import Kind
from aiokafka_lite.simulation.schedule import Fault
from aiokafka_lite.structs import TopicPartition
from tests.simulation.cluster import GROUP, INPUT, host_of
from tests.simulation.plan import NODES

if TYPE_CHECKING:
    from tests.simulation.applications import Member
    from tests.simulation.course import Course

APIS: Final = (
    "Fetch", "Produce", "OffsetCommit", "OffsetFetch", "Metadata", "FindCoordinator", "ListOffsets",
    "JoinGroup", "SyncGroup", "Heartbeat", "ConsumerGroupHeartbeat", "LeaveGroup", "InitProducerId",
    "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn",
)  # fmt: skip
REFUSALS: Final = (
    ("Fetch", errors.NotLeaderForPartitionError),
    ("Fetch", errors.ReplicaNotAvailableError),
    ("Produce", errors.NotLeaderForPartitionError),
    ("Produce", errors.NotEnoughReplicasError),
    ("OffsetCommit", errors.NotCoordinatorError),
    ("OffsetCommit", errors.CoordinatorLoadInProgressError),
    ("OffsetFetch", errors.NotCoordinatorError),
    ("OffsetFetch", errors.CoordinatorLoadInProgressError),
    ("ListOffsets", errors.NotLeaderForPartitionError),
    ("FindCoordinator", errors.CoordinatorNotAvailableError),
    ("JoinGroup", errors.CoordinatorLoadInProgressError),
    ("SyncGroup", errors.NotCoordinatorError),
    ("Heartbeat", errors.CoordinatorNotAvailableError),
    ("ConsumerGroupHeartbeat", errors.CoordinatorLoadInProgressError),
    ("ConsumerGroupHeartbeat", errors.NotCoordinatorError),
    ("InitProducerId", errors.CoordinatorLoadInProgressError),
    ("EndTxn", errors.CoordinatorNotAvailableError),
    ("TxnOffsetCommit", errors.CoordinatorLoadInProgressError),
)
TIMES: Final = 3
WALL_JUMP_S: Final = 1_800.0
PIECES: Final = 4

Carry: TypeAlias = Callable[["Faults", Fault], Awaitable[None]]


class Faults:
    """Carries out faults. Each is one method; all are undone by `stop`."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._loop, self._net = course.loop, course.loop.net
        self._broker = course.cluster.broker
        self._tasks: list[asyncio.Task[None]] = []
        self._down: set[int] = set()

    def start(self) -> None:
        for fault in self._course.plan.faults:
            self._tasks.append(asyncio.ensure_future(self._carry_out(fault)))

    async def _carry_out(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at_s - self._loop.now)
        history = self._course.history
        history.note(Kind.FAULT, fault.name, note=f"{fault.lasts_s:.2f} s")
        try:
            await FAULTS[fault.name](self, fault)
        except KafkaError as error:
            history.note(Kind.FAULT, fault.name, note=f"not possible: {error}")
        history.note(Kind.FAULT_OVER, fault.name)

    async def stop(self) -> None:
        """End all faults: every node and member runs, and everything is connected."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for node_id in sorted(self._down):
            self._net.give_power(host_of(node_id))
            await self._broker.start_node(node_id)
        self._net.heal()
        for host in (*map(host_of, NODES), *self._course.hosts()):
            self._loop.thaw(host)
            self._net.slow_down(host, is_slow=False)
        self._net.deliver_in_pieces(most=None)
        self._loop.jump_wall_clock(0.0)
        self._broker.faults.clear()

    # What a fault is about

    def _node(self, fault: Fault) -> int:
        return NODES[fault.target % len(NODES)]

    def _member(self, fault: Fault) -> Member | None:
        alive = self._course.alive_members()
        return alive[fault.target % len(alive)] if alive else None

    def _partition(self, fault: Fault) -> TopicPartition:
        partitions = self._course.cluster.input_partitions()
        return partitions[fault.target % len(partitions)]

    # Nodes

    async def _node_down(self, fault: Fault, *, is_clean: bool, has_power: bool = True) -> None:
        node_id = self._node(fault)
        if node_id in self._down or len(self._down) + 1 >= len(NODES):
            return
        self._down.add(node_id)
        if not has_power:
            self._net.cut_power(host_of(node_id))
        await self._broker.stop_node(node_id, clean=is_clean)
        await asyncio.sleep(fault.lasts_s)
        self._net.give_power(host_of(node_id))
        await self._broker.start_node(node_id)
        self._down.discard(node_id)

    async def _crash(self, fault: Fault) -> None:
        await self._node_down(fault, is_clean=False)

    async def _cut_power(self, fault: Fault) -> None:
        await self._node_down(fault, is_clean=False, has_power=False)

    async def _shut_down(self, fault: Fault) -> None:
        await self._node_down(fault, is_clean=True)

    async def _hang(self, fault: Fault) -> None:
        await self._cut(fault, [host_of(self._node(fault))], self._course.hosts())

    # The network

    async def _cut(
        self, fault: Fault, ones: list[str], others: list[str], *, both_ways: bool = True
    ) -> None:
        links = self._net.cut(ones, others, both_ways=both_ways)
        await asyncio.sleep(fault.lasts_s)
        self._net.heal(links)

    async def _partition_hosts(self, fault: Fault) -> None:
        clients = self._course.hosts()
        here = [host for n, host in enumerate(clients) if (n + fault.target) % 2] or clients
        nodes = [host_of(self._node(fault))] if fault.detail < 0.6 else [*map(host_of, NODES)]
        await self._cut(fault, nodes, here)

    async def _cut_one_way(self, fault: Fault) -> None:
        node, clients = [host_of(self._node(fault))], self._course.hosts()
        ones, others = (node, clients) if fault.detail < 0.5 else (clients, node)
        await self._cut(fault, ones, others, both_ways=False)

    async def _half_close(self, fault: Fault) -> None:
        node = host_of(self._node(fault))
        for client in self._course.hosts():
            if fault.detail < 0.5:
                self._net.half_close(node, client)
            else:
                self._net.half_close(client, node)

    async def _reset_connections(self, fault: Fault) -> None:
        for host in self._course.hosts():
            self._net.reset(host_of(self._node(fault)), host)

    async def _slow_link(self, fault: Fault) -> None:
        hosts = [host_of(self._node(fault)), *self._course.hosts()]
        host = hosts[0] if fault.detail < 0.5 else hosts[fault.target % len(hosts)]
        self._net.slow_down(host)
        await asyncio.sleep(fault.lasts_s)
        self._net.slow_down(host, is_slow=False)

    async def _pieces(self, fault: Fault) -> None:
        self._net.deliver_in_pieces(most=PIECES)
        await asyncio.sleep(fault.lasts_s)
        self._net.deliver_in_pieces(most=None)

    # Requests

    async def _lose(self, fault: Fault, *, is_handled: bool) -> None:
        api = APIS[int(fault.detail * len(APIS))]
        rule = self._broker.on(api).silence(1 + fault.target % TIMES, handled=is_handled)
        await asyncio.sleep(fault.lasts_s)
        rule.remove()

    async def _lose_answers(self, fault: Fault) -> None:
        await self._lose(fault, is_handled=True)

    async def _lose_requests(self, fault: Fault) -> None:
        await self._lose(fault, is_handled=False)

    async def _answer_with_errors(self, fault: Fault) -> None:
        api, error = REFUSALS[int(fault.detail * len(REFUSALS))]
        rule = self._broker.on(api).fail(error, 1 + fault.target % TIMES)
        await asyncio.sleep(fault.lasts_s)
        rule.remove()

    async def _throttle(self, fault: Fault) -> None:
        api = APIS[int(fault.detail * len(APIS))]
        rule = self._broker.on(api).throttle(0.5 + fault.detail, TIMES, mute=fault.target % 2 == 0)
        await asyncio.sleep(fault.lasts_s)
        rule.remove()

    # The cluster's state

    async def _move_leader(self, fault: Fault) -> None:
        self._broker.move_leader(self._partition(fault))

    async def _move_coordinator(self, fault: Fault) -> None:
        self._broker.move_coordinator(GROUP)

    async def _expire_session(self, fault: Fault) -> None:
        member = self._member(fault)
        if member is not None and member.consumer is not None:
            self._broker.expire_session(GROUP, member.consumer.group_metadata().member_id)

    async def _jump_clock(self, fault: Fault) -> None:
        self._loop.jump_wall_clock(WALL_JUMP_S if fault.detail < 0.5 else -WALL_JUMP_S)
        await asyncio.sleep(fault.lasts_s)
        self._loop.jump_wall_clock(0.0)

    async def _delete_old(self, fault: Fault) -> None:
        tp = self._partition(fault)
        partition = self._broker.partition(*tp)
        offset = partition.log.delete_before(int(partition.high_watermark * fault.detail))
        self._course.history.note(Kind.CUT_LOG, "retention", tp, offset)

    async def _truncate(self, fault: Fault) -> None:
        tp = self._partition(fault)
        end = self._broker.partition(*tp).high_watermark
        if end:
            offset = self._broker.truncate(tp, max(0, end - 1 - fault.target % 5))
            self._course.history.note(Kind.CUT_LOG, "truncation", tp, offset)

    async def _recreate(self, fault: Fault) -> None:
        self._broker.recreate_topic(INPUT)
        for tp in self._course.cluster.input_partitions():
            self._course.history.note(Kind.CUT_LOG, "recreated", tp, 0)

    # Members

    async def _kill_member(self, fault: Fault) -> None:
        member = self._member(fault)
        if member is not None:
            member.kill(is_silent=fault.detail < 0.4)
            await self._replace(member, fault, asyncio.sleep(0))

    async def _stop_member(self, fault: Fault) -> None:
        member = self._member(fault)
        if member is not None:
            await self._replace(member, fault, asyncio.shield(self._course.stop_member(member)))

    async def _replace(self, member: Member, fault: Fault, ended: Awaitable[None]) -> None:
        """Start another member after the end of one, at the latest when faults stop."""
        try:
            await ended
            await asyncio.sleep(fault.lasts_s)
        finally:
            self._course.start_member(member.slot)

    async def _add_member(self, fault: Fault) -> None:
        self._course.start_member(self._course.new_slot())

    async def _block(self, fault: Fault) -> None:
        member = self._member(fault)
        if member is None:
            return
        self._loop.freeze(member.name)
        await asyncio.sleep(fault.lasts_s)
        self._loop.thaw(member.name)


FAULTS: Final[Mapping[str, Carry]] = {
    "crash": Faults._crash,
    "power cut": Faults._cut_power,
    "shutdown": Faults._shut_down,
    "hang": Faults._hang,
    "partition": Faults._partition_hosts,
    "one-way cut": Faults._cut_one_way,
    "half-close": Faults._half_close,
    "reset": Faults._reset_connections,
    "slow link": Faults._slow_link,
    "pieces": Faults._pieces,
    "lost answers": Faults._lose_answers,
    "lost requests": Faults._lose_requests,
    "refusals": Faults._answer_with_errors,
    "leader moves": Faults._move_leader,
    "coordinator moves": Faults._move_coordinator,
    "throttling": Faults._throttle,
    "clock skew": Faults._jump_clock,
    "retention": Faults._delete_old,
    "truncation": Faults._truncate,
    "recreated": Faults._recreate,
    "member killed": Faults._kill_member,
    "member stops": Faults._stop_member,
    "member joins": Faults._add_member,
    "loop blocked": Faults._block,
    "session expires": Faults._expire_session,
}
