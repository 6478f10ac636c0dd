"""What a seed decides about handlers: the arguments of `run`, and what handlers do with a record.

This must not import the package, as `planted.py`.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

# The beginning of the names of delay topics, and their delays.
RETRY: Final = "retry"
DELAYS_S: Final = (0.5, 3)
FORMS: Final = ("function", "dict", "router", "plain")
ORDERS: Final = ("key", "partition", "none", "function")
# How calls are limited: by a number, one that changes, a rate, in a fair order, or by topic.
LIMITS: Final = ("number", "changing", "rate", "fair", "priority")
LETTERS: Final = ("topic", "by error", "function", "drop", "none")
WRITES: Final = ("plain", "letters in transactions", "copies")
LIST_SIZE: Final = 4
MOST_PER_SECOND: Final = 8
KEYS_OF_FUNCTION: Final = 3


class Act(enum.Enum):
    """What a handler does with a record. "Once": in the first call with it, of all members."""

    FINE = "fine"
    SLOW = "slow, within the time limit"
    FAILS_ONCE = "fails once"
    HANGS_ONCE = "hangs once"
    RETURNS_LATE = "once returns after its cancellation"
    UNCANCELS = "once undoes its cancellation, and returns"
    RAISES_LATE = "once raises its own error after its cancellation"
    FAILS = "always fails"
    HANGS = "always hangs"
    BAD = "a bad record"
    NOT_OURS = "a bad record of another application"


class End(enum.Enum):
    """How a record ends."""

    DONE = "done"
    DEAD = "dead letter"
    LATE = "dead letter for its time limit"
    DROPPED = "dropped"


# By the number of a record.
ACT_EACH: Final = 20
ACTS: Final[Mapping[int, Act]] = MappingProxyType(
    {
        19: Act.BAD,
        18: Act.FAILS,
        17: Act.NOT_OURS,
        16: Act.FAILS_ONCE,
        15: Act.HANGS_ONCE,
        14: Act.RETURNS_LATE,
        13: Act.UNCANCELS,
        12: Act.RAISES_LATE,
        11: Act.HANGS,
        10: Act.SLOW,
    }
)
WITHIN_A_LIMIT: Final = frozenset(
    {
        Act.SLOW,
        Act.HANGS_ONCE,
        Act.RETURNS_LATE,
        Act.UNCANCELS,
        Act.RAISES_LATE,
        Act.HANGS,
    }
)
# A record of these has no further attempt after the first.
BAD: Final = frozenset({Act.BAD, Act.NOT_OURS})
ENDLESS: Final = frozenset({*BAD, Act.FAILS, Act.HANGS})


def number_of(value: bytes) -> int:
    """Return a record's number among those of its producer."""
    return int(value.rpartition(b"-")[2])


@dataclass(frozen=True)
class Handling:
    """How the members of a seed call `run`.

    Attributes:
        form: Of the handler: a function, a dict or router of functions, or a plain function.
        order: An argument of `run`; "function" of the record's number.
        batch_size: None: a handler gets one record.
        concurrency: The most concurrent calls. If it changes, at the beginning.
        timeout_s: None: no call has a limit, and none hangs.
        attempts: Of a record that fails each time, also those after delays. None: no limit.
        after: The attempts before the first delay. 0: there are no delay topics.
        letters: Where records without attempts left are written, if anywhere.
        writes: What is written in transactions.
        has_breaker: Calls stop if many fail. Failures meanwhile are no attempts.
        has_middleware: A function around each call sets a context variable.
    """

    form: str
    order: str
    batch_size: int | None
    batch_wait_ms: float
    batch_by: str | None
    limit: str
    concurrency: int
    timeout_s: float | None
    attempts: int | None
    after: int
    letters: str
    writes: str
    has_breaker: bool
    has_middleware: bool

    @property
    def copies(self) -> bool:
        return self.writes == "copies"

    @property
    def is_atomic(self) -> bool:
        """Whether each letter and each delay is committed with the offset of its record."""
        return self.copies or (
            self.writes == "letters in transactions" and self.letters in ("topic", "by error")
        )

    @property
    def is_narrow(self) -> bool:
        """Whether few calls run at once, so that records have to be few, too."""
        return self.order == "partition" or self.concurrency == 1 or self.limit == "rate"

    def act_of(self, value: bytes) -> Act:
        act = ACTS.get(number_of(value) % ACT_EACH, Act.FINE)
        if act in WITHIN_A_LIMIT and (self.timeout_s is None or self.form == "plain"):
            return Act.FINE
        if act in ENDLESS and self.letters == "none":  # `run` would raise the error
            return Act.FAILS_ONCE
        return act

    def end_of(self, value: bytes) -> End:
        act = self.act_of(value)
        if act not in ENDLESS:
            return End.DONE
        if self.letters == "drop" or (self.letters == "by error" and act is Act.NOT_OURS):
            return End.DROPPED
        return End.LATE if self.letters == "by error" and act is Act.HANGS else End.DEAD

    def attempts_of(self, value: bytes) -> int | None:
        """Return the attempts of a record that has no good end. None: they are not known."""
        if self.act_of(value) in BAD:
            return 1
        return None if self.has_breaker else self.attempts

    def text(self) -> str:
        words = [
            f"handlers: {self.form}, order {self.order}, {self.concurrency} calls, {self.limit}",
            f"attempts {self.attempts}, letters {self.letters}, writes {self.writes}",
        ]
        if self.batch_size is not None:
            words.append(f"lists of {self.batch_size} by {self.batch_by}, {self.batch_wait_ms} ms")
        words += [f"limit {self.timeout_s} s"] if self.timeout_s is not None else []
        words += [f"delays after {self.after}"] if self.after else []
        words += ["breaker"] if self.has_breaker else []
        words += ["middleware"] if self.has_middleware else []
        return ", ".join(words)


def draw_handling(seed: int, *, second: str) -> Handling:
    """Return the handling of a seed. `second`: how members get the records of a second topic."""
    rng = random.Random(f"{seed}:handling")
    letters = rng.choices(LETTERS, (4, 4, 2, 1, 1))[0]
    limit = rng.choice(LIMITS)
    is_list = rng.random() < 0.35
    may_wait = is_list and limit not in ("fair", "priority")
    attempts = None if letters == "none" else rng.randint(2, 3)
    after = 0
    # A pattern would have to match the delay topics.
    if second != "pattern" and letters != "none" and rng.random() < 0.5:
        after = rng.randint(1, 2)
        attempts = after + len(DELAYS_S)
    return Handling(
        form=rng.choices(FORMS, (3, 2, 2, 1))[0],
        order=rng.choices(ORDERS, (4, 2, 1, 2))[0],
        batch_size=LIST_SIZE if is_list else None,
        batch_wait_ms=rng.choice((0, 150)) if may_wait else 0,
        batch_by=rng.choice((None, "key", "partition")) if may_wait else None,
        limit=limit,
        concurrency=rng.choice((1, 3, 10, 10)),
        timeout_s=rng.choice((None, 0.2, 0.5, 0.5)),
        attempts=attempts,
        after=after,
        letters=letters,
        writes=rng.choices(WRITES, (3, 1, 1))[0],
        has_breaker=rng.random() < 0.25,
        has_middleware=rng.random() < 0.25,
    )
