"""Drives one ClassicGroup with invented time, as GroupCoordinator does with the loop's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.groups.classic.machine import ClassicGroup, GroupState
from aiokafka_lite.broker.groups.classic.members import Join
from aiokafka_lite.broker.groups.coordinator_log import CoordinatorRecord, ErrorType
from aiokafka_lite.errors import MemberIdRequired, NoError
from aiokafka_lite.protocol.messages.coordinator_records import GroupMetadataValue
from aiokafka_lite.protocol.messages.group_members import (
    JoinGroupResponse,
    MemberIdentity,
    SyncGroupResponse,
)
from tests.broker.groups.fakes import sync_call

T = TypeVar("T")

SESSION_MS = 10_000
REBALANCE_MS = 60_000


class Driver:
    """A group, a clock that only moves when told, and everything the group has answered."""

    def __init__(self, settings: BrokerConfig | None = None) -> None:
        self.now = 100.0
        suffixes = (f"id{n}" for n in itertools.count(1))
        self.group = ClassicGroup(
            "g",
            settings or BrokerConfig(group_initial_rebalance_delay_ms=0),
            new_suffix=lambda: next(suffixes),
            clock=lambda: int(self.now * 1000),
            now=lambda: self.now,
            write=self._write,
        )
        self.joins: dict[int, JoinGroupResponse] = {}
        self.syncs: dict[int, SyncGroupResponse] = {}
        self.writes: list[dict[str, bytes]] = []
        self.write_error: ErrorType = NoError
        self.states = [self.group.state]
        self._tickets = itertools.count(1)

    @property
    def state(self) -> GroupState:
        return self.group.state

    @property
    def answered(self) -> int:
        return len(self.joins) + len(self.syncs)

    def run(self, step: Callable[[], T]) -> T:
        result = step()
        self._note_state()
        return result

    def _note_state(self) -> None:
        if self.group.state is not self.states[-1]:
            self.states.append(self.group.state)

    def _write(self, record: CoordinatorRecord) -> ErrorType:
        self._note_state()
        assert isinstance(record.value, GroupMetadataValue)
        self.writes.append({each.member_id: each.assignment for each in record.value.members})
        return self.write_error

    def _answer(self, ticket: int, reply: JoinGroupResponse | SyncGroupResponse) -> None:
        assert ticket not in self.joins, "answered twice"
        assert ticket not in self.syncs, "answered twice"
        if isinstance(reply, JoinGroupResponse):
            self.joins[ticket] = reply
        else:
            self.syncs[ticket] = reply

    def advance(self, seconds: float) -> None:
        """Let time pass, acting on every timer at its moment."""
        until = self.now + seconds
        while (deadline := self.group.next_deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.run(self.group.expire)
        self.now = until

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: Sequence[tuple[str, bytes]] = (("range", b"meta"),),
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        needs_known_member_id: bool = False,
        can_skip_assignment: bool = True,
    ) -> int:
        """Send a JoinGroup request, and return the key of its answer in `joins`."""
        ticket = next(self._tickets)
        call = Join(
            protocol_type=protocol_type,
            protocols=tuple(protocols),
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            instance_id=instance_id,
            client_id="c",
            client_host="/127.0.0.1",
            needs_known_member_id=needs_known_member_id,
            can_skip_assignment=can_skip_assignment,
        )
        self.run(lambda: self.group.join(call, partial(self._answer, ticket)))
        return ticket

    def new_id(self) -> str:
        """Ask for an id, as a client of JoinGroup v4 and later does."""
        answer = self.joins[self.join(needs_known_member_id=True)]
        assert answer.error_code == MemberIdRequired.errno
        return answer.member_id

    def sync(
        self,
        member_id: str,
        *,
        generation: int | None = None,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
        assignments: dict[str, bytes] | None = None,
    ) -> int:
        """Send a SyncGroup request, and return the key of its answer in `syncs`."""
        ticket = next(self._tickets)
        call = sync_call(
            member_id,
            self.group.generation if generation is None else generation,
            instance_id,
            protocol_type,
            protocol,
            assignments or {},
        )
        self.run(lambda: self.group.sync(call, partial(self._answer, ticket)))
        return ticket

    def heartbeat(self, member_id: str, generation: int | None = None) -> ErrorType:
        if generation is None:
            generation = self.group.generation
        return self.group.heartbeat(member_id, None, generation)

    def leave(self, *leavers: MemberIdentity) -> list[ErrorType]:
        return self.run(lambda: self.group.leave(leavers))

    def stable(self, count: int = 1, *, instances: Sequence[str | None] = ()) -> list[str]:
        """Bring so many members to Stable and return their ids, the leader first."""
        names: Sequence[str | None] = instances or [None] * count
        tickets = [self.join(instance_id=name) for name in names]
        self.advance(0)
        joined = [self.joins[ticket] for ticket in tickets]
        ids = [answer.member_id for answer in joined]
        leader = joined[0].leader
        for member_id in ids:
            if member_id != leader:
                self.sync(member_id)
        self.sync(leader, assignments={member_id: b"to " + member_id.encode() for member_id in ids})
        assert self.state is GroupState.STABLE
        return ids
