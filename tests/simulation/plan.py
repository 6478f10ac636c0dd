"""What a seed decides before its run: the group, the producers, and the schedule of faults."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass, field
from typing import Final

from aiokafka_lite.simulation.schedule import RARE, WEIGHTS, Fault, Order, draw_faults
from tests.simulation.handling import Handling, draw_handling

PROTOCOLS: Final = ("range", "cooperative", "consumer")
# Ways of reading. The next read says that the records of the one before are processed;
READS: Final = ("async for", "getone", "getmany", "poll", "arrow")
# the end of a block says so, or records are acknowledged one by one;
ACKS: Final = ("acks", "acks in batch")
# `run` calls handlers, and some write the records that they cannot use;
LETTERS: Final = ("dead letters", "letters in transactions", "copy with letters")
# records are copied in transactions.
COPIES: Final = ("copy", "copy lists", "copy with letters", "copy batches")
_FIXED_RUNS: Final = (
    "run",
    "run by partition",
    "run lists",
    *LETTERS,
    "copy",
    "copy lists",
)
WAYS: Final = (*READS, "batch", *ACKS, *_FIXED_RUNS, "copy batches")
# Members of a share group instead, which is drawn only if it is asked for, too.
SHARING: Final = "sharing"
# `run` with the arguments and handlers that a seed decides. It is drawn only if it is asked for.
HANDLERS: Final = "handlers"
RUNS: Final = (*_FIXED_RUNS, HANDLERS)
# Several tasks may read in these ways.
BY_TASKS: Final = (*READS, "batch", *ACKS)
SEEKING: Final = READS
DELAYS_EACH: Final = 3
NODES: Final = (1, 2, 3)
# What members do besides reading, each with the ways of reading that can.
HABITS: Final = {
    "pauses": (*WAYS, HANDLERS),
    "asks": (*WAYS, HANDLERS),
    "commits": (*READS, *ACKS, *RUNS),
    "times out": (*WAYS, HANDLERS),
    "seeks": (*READS, "acks"),
    "names commits": (*READS, "run", "run by partition"),
    "subscribes again": READS,
    "subscribes to less": READS,
    "unsubscribes": READS,
    "stays away": READS,
}
# The habits of several tasks.
SHARED: Final = frozenset({"pauses", "asks", "times out"})
LISTENERS: Final = ("plain", "slow", "raises", "acts")
# How members get the records of a second topic.
SECONDS: Final = ("", "named", "pattern")
# Faults and how often they are drawn.
ALL_WEIGHTS: Final = {
    **WEIGHTS,
    "stale metadata": 2,
    "sessions evicted": 2,
    "member fenced": 2,
    "lost heartbeat": 2,
    "stop in an outage": 1,
    "throttled, reset": 1,
    "twin producer": 1,
    "twin member": 1,
    "unflushed": 1,
    "refilled": 1,
    "partitions added": 1,
    "compaction": 2,
    "recreated smaller": 1,
    "topic deleted": 2,
}
# Any of these may end a record that was acknowledged, or move positions.
ALL_RARE: Final = (
    *RARE,
    "unflushed",
    "refilled",
    "compaction",
    "recreated smaller",
    "topic deleted",
)
# Faults that members notice only as a delay.
HARMLESS: Final = frozenset(
    {
        "leader moves",
        "coordinator moves",
        "member joins",
        "member stops",
        "throttling",
        "pieces",
        "clock skew",
    }
)
# These change positions, or have records returned again.
REPEATING_HABITS: Final = frozenset({"seeks", "stays away"})
# These leave partitions without an owner for longer than a rebalance takes.
WAITING_HABITS: Final = frozenset(
    {"subscribes again", "subscribes to less", "unsubscribes", "stays away"}
)
# Members notice a rebalance soon if heartbeats are a second apart, and handlers are not slower.
PROMPT_HEARTBEAT_MS: Final = 1_000
PROMPT_HANDLING_S: Final = 0.01
# Handlers meet these more often: they end calls, or have other members handle records.
OF_MEMBERS: Final = ("member killed", "member stops", "member joins", "loop blocked")
MORE_OF_MEMBERS: Final = 5
# Faults of share groups, and how often they are drawn. Others rewrite logs, or are about members of
# other groups.
OF_SHARES: Final = {
    "share answers lost": 4,
    "share refusals": 4,
    **dict.fromkeys(("reset", "leader moves", "member killed", "member stops", "loop blocked"), 4),
    **dict.fromkeys(("crash", "power cut", "shutdown", "hang", "partition", "one-way cut"), 2),
    **dict.fromkeys(("half-close", "slow link", "pieces", "refusals", "coordinator moves"), 2),
    **dict.fromkeys(("throttling", "clock skew", "member joins", "session expires"), 2),
    **dict.fromkeys(("retention", "compaction", "partitions added", "stale metadata"), 1),
}
# The kinds of faults of a seed that has few kinds, so that the same ones meet.
FEW: Final = 4
# The share of seeds whose faults are all harmless, so that no record may be handled twice.
GENTLE_SHARE: Final = 0.1
# The kinds of rare faults of a seed that has any.
RARE_KINDS: Final = 2

WARM_UP_S: Final = 5.0
# Faults begin and end before this part of a run's time is over; then all must settle.
FAULTY_SHARE: Final = 0.65


@dataclass(frozen=True)
class Plan:
    """What a seed decides before its run begins."""

    seed: int
    order: Order
    protocol: str
    way: str
    members: int
    partitions: int
    length_s: float
    heartbeat_ms: int | None
    auto_commit_ms: int
    handling_s: float
    static: bool
    producers: tuple[str, ...]
    pause_s: float
    faults: tuple[Fault, ...] = field(default=())
    habit: str = ""
    second: str = ""
    metadata_ms: int = 5_000
    buffer_bytes: int | None = None
    has_reader: bool = False
    tasks: int = 1
    listener: str = "plain"
    has_racks: bool = False
    is_compacted: bool = False
    handling: Handling | None = None

    @property
    def copies(self) -> bool:
        """Whether records are copied in transactions."""
        return self.way in COPIES or (self.handling is not None and self.handling.copies)

    @property
    def has_request_log(self) -> bool:
        """Whether the rules about requests hold."""
        return self.seed % 4 == 0 or any(each.name == "throttled, reset" for each in self.faults)

    @property
    def has_delays(self) -> bool:
        """Whether records that fail wait in delay topics before they are dead letters."""
        if self.handling is not None:
            return self.handling.after > 0
        return self.way in LETTERS and self.second != "pattern" and self.seed % DELAYS_EACH == 1

    @property
    def calm_at_s(self) -> float:
        """When faults stop."""
        return self.length_s * FAULTY_SHARE

    @property
    def is_harmless(self) -> bool:
        """Whether members notice its faults only as a delay."""
        return all(fault.name in HARMLESS for fault in self.faults)

    @property
    def forbids_repeats(self) -> bool:
        """Whether no record may be handled twice. A copy is, if its transaction fails."""
        may_fail = (self.copies and self.faults) or self.listener == "raises"
        is_asked_for = self.habit in REPEATING_HABITS or self.listener == "acts"
        return self.is_harmless and not (may_fail or is_asked_for or self.way in ACKS)

    @property
    def forbids_waits(self) -> bool:
        """Whether a partition gets its next owner before a session could end."""
        return (
            self.heartbeat_ms == PROMPT_HEARTBEAT_MS
            and self.handling_s <= PROMPT_HANDLING_S
            and self.habit not in WAITING_HABITS
            and self.listener != "slow"
            and not self.static
        )

    @property
    def may_miss_partitions(self) -> bool:
        """Whether new partitions, or a new topic, may wait for a rebalance.

        A static leader that restarts cannot know which partitions were there before (KIP-814).
        """
        is_added = any(fault.name == "partitions added" for fault in self.faults)
        is_added = is_added or self.second == "pattern"  # the topic is created while members run
        return self.static and self.protocol == "range" and is_added

    def head(self) -> str:
        """Return one line about it."""
        return (
            f"seed {self.seed}: {self.members} members, {self.protocol}, {self.way}, "
            f"{self.partitions} partitions, {len(self.faults)} faults, callbacks {self.order.value}"
        )

    def text(self) -> str:
        words = [
            self.head(),
            f"producers: {', '.join(self.producers)}, one record each {self.pause_s} s; "
            f"heartbeat {self.heartbeat_ms} ms, auto-commit {self.auto_commit_ms} ms, "
            f"a record takes {self.handling_s} s{', static members' if self.static else ''}",
            f"habit: {self.habit or 'none'}, second topic: {self.second or 'none'}, metadata each "
            f"{self.metadata_ms} ms, buffer {self.buffer_bytes}"
            f"{', a reader that seeks' if self.has_reader else ''}",
            f"{self.tasks} reading tasks, listener {self.listener}"
            f"{', racks' if self.has_racks else ''}{', compacted' if self.is_compacted else ''}",
        ]
        words += [] if self.handling is None else [self.handling.text()]
        return "\n".join([*words, *(fault.text() for fault in self.faults)])

    def with_order(self, order: Order) -> Plan:
        return dataclasses.replace(self, order=order)

    def with_faults(self, faults: tuple[Fault, ...]) -> Plan:
        return dataclasses.replace(self, faults=faults)


def draw(seed: int, length_s: float = 60.0, way: str = "") -> Plan:
    """Return the plan of a seed. `way`: the one way of reading of all seeds."""
    rng = random.Random(f"{seed}:plan")
    drawn = rng.choices(WAYS, [2 if way in READS else 1 for way in WAYS])[0]
    way = way or drawn
    is_calm = rng.random() < 0.1
    count = 0 if is_calm else rng.randint(1, max(1, round(length_s / 6)))
    is_gentle = random.Random(f"{seed}:gentle").random() < GENTLE_SHARE
    may_lose = rng.random() < 0.25
    weights = _weights(rng, may_lose=may_lose, is_gentle=is_gentle)
    if way == HANDLERS:
        more = dict.fromkeys(OF_MEMBERS, MORE_OF_MEMBERS)
        weights = {name: weight * more.get(name, 1) for name, weight in weights.items()}
    if way == SHARING:
        names = rng.sample(sorted(OF_SHARES), FEW if rng.random() < 0.4 else len(OF_SHARES))
        weights = {name: OF_SHARES[name] for name in names}
    faults = draw_faults(
        rng,
        count,
        length_s * FAULTY_SHARE,
        weights,
        is_dense=rng.random() < 0.5,
    )
    pause_s = rng.choice((0.25, 0.5, 1.0))
    second = rng.choices(SECONDS, (2, 1, 1) if may_lose else (4, 1, 1))[0]
    tasks = 3 if way in BY_TASKS and rng.random() < 0.2 else 1
    habits = [name for name, ways in HABITS.items() if way in ways]
    if tasks > 1:
        habits = [name for name in habits if name in SHARED]
    habit = rng.choice(habits) if rng.random() < 0.7 and habits else ""
    if habit == "subscribes to less":
        second = "named"
    handling = draw_handling(seed, second=second) if way == HANDLERS else None
    if handling is not None and handling.is_narrow:
        pause_s = max(pause_s, 0.5)
    # Topics that match a pattern and new partitions are found when metadata are refreshed.
    is_known_early = second != "pattern" and not any(
        fault.name in ("partitions added", "topic deleted") for fault in faults
    )
    return Plan(
        seed=seed,
        order=rng.choices(list(Order), (4, 2, 3, 1))[0],
        protocol=rng.choice(PROTOCOLS),
        way=way,
        members=rng.randint(1, 4),
        partitions=rng.randint(1, 6),
        length_s=length_s,
        heartbeat_ms=rng.choice((None, 1_000, 2_900)),
        auto_commit_ms=rng.choice((200, 1_000, 5_000)),
        # Less than a record takes to come, also if one member reads all.
        handling_s=rng.choice((0.0, 0.0, 0.01, pause_s / 10)),
        static=rng.random() < 0.2,
        producers=tuple(
            rng.choices(("plain", "idempotent", "transactional"), (3, 4, 2), k=rng.randint(1, 2))
        ),
        pause_s=pause_s,
        faults=faults,
        habit=habit,
        second=second,
        metadata_ms=rng.choice((5_000, 5_000, 300_000)) if is_known_early else 5_000,
        buffer_bytes=rng.choice((None, None, 2_000)),
        has_reader=rng.random() < 0.1,
        tasks=tasks,
        listener=rng.choices(LISTENERS, (6, 1, 1, 1))[0],
        has_racks=rng.random() < 0.2,
        is_compacted=any(fault.name == "compaction" for fault in faults),
        handling=handling,
    )


def _weights(rng: random.Random, *, may_lose: bool, is_gentle: bool) -> dict[str, int]:
    """Return the faults that a seed may have: all, or a few kinds, so that the same ones meet."""
    if is_gentle:
        return {name: weight for name, weight in ALL_WEIGHTS.items() if name in HARMLESS}
    names = [name for name in ALL_WEIGHTS if name not in ALL_RARE]
    few = rng.random() < 0.4
    if few:
        names = rng.sample(names, FEW)
    if may_lose:
        names += rng.sample(ALL_RARE, RARE_KINDS)
    return {name: ALL_WEIGHTS[name] * (1 if few or name not in ALL_RARE else 8) for name in names}
