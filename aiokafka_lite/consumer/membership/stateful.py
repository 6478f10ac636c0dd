"""The base class of a group member: its identity and state, their loss, and waits for changes.

Commits and reads of committed offsets ask it for the identity that they carry.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, Generic, TypeAlias, TypeVar

from aiokafka_lite._tasks import Event
from aiokafka_lite.consumer.membership.protocol import NO_GENERATION, Identity
from aiokafka_lite.consumer.membership.recovery import Interruption, taken_over
from aiokafka_lite.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    IllegalStateError,
    KafkaError,
    MaxPollIntervalError,
)
from aiokafka_lite.structs import TopicPartition

StateT = TypeVar("StateT", bound=enum.Enum)


class StatefulMember(ABC, Generic[StateT]):
    """One member of one group. A subclass defines the states and their legal transitions.

    Partitions are held as `assigned_as`, the identity at their assignment. `identity` may be newer:
    its assignment is then unknown.

    Attributes:
        assigned_as: None: no partitions are held.
        is_fenced: Another consumer has taken its group_instance_id, permanently.
        is_rebalancing: Members join, so that the coordinator refuses commits, or soon will.
        lost_by: The reason for the end of its generation or epoch; None while there is one.
    """

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
        self.assigned_as: Identity | None = None
        self.is_fenced = self.is_rebalancing = False
        self.lost_by: Interruption | None = None
        self.lost_because = ""
        self.state = state
        self._legal = legal
        changed = Event()
        self.notify: Final = changed.pulse
        # Waits for the next `notify`, which every change of the member calls.
        self.wait_for_change: Final = changed.wait

    def __repr__(self) -> str:
        member_id, generation = self.identity.member_id, self.identity.generation
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

    @property
    @abstractmethod
    def delivers(self) -> bool:
        """Whether its partitions can be read."""

    # --- For commits ----------------------------------------------------------------------
    @property
    @abstractmethod
    def reads_as(self) -> Identity | None:
        """The identity for reads of committed offsets, if they need one."""

    @abstractmethod
    def takes_commits(self, *, was_put_off: bool = False, is_departed: bool = False) -> bool:
        """Whether the coordinator accepts commits now, as far as known.

        Only two kinds of commits depend on more than `is_rebalancing`: those that the coordinator
        may have refused because of a rebalance (`was_put_off`), and those of partitions that the
        application has given up (`is_departed`), for which this is the last chance.
        """

    @abstractmethod
    def commits_as(
        self, made_as: Identity, *, has_waited: bool, is_departed: bool
    ) -> Identity | None:
        """Return the identity for a commit that was made as `made_as`.

        `has_waited` means for a rebalance: reads of committed offsets wait for such a commit. None:
        another member may own the partitions.
        """

    @abstractmethod
    def has_kept(self, tp: TopicPartition, made_as: Identity) -> bool:
        """Whether no other member can have owned a partition since `made_as`.

        For a partition that was given up, and an identity that `commits_as` has replaced.
        """

    @abstractmethod
    def note_refusal(self, sent_as: Identity, error: KafkaError) -> bool:
        """Note the effect of a refused commit. Return whether the partitions are lost."""

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


GroupMember: TypeAlias = StatefulMember[Any]
