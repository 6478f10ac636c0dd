"""Defines what others may know of a group membership, whichever protocol the group speaks.

Three interfaces, each for those who need it:

    Membership      for the consumer's parts and for monitoring: start, wait, leave, status
    GroupMember     for commits: in whose name they are made, and whether they are taken now
    LastCommits     for memberships: what they ask of commits before partitions go

Nobody else knows a membership in another way. Implementations: `none.py` for a consumer without a
group, `classic/` for the classic protocol, `kip848/` for the consumer protocol. `choice.py` chooses
between the latter two.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple, Protocol

from aiokafka_lite.consumer.assignment.cursor import Range
from aiokafka_lite.errors import CommitFailedError, FencedInstanceIdError, KafkaError
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

NO_GENERATION: Final = -1
NO_MEMBER_ID: Final = ""

Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class Identity(NamedTuple):
    """Says who asks: every request of a member carries it besides the group."""

    member_id: str = NO_MEMBER_ID
    # Of the group in the classic protocol; the member's epoch in KIP-848's.
    generation: int = NO_GENERATION


# Who only keeps offsets in a group, and is no member of it.
NOBODY: Final = Identity()


class AwaitedWork(NamedTuple):
    """What partitions that are to be given back wait for."""

    # Offsets that the application has not finished, as far as known.
    offsets: Mapping[TopicPartition, Range]
    # Loop time at which they go all the same.
    until: float


class GroupStatus(NamedTuple):
    """Says where a member is with its group at one moment."""

    group_id: str
    # The name of the state of its membership.
    state: str
    # Loop time since when it waits to be let in; None: it does not.
    joining_since: float | None
    # It has left, because the application asked for no records for too long.
    sits_out: bool
    # The assignment answers to the subscription, and the listener knows of it.
    is_settled: bool
    coordinator_id: int | None
    # Loop time of the coordinator's last sign of life.
    last_contact_at: float | None
    heartbeat_count: int
    heartbeat_failure_count: int
    # How many of the heartbeats a thread has sent, while the loop was blocked.
    stood_in_count: int = 0
    # Of the group: "classic", or "consumer" (KIP-848).
    protocol: str = "classic"
    # A rebalance stops all partitions, not only those that move.
    is_eager: bool = True
    # How long the coordinator waits for a heartbeat; None: as the settings say.
    session_s: float | None = None
    # What keeps it from joining or from taking its partitions, in a sentence; "": nothing.
    trouble: str = ""
    # What the broker said to a member that wanted the consumer protocol, where the group has to
    # stay a classic one; "": it said no such thing.
    kept_classic_by: str = ""
    # Assigned, and not handed out before the listener has returned.
    withheld: frozenset[TopicPartition] = frozenset()
    # What partitions that are given back wait for; None: none waits.
    awaited_work: AwaitedWork | None = None


class Membership(Protocol):
    """One consumer's place in its group, or what stands in for it where there is no group.

    It decides what is assigned, and nobody else does so while topics are subscribed.
    """

    @property
    def member_id(self) -> str:
        """The id in the group; empty while there is none."""

    @property
    def generation(self) -> int:
        """The generation, or member epoch, that the assignment is of; -1 while there is none."""

    @property
    def coordinator_id(self) -> int | None:
        """The node that coordinates the group; None while it is not known."""

    @property
    def status(self) -> GroupStatus | None:
        """Where the member is with its group; None without a group."""

    @property
    def is_settled(self) -> bool:
        """Whether the assignment answers to the present subscription, and the listener knows.

        Nothing is being revoked then: a cursor that is marked so all the same was forgotten.
        """

    def is_called_by_listener(self) -> bool:
        """Whether it is a rebalance listener's callback that asks."""

    def wake_waiters(self) -> None:
        """Wake those who wait for a change: there may be nothing to wait for any more."""

    async def start(self) -> None:
        """Start taking part; awaits nothing of the network."""

    async def wait_assigned(self) -> None:
        """Wait until the present subscription has got an assignment, which may be empty.

        Raises:
            KafkaError: What keeps it from that and will not pass by itself.
        """

    def halt(self) -> None:
        """Leave the assignment as it is from here on; idempotent."""

    async def leave(
        self, *, deadline: float, offsets: Offsets, leaves: bool | None = None
    ) -> Offsets:
        """Stop taking part: commit `offsets`, and tell the group.

        Args:
            deadline: Loop time by which to be done.
            offsets: What to commit last; empty for nothing.
            leaves: Whether the member gives its place in the group up at once; None: a dynamic one
                does, a static one keeps it for a session (KIP-1092).

        Returns:
            What could not be committed.
        """

    def leave_nowait(self, reason: str) -> None:
        """Tell the group that the member goes, if that costs no waiting; commit nothing."""


class GroupMember(Protocol):
    """Says in whose name offsets are committed and read, and hears what the group says to that.

    Partitions are held as `assigned_as`, which is who the member was when they were assigned. The
    group may know it as somebody newer already (`identity`), of whose assignment nothing is known.
    """

    @property
    def group_id(self) -> str:
        """The group."""

    @property
    def group_instance_id(self) -> str | None:
        """The name of a static member (KIP-345)."""

    @property
    def is_fenced(self) -> bool:
        """Whether another consumer has taken its place under the same instance id: final."""

    @property
    def identity(self) -> Identity:
        """As whom the group knows this member now."""

    @property
    def assigned_as(self) -> Identity | None:
        """As whom the assigned partitions are held; None: there are none, or they are lost."""

    @property
    def reads_as(self) -> Identity | None:
        """As whom committed offsets are read; None: the group does not want to know."""

    def takes_commits(self, *, was_put_off: bool = False, is_departed: bool = False) -> bool:
        """Whether the coordinator takes commits now, as far as known.

        Args:
            was_put_off: It has refused one because of a rebalance, of which this member may not
                know yet.
            is_departed: The application has given the partitions up since: there is no other
                commit of them, so rather refused than late.
        """

    def commits_as(
        self, made_as: Identity, *, has_waited: bool, is_departed: bool
    ) -> Identity | None:
        """Return as whom to send a commit now; None: the partitions may be another member's.

        Args:
            made_as: As whom the partitions were held when the commit was made.
            has_waited: It waited for a rebalance, and reads of committed offsets wait for it.
            is_departed: The application has given the partitions up since.
        """

    def has_kept(self, tp: TopicPartition, made_as: Identity) -> bool:
        """Whether nobody else can have had a partition between `made_as` and now.

        Of a partition that was given up, and for an identity that `commits_as` has replaced.
        """

    def note_refusal(self, sent_as: Identity, error: KafkaError) -> bool:
        """Note what the refusal of a commit says about the membership.

        Returns:
            Whether the partitions are lost: nothing of them must be handed out any more.
        """

    def why_lost(self) -> CommitFailedError | FencedInstanceIdError:
        """Return the error for commits that come too late, with what is known of the reason."""

    def notify(self) -> None:
        """Wake everybody who waits for a change."""

    async def wait_for_change(self) -> None:
        """Wait for the next `notify`, or change of the membership."""


class LastCommits(Protocol):
    """What a membership asks of commits before partitions go."""

    @property
    def has_departed(self) -> bool:
        """Whether something that the application gave up is still to be committed."""

    def is_committing(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether a commit of theirs, by the application, is on its way: not one put off."""

    async def settle_departed(self, deadline: float) -> None:
        """Wait until that is committed, or cannot be; after the deadline it cannot."""

    async def commit_last(self, offsets: Offsets, *, deadline: float) -> Offsets:
        """Commit as far as that can be done, and return what could not be; raises nothing."""

    async def stop_auto_commit(self) -> None:
        """Stop commits by the clock, so that what is committed last stays; idempotent."""

    async def commit_at_the_end(self, offsets: Offsets, *, deadline: float) -> Offsets:
        """Commit last of all, also what was given up before; return what could not be."""
