"""The base class of a group member: its identity, its state, and waits for changes."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, Generic, TypeVar

from aiokafka_lite._tasks import Event
from aiokafka_lite.consumer.membership.protocol import NO_GENERATION, Identity
from aiokafka_lite.errors import IllegalStateError

StateT = TypeVar("StateT", bound=enum.Enum)


class StatefulMember(Generic[StateT]):
    """One member of one group. A subclass defines the states and their legal transitions."""

    def __init__(
        self,
        group_id: str,
        group_instance_id: str | None,
        identity: Identity,
        state: StateT,
        legal: Mapping[StateT, frozenset[StateT]],
    ) -> None:
        self.group_id: Final = group_id
        self.group_instance_id: Final = group_instance_id
        self.identity = identity
        self.state = state
        self._legal = legal
        self._changed = Event()

    def __repr__(self) -> str:
        member_id, generation = self.identity
        return f"<{self.state.name} {member_id!r} in {self.group_id!r} generation {generation}>"

    @property
    def is_member(self) -> bool:
        """Whether the group has this member, as far as known."""
        return self.identity.generation != NO_GENERATION

    @property
    def is_static(self) -> bool:
        """Whether the coordinator keeps its place over a restart (KIP-345)."""
        return self.group_instance_id is not None

    def enter(self, state: StateT) -> None:
        if state not in self._legal[self.state]:
            raise IllegalStateError(
                f"a group member cannot change its state from {self.state.name} to {state.name}"
            )
        self.state = state
        self.notify()

    # --- Waiting for changes --------------------------------------------------------------
    def notify(self) -> None:
        self._changed.set()
        self._changed.clear()

    async def wait_for_change(self) -> None:
        await self._changed.wait()
