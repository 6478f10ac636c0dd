"""Drives the machines of classic groups: parks requests, writes records, answers.

One record stores a group (Kafka: GroupCoordinatorRecordHelpers.java).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias, cast

from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.groups.classic.machine import ClassicGroup
from aiokafka_lite.broker.groups.classic.members import ClassicGroupMember
from aiokafka_lite.broker.groups.coordinator_log import CoordinatorRecord
from aiokafka_lite.broker.groups.values import (
    Effects,
    ErrorType,
    Join,
    Reply,
    Ticket,
)
from aiokafka_lite.protocol.messages.classic_group import (
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from aiokafka_lite.protocol.messages.group_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
)

Write: TypeAlias = Callable[[str, Sequence[CoordinatorRecord]], ErrorType]


@dataclass(eq=False)
class ClassicDriver:
    config: BrokerConfig
    clock: Callable[[], int]
    new_id: Callable[[], str]
    write: Write
    arm: Callable[[ClassicGroup], None]
    parked: dict[Ticket, asyncio.Future[Reply]] = field(default_factory=dict, init=False)
    _tickets: Iterator[int] = field(default_factory=itertools.count, init=False)

    def new_group(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(group_id, self.config, new_suffix=self.new_id, clock=self.clock)

    async def join(self, group: ClassicGroup, call: Join) -> JoinGroupResponse:
        """Answer a JoinGroup request. Cancellation drops it, but not the member."""
        return cast("JoinGroupResponse", await self._park(group, partial(group.join, call)))

    async def sync(self, group: ClassicGroup, call: SyncGroupRequest) -> SyncGroupResponse:
        return cast("SyncGroupResponse", await self._park(group, partial(group.sync, call)))

    async def _park(
        self, group: ClassicGroup, request: Callable[[Ticket, float], Effects]
    ) -> Reply:
        ticket = Ticket(next(self._tickets))
        parked: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.parked[ticket] = parked
        self.act(group, request(ticket, self._now()))
        try:
            return await parked
        finally:
            del self.parked[ticket]

    def act(self, group: ClassicGroup, effects: Effects) -> None:
        """Apply effects, and the effects that their write returns."""
        while True:
            for ticket, reply in effects.replies:
                request = self.parked.get(ticket)
                if request is not None and not request.done():
                    request.set_result(reply)
            if effects.write is None:
                break
            error = self.write(group.group_id, [metadata_record(group, effects.write.assignments)])
            effects = effects.write.done(error, self._now())
        self.arm(group)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def metadata_record(group: ClassicGroup, assignments: Mapping[str, bytes]) -> CoordinatorRecord:
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol,
        leader=group.members.leader_id,
        current_state_timestamp=group.state_since_ms,
        members=[
            stored_member(group.members[member_id], group.protocol or "", assignment)
            for member_id, assignment in assignments.items()
        ],
    )
    return CoordinatorRecord(GroupMetadataKey(group=group.group_id), value)


def stored_member(member: ClassicGroupMember, protocol: str, assignment: bytes) -> MemberMetadata:
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.metadata(protocol),
        assignment=assignment,
    )


def group_tombstone(group_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(GroupMetadataKey(group=group_id), None)
