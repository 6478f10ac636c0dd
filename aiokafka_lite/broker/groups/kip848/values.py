"""Input and output of the state machine of KIP-848's groups: plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aiokafka_lite.broker.groups.coordinator_log import CoordinatorRecord
from aiokafka_lite.broker.groups.kip848.group import Deadline, MemberTimer
from aiokafka_lite.broker.groups.kip848.member import Owned


@dataclass(frozen=True)
class ConsumerGroupSettings:
    """The broker's settings for groups of KIP-848, without Kafka's prefix ``group.consumer``.

    Attributes:
        session_timeout_ms: A member that is silent for so long is removed.
        heartbeat_interval_ms: What members are told.
        max_size: Members of one group.
        assignment_interval_ms: Least time between two target assignments of one group.
        regex_refresh_interval_ms: How old the topics of a regular expression may get.
        can_upgrade: Classic groups may become groups of KIP-848 while they have members.
        can_downgrade: The same, back.
        classic_max_size: group.max.size, for groups that change back.
    """

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 2**31 - 1
    assignment_interval_ms: int = 0
    regex_refresh_interval_ms: int = 600_000
    can_upgrade: bool = True
    can_downgrade: bool = True
    classic_max_size: int = 2**31 - 1


@dataclass(frozen=True)
class Beat:
    """A ConsumerGroupHeartbeat request; None and -1 stand for "as before"."""

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: Sequence[str] | None = None
    topic_regex: str | None = None
    server_assignor: str | None = None
    owned: Owned = None
    client_id: str = ""
    client_host: str = ""

    @property
    def says_all(self) -> bool:
        """Whether the member wants to be told all, too."""
        return (
            self.rebalance_timeout_ms != -1
            and not (self.topic_names is None and self.topic_regex is None)
            and self.owned is not None
        )


@dataclass(frozen=True)
class BeatReply:
    """The answer to a Beat.

    Attributes:
        assigned: What the member may consume, None when that is what it was.
    """

    member_id: str
    epoch: int
    heartbeat_interval_ms: int = 0
    assigned: Mapping[bytes, Sequence[int]] | None = None


@dataclass
class CoordinatorResult:
    """The outcome of a request. Nothing of it counts before the records are stored.

    Attributes:
        records: To be stored, then replayed.
        deadlines: Timers to start, or to stop (None), by timer and member id.
        metadata_version: The version of the topics that the group's stored hash is of, if known.
        must_resolve: The group's regular expressions are to be resolved next.
        must_rebalance: The records make the group a classic one, which has to rebalance.
    """

    records: list[CoordinatorRecord] = field(default_factory=list)
    deadlines: dict[tuple[MemberTimer, str], Deadline | None] = field(default_factory=dict)
    metadata_version: int | None = None
    must_resolve: bool = False
    must_rebalance: bool = False

    def stop_timers(self, member_id: str) -> None:
        for timer in MemberTimer:
            self.deadlines[timer, member_id] = None
