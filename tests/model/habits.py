"""The settings and the ways of one member, drawn at random."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aiokafka_lite.consumer.assignors import (
    AbstractPartitionAssignor,
    RangePartitionAssignor,
    RebalanceProtocol,
    RoundRobinPartitionAssignor,
)
from aiokafka_lite.consumer.assignors.cooperative_sticky import CooperativeStickyPartitionAssignor
from aiokafka_lite.consumer.assignors.sticky import StickyPartitionAssignor

ASSIGNORS: Final[tuple[type[AbstractPartitionAssignor], ...]] = (
    RangePartitionAssignor,
    RoundRobinPartitionAssignor,
    StickyPartitionAssignor,
)
PROTOCOLS: Final = ("classic", "cooperative", "consumer", "auto")
"""How groups are joined; "classic" is eager, "cooperative" the classic protocol by KIP-429."""

WAYS: Final = ("getmany", "poll", "getone", "async for")
LISTENERS: Final = ("none", "none", "plain", "async", "slow", "raising", "acting", "acting")

# What an application does next, and how often: first while all kinds of things happen ...
WILD: Final[Mapping[str, float]] = {
    "get": 60,
    "get of some": 3,
    "cancelled get": 6,
    "commit": 4,
    "commit of some": 3,
    "stale commit": 3,
    "cancelled commit": 2,
    "seek back": 1,
    "seek forward": 1,
    "seek to beginning": 0.3,
    "seek to end": 0.4,
    "seek to committed": 0.7,
    "pause": 2,
    "resume": 4,
    "unsubscribe": 0.4,
    "subscribe to others": 0.5,
    "block": 1.5,
    "block for long": 0.3,
    "work and commit": 0.5,
    "stay away": 0.2,
    "work for long": 1,
    "ask for offsets": 1.5,
    "ask for position": 2,
    "ask for committed": 1,
    "look at health": 1,
}
# ... then, when everything is to come to rest.
CALM: Final[Mapping[str, float]] = {
    "get": 80,
    "commit": 2,
    "commit of some": 1,
    "ask for offsets": 0.5,
    "ask for position": 1,
    "look at health": 0.5,
}


@dataclass(frozen=True)
class Habits:
    """One member's settings, and what its application is like. Seconds."""

    topics: tuple[str, ...]
    auto_commit: bool
    session_s: float
    heartbeat_s: float
    rebalance_s: float
    max_poll_s: float
    auto_commit_s: float
    request_s: float
    metadata_s: float
    assignors: tuple[type[AbstractPartitionAssignor], ...]
    protocol: str
    instance_id: str | None
    listener: str
    way: str
    most_records: int | None
    buffered_bytes: int
    work_s: float
    life_s: float
    ending: str
    works_last: bool

    @property
    def is_eager(self) -> bool:
        """Whether each rebalance takes all partitions away and gives them anew."""
        return self.protocol == "classic" and any(
            RebalanceProtocol.COOPERATIVE not in each.rebalance_protocols for each in self.assignors
        )

    @property
    def hears_within_s(self) -> float:
        """How long a group with members of both protocols may keep things from this one.

        When the last member of KIP-848 leaves, the coordinator writes down the target as what
        classic members have, and when the next one comes it believes that: so it gives a partition
        away that a classic member still has, until that one's next heartbeat.
        """
        return self.heartbeat_s + ANSWERED_S if self.protocol == "classic" else 0.0

    def settings(self) -> dict[str, object]:
        """Return the consumer's arguments."""
        return {
            "enable_auto_commit": self.auto_commit,
            "auto_commit_interval_ms": int(self.auto_commit_s * 1000),
            "session_timeout_ms": int(self.session_s * 1000),
            "heartbeat_interval_ms": int(self.heartbeat_s * 1000),
            "rebalance_timeout_ms": int(self.rebalance_s * 1000),
            "max_poll_interval_ms": int(self.max_poll_s * 1000),
            "request_timeout_ms": int(self.request_s * 1000),
            "metadata_max_age_ms": int(self.metadata_s * 1000),
            "group_protocol": self.protocol,
            **(
                {"partition_assignment_strategy": self.assignors}
                if self.protocol == "classic"
                else {}
            ),
            "group_instance_id": self.instance_id,
            "max_buffered_bytes": self.buffered_bytes,
            "fetch_max_wait_ms": 100,
            "retry_backoff_ms": 20,
            "auto_offset_reset": "earliest",
        }

    def text(self) -> str:
        parts = [f"{name}={value}" for name, value in vars(self).items() if name != "assignors"]
        return " ".join([*parts, *(assignor.__name__ for assignor in self.assignors)])


def draw_assignors(
    rng: random.Random, protocols: Collection[str]
) -> tuple[type[AbstractPartitionAssignor], ...]:
    """Draw what members of a group know, if they join by the classic protocol.

    Each knows all of it or only the first. So in a group that goes over from eager to cooperative
    the first rolling restart is under way where the cooperative one comes second, and the second
    where it comes first.
    """
    known = tuple(rng.sample(ASSIGNORS, rng.randint(1, len(ASSIGNORS))))
    if "cooperative" not in protocols:
        return known
    cooperative = (CooperativeStickyPartitionAssignor,)
    if "classic" not in protocols:
        return cooperative
    return rng.choice((known, cooperative, cooperative + known, known[:1] + cooperative))


# How long a heartbeat and its answer take.
ANSWERED_S: Final = 0.1
SMALL_MEMORY: Final = "small memory"
"""What can be left out besides the actions."""


def draw(
    rng: random.Random,
    topics: Sequence[str],
    *,
    without: Collection[str],
    least_session_s: float,
    most_session_s: float,
    assignors: tuple[type[AbstractPartitionAssignor], ...],
    protocol: str,
    instance_id: str | None,
) -> Habits:
    """Draw one member's habits."""
    session_s = min(most_session_s, least_session_s * rng.choice((1, 1, 1.5, 3)))
    chosen = tuple(rng.sample(list(topics), rng.choice((1, len(topics), len(topics)))))
    if instance_id is not None:
        # A static member that comes back within its session is given the partitions of before,
        # whatever it subscribes to: another subscription would leave topics without an owner.
        chosen = tuple(topics)
    return Habits(
        topics=tuple(sorted(chosen)),
        auto_commit=rng.random() < 0.65,
        session_s=session_s,
        heartbeat_s=session_s * rng.choice((0.1, 0.2, 0.33)),
        rebalance_s=max(3.0, session_s),
        max_poll_s=rng.choice((3.0, 8.0, 60.0, 60.0)),
        auto_commit_s=rng.choice((0.05, 0.2, 1.0, 5.0)),
        request_s=rng.choice((2.0, 4.0)),
        metadata_s=rng.choice((1.0, 3.0)),
        assignors=assignors,
        protocol=protocol,
        instance_id=instance_id,
        listener=rng.choice(LISTENERS),
        way=rng.choice(WAYS),
        most_records=rng.choice((None, 1, 5, 20)),
        buffered_bytes=64 << (20 if rng.random() < 0.7 or SMALL_MEMORY in without else 10),
        work_s=rng.choice((0.0, 0.0, 0.01, 0.05)),
        life_s=rng.choice((3.0, 10.0, 60.0, 60.0)) * rng.uniform(0.5, 1.0),
        ending=rng.choice(("stop", "stop", "stop", "by an error", "cancelled stop", "short stop")),
        works_last=rng.random() < 0.4,
    )
