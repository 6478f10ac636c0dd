"""The interfaces of a group membership, the same for both group protocols.

Implementations: `none.py` without a group, `classic/` and `kip848/`. `choice.py` chooses between
the last two. Commits ask the `GroupMember` (stateful.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from aiokafka_lite.consumer.assignment.cursor import Range
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite._tasks import TaskScope
    from aiokafka_lite.client.cluster import Cluster
    from aiokafka_lite.consumer.commits.commits import Commits
    from aiokafka_lite.consumer.core import Core
    from aiokafka_lite.consumer.membership.coordinator import Coordinator
    from aiokafka_lite.consumer.membership.heartbeat_thread import OpenCluster

NO_GENERATION: Final = -1
NO_MEMBER_ID: Final = ""

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class Identity(NamedTuple):
    member_id: str = NO_MEMBER_ID
    # The member's epoch in KIP-848.
    generation: int = NO_GENERATION
    # How often a KIP-848 member was dropped, because it may join again in the same epoch. Not sent.
    drop_count: int = 0


# Of a consumer that keeps offsets in a group and is no member of it.
NO_IDENTITY: Final = Identity()


class AwaitedWork(NamedTuple):
    # Unfinished offsets, as far as known.
    offsets: Mapping[TopicPartition, Range]
    # Loop time of the revocation, even if they are unfinished.
    until: float


class GroupStatus(NamedTuple):
    """A snapshot of a membership. Times are loop times."""

    group_id: str
    # The name of the protocol's MemberState.
    state: str
    # None: it is not joining.
    joining_since: float | None
    # It has left until the next read, because max_poll_interval_ms has passed.
    sits_out: bool
    # As Membership.is_settled.
    is_settled: bool
    coordinator_id: int | None
    last_contact_at: float | None
    heartbeat_count: int
    heartbeat_failure_count: int
    # Answered heartbeats of the heartbeat thread.
    stood_in_count: int = 0
    # "classic", or "consumer" (KIP-848).
    protocol: str = "classic"
    # A rebalance stops all partitions, not only those that move.
    is_eager: bool = True
    # The session timeout. None: the one in the settings.
    session_s: float | None = None
    # The sentence that explains why it cannot join or read its partitions; "" if it can.
    trouble: str = ""
    # The broker's error, if the group cannot be converted to KIP-848; "" otherwise.
    kept_classic_by: str = ""
    # Assigned partitions whose records wait until the listener has returned.
    withheld: frozenset[TopicPartition] = frozenset()
    # Of partitions that are being revoked.
    awaited_work: AwaitedWork | None = None


class Surroundings(NamedTuple):
    """The parts of a consumer that a membership is made of."""

    core: Core
    cluster: Cluster
    coordinator: Coordinator
    commits: Commits
    scope: TaskScope
    # Puts another membership in place of the first one, and starts it.
    replace: Callable[[Membership], None]
    open_cluster: OpenCluster | None = None


class Membership(Protocol):
    """One consumer's place in its group. The only writer of the assignment of subscribed topics."""

    @property
    def member_id(self) -> str: ...

    @property
    def generation(self) -> int:
        """The generation, or member epoch, of the assignment; -1 without one."""

    @property
    def status(self) -> GroupStatus | None: ...

    @property
    def is_settled(self) -> bool:
        """Whether the present subscription's assignment is complete, including its listener."""

    def is_called_by_listener(self) -> bool: ...

    def wake_waiters(self) -> None: ...

    async def start(self) -> None: ...

    async def wait_assigned(self) -> None:
        """Wait until the present subscription has an assignment, which may be empty.

        Raises:
            KafkaError: A permanent error keeps the member from joining.
        """

    def halt(self) -> None:
        """Stop changing the assignment. Idempotent."""

    async def leave(
        self, *, deadline: float, offsets: Offsets, leaves: bool | None = None
    ) -> Offsets:
        """Commit `offsets`, leave the group, and return the offsets that could not be committed.

        A static member keeps its place for one session timeout (KIP-1092), unless `leaves` is true.
        A dynamic one does so if `leaves` is false. Returns by the deadline. No listener is called,
        except for partitions that were unsubscribed just before.
        """

    def leave_nowait(self, reason: str) -> None:
        """Send a request to leave if a connection is idle, without commits."""
