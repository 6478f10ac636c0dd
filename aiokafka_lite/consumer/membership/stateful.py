"""The base class of a group member: its identity and state, their loss, and waits for changes."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, Generic, TypeVar

from aiokafka_lite._tasks import Event
from aiokafka_lite.consumer.membership.protocol import NO_GENERATION, Identity
from aiokafka_lite.consumer.membership.recovery import Interruption, taken_over
from aiokafka_lite.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    IllegalStateError,
    MaxPollIntervalError,
)

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
        # See GroupMember.
        self.assigned_as: Identity | None = None
        self.is_fenced = self.is_rebalancing = False
        # Why its generation or epoch is over; None while there is one.
        self.lost_by: Interruption | None = None
        self.lost_because = ""
        self.state = state
        self._legal = legal
        changed = Event()
        self.notify: Final = changed.pulse
        self.wait_for_change: Final = changed.wait

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

    # --- Losses ---------------------------------------------------------------------------
    def lose(self, left: Identity, lost_by: Interruption | None, because: str) -> None:
        self.identity, self.assigned_as = left, None
        self.note_loss(lost_by, because)
        self.notify()

    def note_loss(self, lost_by: Interruption | None, because: str = "") -> None:
        self.lost_by, self.lost_because = lost_by, because
        self.is_fenced = self.is_fenced or lost_by is Interruption.FENCED

    def why_lost(self) -> CommitFailedError | FencedInstanceIdError:
        because = self.lost_because
        if self.is_fenced:
            return taken_over(self.group_id, self.group_instance_id)
        if self.lost_by is Interruption.POLL_INTERVAL_EXCEEDED:
            return MaxPollIntervalError(
                f"{because}, so the partitions were revoked. To avoid this, "
                f"{MaxPollIntervalError.remedy}"
            )
        return CommitFailedError(because) if because else CommitFailedError()
