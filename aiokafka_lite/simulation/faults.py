"""Carries out the faults of a schedule, each in a task, and undoes them when faults stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeAlias

from aiokafka_lite import errors
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.simulation.cluster import host_of
from aiokafka_lite.simulation.history import Kind
from aiokafka_lite.simulation.schedule import Fault
from aiokafka_lite.simulation.world import Process, World
from aiokafka_lite.structs import TopicPartition

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

Carry: TypeAlias = Callable[[Any, Fault], Awaitable[None]]


class FaultRunner:
    """Each kind of fault is one method."""

    # How the faults of each name are carried out.
    table: ClassVar[Mapping[str, Carry]]

    def __init__(self, world: World, faults: Sequence[Fault]) -> None:
        self._world, self._faults = world, faults
        self._loop, self._net, self._history = world.loop, world.loop.net, world.history
        self._cluster, self._broker = world.cluster, world.cluster.broker
        self._tasks: list[asyncio.Task[None]] = []
        self._down: set[int] = set()

    def start(self) -> None:
        for fault in self._faults:
            self._tasks.append(asyncio.ensure_future(self._carry_out(fault)))

    async def _carry_out(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at_s - self._loop.now)
        history = self._history
        history.note(Kind.FAULT, fault.name, note=f"{fault.lasts_s:.2f} s")
        try:
            await self.table[fault.name](self, fault)
        except KafkaError as error:
            history.note(Kind.FAULT, fault.name, note=f"not possible: {error}")
        history.note(Kind.FAULT_OVER, fault.name)

    async def stop(self) -> None:
        """End all faults: every node and member runs, and everything is connected."""
        for task in self._tasks:
            task.cancel()
        # Some of the tasks wait for the end of a process, which these would delay.
        self._net.heal()
        for host in (*self._cluster.hosts, *self._world.hosts()):
            self._loop.thaw(host)
            self._net.slow_down(host, is_slow=False)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for node_id in sorted(self._down):
            self._net.give_power(host_of(node_id))
            await self._broker.start_node(node_id)
        self._net.deliver_in_pieces(most=None)
        self._loop.jump_wall_clock(0.0)
        self._broker.faults.clear()

    # What a fault is about

    def _node(self, fault: Fault) -> int:
        return self._cluster.node_ids[fault.target % len(self._cluster.node_ids)]

    def _process(self, fault: Fault) -> Process | None:
        alive = self._world.alive()
        return alive[fault.target % len(alive)] if alive else None

    def _partition(self, fault: Fault) -> TopicPartition | None:
        partitions = self._world.faulty_partitions()
        return partitions[fault.target % len(partitions)] if partitions else None

    # Nodes

    async def _node_down(self, fault: Fault, *, is_clean: bool, has_power: bool = True) -> None:
        node_id = self._node(fault)
        if node_id in self._down or len(self._down) >= max(1, len(self._cluster.node_ids) - 1):
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
        await self._cut(fault, [host_of(self._node(fault))], self._world.hosts())

    # The network

    async def _cut(
        self, fault: Fault, ones: list[str], others: list[str], *, both_ways: bool = True
    ) -> None:
        links = self._net.cut(ones, others, both_ways=both_ways)
        await asyncio.sleep(fault.lasts_s)
        self._net.heal(links)

    async def _partition_hosts(self, fault: Fault) -> None:
        clients = self._world.hosts()
        here = [host for n, host in enumerate(clients) if (n + fault.target) % 2] or clients
        nodes = [host_of(self._node(fault))] if fault.detail < 0.6 else self._cluster.hosts
        await self._cut(fault, nodes, here)

    async def _cut_one_way(self, fault: Fault) -> None:
        node, clients = [host_of(self._node(fault))], self._world.hosts()
        ones, others = (node, clients) if fault.detail < 0.5 else (clients, node)
        await self._cut(fault, ones, others, both_ways=False)

    async def _half_close(self, fault: Fault) -> None:
        node = host_of(self._node(fault))
        for client in self._world.hosts():
            if fault.detail < 0.5:
                self._net.half_close(node, client)
            else:
                self._net.half_close(client, node)

    async def _reset_connections(self, fault: Fault) -> None:
        for host in self._world.hosts():
            self._net.reset(host_of(self._node(fault)), host)

    async def _slow_link(self, fault: Fault) -> None:
        hosts = [host_of(self._node(fault)), *self._world.hosts()]
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
        if (tp := self._partition(fault)) is not None:
            self._broker.move_leader(tp)

    async def _move_coordinator(self, fault: Fault) -> None:
        groups = sorted({group for group, _ in self._cluster.group_members()})
        if groups:
            self._broker.move_coordinator(groups[fault.target % len(groups)])

    async def _expire_session(self, fault: Fault) -> None:
        members = self._cluster.group_members()
        if members:
            self._broker.expire_session(*members[fault.target % len(members)])

    async def _jump_clock(self, fault: Fault) -> None:
        self._loop.jump_wall_clock(WALL_JUMP_S if fault.detail < 0.5 else -WALL_JUMP_S)
        await asyncio.sleep(fault.lasts_s)
        self._loop.jump_wall_clock(0.0)

    async def _delete_old(self, fault: Fault) -> None:
        if (tp := self._partition(fault)) is not None:
            partition = self._broker.partition(*tp)
            share = min(1.0, 2 * fault.detail)  # in half of the cases all records
            offset = partition.log.delete_before(int(partition.high_watermark * share))
            self._history.note(Kind.CUT_LOG, "retention", tp, offset)

    async def _truncate(self, fault: Fault) -> None:
        tp = self._partition(fault)
        if tp is not None and (end := self._broker.partition(*tp).high_watermark):
            offset = self._broker.truncate(tp, max(0, end - 1 - fault.target % 5))
            self._history.note(Kind.CUT_LOG, "truncation", tp, offset)

    async def _recreate(self, fault: Fault) -> None:
        if (some := self._partition(fault)) is not None:
            self._broker.recreate_topic(some.topic)
            for tp in self._cluster.partitions_of(some.topic):
                self._history.note(Kind.CUT_LOG, "recreated", tp, 0)

    # Processes

    async def _kill_process(self, fault: Fault) -> None:
        if (process := self._process(fault)) is not None:
            process.kill(is_silent=fault.detail < 0.4)
            await self._replace(process, fault, asyncio.sleep(0))

    async def _stop_process(self, fault: Fault) -> None:
        if (process := self._process(fault)) is not None:
            await self._replace(process, fault, asyncio.shield(self._world.stop(process)))

    async def _replace(self, process: Process, fault: Fault, ended: Awaitable[None]) -> None:
        """Start another process after the end of one, at the latest when faults stop."""
        try:
            await ended
            await asyncio.sleep(fault.lasts_s)
        finally:
            self._world.start(process.slot)

    async def _add_process(self, fault: Fault) -> None:
        if self._world.processes:
            self._world.start(self._world.new_slot())

    async def _block(self, fault: Fault) -> None:
        if (process := self._process(fault)) is not None:
            self._loop.freeze(process.name)
            await asyncio.sleep(fault.lasts_s)
            self._loop.thaw(process.name)


FAULTS: Final[Mapping[str, Carry]] = {
    "crash": FaultRunner._crash,
    "power cut": FaultRunner._cut_power,
    "shutdown": FaultRunner._shut_down,
    "hang": FaultRunner._hang,
    "partition": FaultRunner._partition_hosts,
    "one-way cut": FaultRunner._cut_one_way,
    "half-close": FaultRunner._half_close,
    "reset": FaultRunner._reset_connections,
    "slow link": FaultRunner._slow_link,
    "pieces": FaultRunner._pieces,
    "lost answers": FaultRunner._lose_answers,
    "lost requests": FaultRunner._lose_requests,
    "refusals": FaultRunner._answer_with_errors,
    "leader moves": FaultRunner._move_leader,
    "coordinator moves": FaultRunner._move_coordinator,
    "throttling": FaultRunner._throttle,
    "clock skew": FaultRunner._jump_clock,
    "retention": FaultRunner._delete_old,
    "truncation": FaultRunner._truncate,
    "recreated": FaultRunner._recreate,
    "member killed": FaultRunner._kill_process,
    "member stops": FaultRunner._stop_process,
    "member joins": FaultRunner._add_process,
    "loop blocked": FaultRunner._block,
    "session expires": FaultRunner._expire_session,
}
FaultRunner.table = FAULTS
