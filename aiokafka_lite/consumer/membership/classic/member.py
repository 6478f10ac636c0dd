"""The member's side of the classic group protocol, without I/O.

Theory. A group's coordinator (a broker) shares the partitions out anew whenever its members, or
what they want, change. A rebalance takes two requests, at which all members meet: JoinGroup
tells who is there and names a leader, SyncGroup carries what the leader gave to each. Each
rebalance makes a new generation; what a member of an older generation asks is refused. That is
how two members never commit for one partition.

==========  ============================================  ==========================
state       meaning                                       leaves when
==========  ============================================  ==========================
UNJOINED    holds nothing, asks for nothing               topics are subscribed
PREPARING   gives its partitions back: commits, tells     that is done
            the listener; the old generation still
            counts, unless it was lost
JOINING     JoinGroup is on its way                       the answer names a
                                                          generation
SYNCING     of the new generation, SyncGroup is on its    the answer brings an
            way; the coordinator takes no commits         assignment
STABLE      holds its assignment, heartbeats              something interrupts it
FENCED      another process uses its instance id: final   the consumer stops
LEAVING     last commit, LeaveGroup                       both are done or too late
LEFT        no more a member: final
==========  ============================================  ==========================

What it holds it holds as `assigned_as`, from one STABLE to the next: in SYNCING the member is of a
new generation already, and its partitions are those of the one before. What is committed of them is
committed as `assigned_as`, never as a member of a generation whose assignment is not known yet.

Which answer means what is data as well: RECOVERIES. A membership can be lost in two ways: the
generation is over (the member id stays good), or the coordinator forgot the member (it needs a
new id). In both the partitions belong to others already, and nothing may be committed.

One writer: the group task calls everything here that changes something, but `interrupt`, by
which heartbeats and commits post what they were told about a generation; what concerns an older
generation than the present one is dropped there.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from aiokafka_lite import errors
from aiokafka_lite._compat import StrEnum
from aiokafka_lite._event import Event
from aiokafka_lite.errors import IllegalStateError, KafkaError

NO_GENERATION: Final = -1
NO_MEMBER_ID: Final = ""


class MemberState(enum.Enum):
    """Where a member stands; the table is in the module's docstring."""

    UNJOINED = enum.auto()
    PREPARING = enum.auto()
    JOINING = enum.auto()
    SYNCING = enum.auto()
    STABLE = enum.auto()
    FENCED = enum.auto()
    LEAVING = enum.auto()
    LEFT = enum.auto()


LEGAL_TRANSITIONS: Final[Mapping[MemberState, frozenset[MemberState]]] = MappingProxyType(
    {
        MemberState.UNJOINED: frozenset({MemberState.PREPARING, MemberState.LEAVING}),
        MemberState.PREPARING: frozenset(
            {MemberState.JOINING, MemberState.UNJOINED, MemberState.FENCED, MemberState.LEAVING}
        ),
        MemberState.JOINING: frozenset(
            {
                MemberState.JOINING,
                MemberState.SYNCING,
                MemberState.UNJOINED,
                MemberState.FENCED,
                MemberState.LEAVING,
            }
        ),
        MemberState.SYNCING: frozenset(
            {
                MemberState.STABLE,
                MemberState.JOINING,
                MemberState.UNJOINED,
                MemberState.FENCED,
                MemberState.LEAVING,
            }
        ),
        MemberState.STABLE: frozenset(
            {MemberState.PREPARING, MemberState.FENCED, MemberState.LEAVING}
        ),
        MemberState.FENCED: frozenset({MemberState.LEAVING}),
        MemberState.LEAVING: frozenset({MemberState.LEFT}),
        MemberState.LEFT: frozenset(),
    }
)

# Between two assignments.
REBALANCING: Final = frozenset({MemberState.JOINING, MemberState.SYNCING})


class Recovery(enum.Enum):
    """What to do about a failed request to the coordinator."""

    RETRY = enum.auto()  # the same again after a pause
    REDISCOVER = enum.auto()  # the same again, to whoever is the coordinator now
    REJOIN = enum.auto()  # the group rebalances: take part
    LOST_GENERATION = enum.auto()  # rejoin under the same member id
    LOST_MEMBERSHIP = enum.auto()  # rejoin under a new member id
    FENCED = enum.auto()  # give up: somebody else is this member
    SURFACE = enum.auto()  # the application has to know, or to act


RECOVERIES: Final[Mapping[type[KafkaError], Recovery]] = MappingProxyType(
    {
        errors.CoordinatorLoadInProgressError: Recovery.RETRY,
        errors.NotCoordinatorError: Recovery.REDISCOVER,
        errors.CoordinatorNotAvailableError: Recovery.REDISCOVER,
        errors.RequestTimedOutError: Recovery.REDISCOVER,
        errors.RebalanceInProgressError: Recovery.REJOIN,
        errors.IllegalGenerationError: Recovery.LOST_GENERATION,
        errors.UnknownMemberIdError: Recovery.LOST_MEMBERSHIP,
        errors.GroupIdNotFound: Recovery.LOST_MEMBERSHIP,
        errors.FencedInstanceIdError: Recovery.FENCED,
    }
)


def recovery_for(error: KafkaError) -> Recovery:
    """Return what to do about an error; what is not in the table goes by its kind."""
    for kind in type(error).__mro__:
        if (recovery := RECOVERIES.get(kind)) is not None:
            return recovery
    if isinstance(error, errors.BrokerResponseError):
        return Recovery.RETRY if error.retriable else Recovery.SURFACE
    # A connection that broke or a request without an answer: the node may be gone for good.
    return Recovery.REDISCOVER if error.retriable else Recovery.SURFACE


class Interruption(StrEnum):
    """Why a stable membership ends; the text is sent as the reason of JoinGroup (KIP-800).

    From the least to the gravest. When several things interrupt at once, the gravest decides what
    is left of the membership.
    """

    SUBSCRIPTION_CHANGED = "the subscription has changed"
    PARTITIONS_CHANGED = "partitions of the group's topics have come or gone"
    GROUP_REBALANCES = "the group rebalances"
    POLL_INTERVAL_EXCEEDED = "no record was asked for within max_poll_interval_ms"
    LOST_GENERATION = "the generation is over"
    LOST_MEMBERSHIP = "the coordinator no longer knows the member"
    FENCED = "another member uses the same group_instance_id"

    def is_graver_than(self, other: Interruption) -> bool:
        """Whether this leaves less of the membership, or ends it more surely."""
        gravities = list(type(self))
        return gravities.index(self) > gravities.index(other)


INTERRUPTION_BY_RECOVERY: Final[Mapping[Recovery, Interruption]] = MappingProxyType(
    {
        Recovery.REJOIN: Interruption.GROUP_REBALANCES,
        Recovery.LOST_GENERATION: Interruption.LOST_GENERATION,
        Recovery.LOST_MEMBERSHIP: Interruption.LOST_MEMBERSHIP,
        Recovery.FENCED: Interruption.FENCED,
    }
)

# What leaves the partitions to others at once.
LOSSES: Final = frozenset(
    {Interruption.LOST_GENERATION, Interruption.LOST_MEMBERSHIP, Interruption.FENCED}
)


class Identity(NamedTuple):
    """Who asks: what every request of a member carries besides the group."""

    member_id: str = NO_MEMBER_ID
    generation: int = NO_GENERATION


class Member:
    """One member of one group; see the module's docstring for the states and who writes."""

    def __init__(self, group_id: str, group_instance_id: str | None = None) -> None:
        self.group_id: Final = group_id
        self.group_instance_id: Final = group_instance_id
        self.state = MemberState.UNJOINED
        self.identity = Identity()
        # As whom the partitions assigned were given; None while there are none, or they are lost.
        self.assigned_as: Identity | None = None
        self.protocol_name: str | None = None
        self.is_leader = False
        # Why there is no generation any more, and what is known about it; None while there is one.
        self.lost_by: Interruption | None = None
        self.lost_because = ""
        self._interruption: Interruption | None = None
        self._changed = Event()

    def __repr__(self) -> str:
        member_id, generation = self.identity
        return f"<{self.state.name} {member_id!r} in {self.group_id!r} generation {generation}>"

    @property
    def is_member(self) -> bool:
        """Whether a generation, as far as known, still counts this member in."""
        return self.identity.generation != NO_GENERATION

    @property
    def is_of_the_next_generation(self) -> bool:
        """Whether nobody else had what it had before and has again: no generation was between."""
        before, identity = self.assigned_as, self.identity
        return (
            before is not None
            and before.member_id == identity.member_id
            and identity.generation <= before.generation + 1
        )

    @property
    def is_static(self) -> bool:
        """Whether the coordinator keeps its place over a restart (KIP-345)."""
        return self.group_instance_id is not None

    # --- Waiting for changes --------------------------------------------------------------
    def notify(self) -> None:
        """Wake everybody who waits for a change; each looks for himself what has changed."""
        self._changed.set()
        self._changed.clear()

    async def wait_for_change(self) -> None:
        """Wait for the next `notify`."""
        await self._changed.wait()

    # --- Steps of the group task ----------------------------------------------------------
    def enter(self, state: MemberState) -> None:
        """Change the state.

        Raises:
            IllegalStateError: The table of legal transitions has no such step.
        """
        if state not in LEGAL_TRANSITIONS[self.state]:
            raise IllegalStateError(
                f"a group member cannot go from {self.state.name} to {state.name}"
            )
        self.state = state
        self.notify()

    def take_member_id(self, member_id: str) -> None:
        """Keep the id that the coordinator wants to see in a second JoinGroup (KIP-394)."""
        self.identity = Identity(member_id)

    def take_generation(
        self, identity: Identity, *, protocol_name: str | None, leader_id: str
    ) -> None:
        """Become one of a new generation, as JoinGroup's answer says."""
        self.identity = identity
        self.protocol_name = protocol_name
        self.is_leader = identity.member_id == leader_id
        self.lost_by, self.lost_because = None, ""
        self._interruption = None
        self.enter(MemberState.SYNCING)

    def take_assignment(self) -> None:
        """Hold what the present generation's leader gave to this member."""
        self.assigned_as = self.identity
        self.enter(MemberState.STABLE)

    def lose_generation(self, lost_by: Interruption | None = None, because: str = "") -> None:
        """Be of no generation any more; the member id stays good."""
        self.identity = Identity(self.identity.member_id)
        self.assigned_as = None
        self.is_leader = False
        self.lost_by, self.lost_because = lost_by, because
        self.notify()

    def lose_membership(self, lost_by: Interruption | None = None, because: str = "") -> None:
        """Be nobody: the next JoinGroup asks for a new member id."""
        self.identity = Identity()
        self.assigned_as = None
        self.is_leader = False
        self.lost_by, self.lost_because = lost_by, because
        self.notify()

    # --- Interruptions --------------------------------------------------------------------
    @property
    def interruption(self) -> Interruption | None:
        """What was posted about the present generation."""
        return self._interruption

    def interrupt(self, identity: Identity, interruption: Interruption) -> None:
        """Post what an answer said about `identity`; ignored when that is not the present one.

        Answers may arrive after a newer generation has formed, and say nothing about it.
        """
        if identity != self.identity or not self.is_member:
            return
        if self._interruption is None or interruption.is_graver_than(self._interruption):
            self._interruption = interruption
        self.notify()

    def settle_interruption(self) -> None:
        """Draw the consequence of what was posted for id and generation, and forget it."""
        if self._interruption is Interruption.LOST_GENERATION:
            self.lose_generation(self._interruption)
        elif self._interruption in (Interruption.LOST_MEMBERSHIP, Interruption.FENCED):
            self.lose_membership(self._interruption)
        self._interruption = None
