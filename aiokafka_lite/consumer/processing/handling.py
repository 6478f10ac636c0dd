"""Arguments of `consumer.run`: how records are handled, and where failed ones are written."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib import import_module
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    cast,
    runtime_checkable,
)

from aiokafka_lite._arguments import NUMBER, POSITIVE_INT, check_fields, is_int, is_list, is_number
from aiokafka_lite.client.backoff import delay_after
from aiokafka_lite.consumer.buffer.chunk import serialized
from aiokafka_lite.consumer.config import is_async_callable
from aiokafka_lite.consumer.processing.calls import leaves
from aiokafka_lite.consumer.processing.delays import Delays
from aiokafka_lite.consumer.processing.headers import Headers
from aiokafka_lite.consumer.processing.job import Job
from aiokafka_lite.consumer.processing.lanes import Order
from aiokafka_lite.consumer.processing.limits import Concurrency
from aiokafka_lite.consumer.processing.lists import BatchBy, ListOf
from aiokafka_lite.errors import DeserializationError
from aiokafka_lite.structs import ConsumerRecord

if TYPE_CHECKING:
    from aiokafka_lite.client.arguments import ClientArguments
    from aiokafka_lite.consumer.processing.attempts import Handled
    from aiokafka_lite.consumer.processing.outbox import GivenProducer, Outbox
    from aiokafka_lite.producing.batch import Output

Errors: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]
Kinds: TypeAlias = type[BaseException] | tuple["Kinds", ...]
Verdict = Literal["retry", "dead", "stop"]


@dataclass(frozen=True)
class Retry:
    """Decides which errors of a handler are retried, how often and when.

    A record that waits for its next attempt delays only its lane (the records of its key), and no
    handler. After its last attempt it is written to the dead letters. Without them `run` raises the
    handler's error.

    An exception group, such as asyncio.TaskGroup's, is of a kind if all its exceptions are. But it
    stops `run` if one of them does.

    Args:
        attempts: Attempts per record, including the first. None: no limit.
        first_delay_ms: The pause before the second attempt. It doubles each time, and varies by a
            fifth.
        max_delay_ms: The longest pause.
        on: The errors that are retried. Any other error ends the attempts.
        dead: Errors of a bad record, which is written to the dead letters at once. A circuit
            breaker does not count them.
        stop: Errors after which processing stops. `run` raises them.
        topic: The beginning of the names of delay topics. With it, a record whose first attempts
            have failed is written to a topic, where it waits and does not delay commits. `run`
            subscribes to the topics, which have to exist. Delayed records are not in order with
            other records of their key.
        delays: With `topic`: how long the record waits before each further attempt, in seconds. The
            delay of 60 has the topic "<topic>.60". After the last delay and attempt the record is
            written to the dead letters.
        after: With `topic`: the attempts before the first delay. `attempts` has no effect.

    Raises:
        ValueError, TypeError: An argument is invalid.
    """

    attempts: int | None = 5
    first_delay_ms: float = 100
    max_delay_ms: float = 30_000
    on: Errors = Exception
    dead: Errors = ()
    stop: Errors = ()
    topic: str | None = None
    delays: Sequence[float] = ()
    after: int = 3

    def __post_init__(self) -> None:
        check_fields(self)
        self._check_delays()
        if self.attempts is not None and self.attempts < 1:
            raise ValueError(f"attempts must be at least 1 or None, not {self.attempts}")
        if self.first_delay_ms < 0 or self.max_delay_ms < self.first_delay_ms:
            raise ValueError(
                "first_delay_ms must be at least 0 and at most max_delay_ms, but is "
                f"{self.first_delay_ms} with max_delay_ms={self.max_delay_ms}"
            )

        for name in ("on", "dead", "stop"):
            kinds = getattr(self, name)
            for kind in kinds if isinstance(kinds, tuple) else (kinds,):
                if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                    raise TypeError(
                        f"{name} must be an exception class or a tuple of exception classes, "
                        f"not {kinds!r}"
                    )

    def _check_delays(self) -> None:
        if not is_list(self.delays) or isinstance(self.delays, Mapping):
            raise TypeError(f"delays must be a list of numbers of seconds, not {self.delays!r}")
        for delay_s in self.delays:
            NUMBER.check("each of delays", delay_s)
            if not 0 < delay_s < math.inf:
                raise ValueError(f"each of delays must be positive and finite, not {delay_s!r}")
        if self.topic == "" or (self.topic is None) != (not self.delays):
            raise ValueError(
                "topic and delays need each other: the beginning of the names of delay topics, and "
                f"their delays in seconds, not {self.topic!r} and {self.delays!r}"
            )
        if self.after < 1:
            raise ValueError(f"after must be at least 1, not {self.after}")

    def verdict(self, error: BaseException, attempts: int) -> Verdict:
        """Return the decision after an attempt. "dead" also means that no attempts are left."""
        if self.stops(error):
            return "stop"
        if self.is_bad_record(error):
            return "dead"
        # If an awaitable of the handler was cancelled, the handler fails as by an exception.
        is_passing = self._is_passing(error)
        limit = self.attempts if self.topic is None else self.after
        has_more = limit is None or attempts < limit
        return "retry" if is_passing and has_more else "dead"

    def _is_passing(self, error: BaseException) -> bool:
        return _is_all(error, (self.on, asyncio.CancelledError))

    def may_delay(self, error: BaseException) -> bool:
        """Whether a record that has failed is written to a delay topic, if one is left."""
        is_bad = self.is_bad_record(error) or isinstance(error, DeserializationError)
        return self._is_passing(error) and not is_bad

    @property
    def delay_topics(self) -> tuple[str, ...]:
        """The topic of each delay, such as "orders.retry.60"."""
        names = (int(each) if each == int(each) else each for each in self.delays)
        return tuple(f"{self.topic}.{name}" for name in names)

    def is_bad_record(self, error: BaseException) -> bool:
        """Whether an error is the record's, not that of a dependency."""
        return _is_all(error, self.dead)

    def stops(self, error: BaseException) -> bool:
        """Whether processing stops after an error."""
        return isinstance(error, self.stop) or any(
            isinstance(leaf, self.stop) for leaf in leaves(error)
        )

    def delay_s(self, failures: int, rng: random.Random) -> float:
        """Return the pause after a number of failures in a row."""
        return delay_after(failures - 1, self.first_delay_ms / 1000, self.max_delay_ms / 1000, rng)


def _is_all(error: BaseException, kinds: Kinds) -> bool:
    return isinstance(error, kinds) or all(isinstance(leaf, kinds) for leaf in leaves(error))


#: Without `retry`: one attempt.
ONCE = Retry(attempts=1)
NO_DELAYS: Final = Delays(ONCE, {}, "")


@dataclass(frozen=True)
class CircuitBreaker:
    """Decides when processing pauses, because the handlers' dependencies seem to be down.

    Args:
        failure_rate: The part of a window's calls that has to fail before processing pauses.
        min_calls: The least number of calls for a rate.
        window_ms: The length of a window, which begins with a failure.
        first_pause_ms: The pause before one record is tried. It doubles with each failure, and
            varies by a fifth.
        max_pause_ms: The longest pause.
        probes: How often a record without attempts left is tried again, if only this record has
            failed since a call succeeded. After that it counts as bad.
        give_up_ms: How long no call has to succeed before all failed records count as bad, if no
            other record is left to try. `math.inf`: without limit.

    Raises:
        ValueError, TypeError: An argument is invalid.
    """

    failure_rate: float = 0.5
    min_calls: int = 20
    window_ms: float = 10_000
    first_pause_ms: float = 1_000
    max_pause_ms: float = 30_000
    probes: int = 4
    give_up_ms: float = 900_000

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.failure_rate <= 1:
            raise ValueError(f"failure_rate must be above 0 and at most 1, not {self.failure_rate}")
        if self.min_calls < 1:
            raise ValueError(f"min_calls must be at least 1, not {self.min_calls}")
        if self.probes < 1:
            raise ValueError(f"probes must be at least 1, not {self.probes}")
        for name in ("window_ms", "give_up_ms"):
            if (value := getattr(self, name)) <= 0:
                raise ValueError(f"{name} must be positive, not {value}")
        if not 0 < self.first_pause_ms <= self.max_pause_ms:
            raise ValueError(
                "first_pause_ms must be positive and at most max_pause_ms, but is "
                f"{self.first_pause_ms} with max_pause_ms={self.max_pause_ms}"
            )


@dataclass(frozen=True, eq=False)
class DeadRecord:
    """A record without attempts left.

    Attributes:
        record: The record as the handler received it.
        error: The error of the last attempt.
        attempts: The number of attempts, with those before it was delayed.
        history: Headers with its first failure, if it was delayed (`Retry`'s `topic`).
    """

    record: ConsumerRecord
    error: BaseException
    attempts: int
    # The holder in the partition's table.
    job: Job | None = field(default=None, repr=False)
    history: Headers = ()

    @property
    def key(self) -> bytes | None:
        """The key's bytes, also if it was deserialised."""
        return serialized(self.record)[0]

    @property
    def value(self) -> bytes | None:
        """The value's bytes, also if it was deserialised."""
        return serialized(self.record)[1]


DeadLetter = Callable[[DeadRecord], Awaitable[object]]
# By class. A mapping is invariant in its keys: one of ValueError alone would be refused.
ByError: TypeAlias = Mapping[type[Any], DeadLetter | str]


class LetterWriter(Protocol):
    """Writes dead letters with one producer."""

    async def count_partitions(self, topic: str) -> int: ...

    async def write(self, dead: DeadRecord, letter: Output) -> None: ...


class RunContext(NamedTuple):
    """The run whose dead letters are written. `new_outbox` is None if it commits no offsets."""

    arguments: ClientArguments
    group_id: str
    is_read_committed: bool
    reads: Callable[[str], bool]
    outbox: Outbox | None
    new_outbox: Callable[[GivenProducer], Outbox] | None
    # The created producers by transactional id: at most one, and one without.
    writers: dict[str | None, LetterWriter]
    # Stops them at the end of the run.
    stack: AsyncExitStack


@runtime_checkable
class DeadLetterKeeper(Protocol):
    async def open(self, run: RunContext) -> None: ...

    async def close(self) -> None: ...

    async def __call__(self, dead: DeadRecord) -> object: ...


class NoLetter:
    """Finishes a failed record without a dead letter: `run` logs it and counts it in `total`."""

    def __init__(self, name: str, total: str, fate: str) -> None:
        self._name = name
        self.total: Final = total
        self.fate: Final = fate

    def __repr__(self) -> str:
        return self._name

    async def __call__(self, dead: DeadRecord) -> None:
        """Do nothing."""


DROP: Final = NoLetter("DROP", "dropped_total", "is dropped")
"""For `run(dead_letter=...)`: a failed record is finished, logged and counted, and lost."""
REJECT: Final = NoLetter("REJECT", "rejected_total", "is rejected")
"""For share groups: no member receives a failed record any more. Brokers may keep it (KIP-1191)."""


class LettersByError:
    """Dead letters by the class of the error: the first of its bases that has some."""

    def __init__(self, by_class: Mapping[type[BaseException], DeadLetter]) -> None:
        self._by_class = by_class

    @property
    def all(self) -> Iterable[DeadLetter]:
        return dict.fromkeys(self._by_class.values())

    def of(self, error: BaseException) -> DeadLetter | None:
        """Return the most specific class's. A group is of a class if all its exceptions are."""
        first = next(leaves(error))
        bases = dict.fromkeys(reversed([*type(first).__mro__, *type(error).__mro__]))
        for kind in reversed(bases):
            if kind in self._by_class and _is_all(error, kind):
                return self._by_class[kind]
        return None


def check_producer(name: str, producer: object) -> None:
    if producer is not None and not hasattr(producer, "lend"):
        raise TypeError(f"{name} must be an AIOKafkaProducer or None, not {producer!r}")


def retry_of(retry: object) -> Retry:
    if retry is None:
        return ONCE
    if is_int(retry):
        return Retry(attempts=retry)
    if not isinstance(retry, Retry):
        raise TypeError(f"retry must be Retry(…), a number of attempts, or None, not {retry!r}")
    return retry


def delays_of(retry: Retry, group_id: str | None) -> Delays:
    new_topic = import_module("aiokafka_lite.processing").DelayTopic
    return Delays(retry, {name: new_topic(name) for name in retry.delay_topics}, group_id or "")


def dead_letter_of(
    dead_letter: object, *, is_shared: bool = False
) -> DeadLetter | LettersByError | None:
    if dead_letter is None:
        return None
    if isinstance(dead_letter, Mapping):
        if not dead_letter:
            raise ValueError("dead_letter must have at least one class of errors, not {}")
        named: dict[str, DeadLetter] = {}
        by_class: dict[type[BaseException], DeadLetter] = {}
        for kind, given in dead_letter.items():
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise TypeError(f"the keys of dead_letter must be exception classes, not {kind!r}")
            name = f"dead_letter[{kind.__name__}]"
            if is_shared and given == "reject":
                given = REJECT
            elif isinstance(given, str):  # two classes may have the same topic
                given = named[given] = named.get(given) or _one_dead_letter(name, given)
            by_class[kind] = _one_dead_letter(name, given)
        return LettersByError(by_class)
    if is_shared and dead_letter == "reject":
        return REJECT
    or_reject = ', "reject"' if is_shared else ""
    or_more = f", a mapping of classes of errors{or_reject}"
    return _one_dead_letter("dead_letter", dead_letter, or_more)


def _one_dead_letter(name: str, given: object, or_more: str = "") -> DeadLetter:
    if isinstance(given, str):
        # By name: the package of the public API is above this one.
        kept: DeadLetter = import_module("aiokafka_lite.processing").DeadLetters(given)
        return kept
    if not is_async_callable(given):
        raise TypeError(
            f'{name} must be DeadLetters("topic"), the name of a topic, DROP, an async def '
            f"function that takes a DeadRecord{or_more}{', or None' if or_more else ''}, "
            f"not {given!r}"
        )
    return cast("DeadLetter", given)


def breaker_of(breaker: object) -> CircuitBreaker | None:
    if breaker == "default":
        return CircuitBreaker()
    if breaker is not None and not isinstance(breaker, CircuitBreaker):
        raise TypeError(f'breaker must be CircuitBreaker(…), "default" or None, not {breaker!r}')
    return breaker


def _check_priority(priority: object) -> None:
    if not isinstance(priority, Mapping) or not all(isinstance(each, str) for each in priority):
        raise TypeError(f"priority must be a dict of topics and numbers, or None, not {priority!r}")
    for topic, number in priority.items():
        if not is_number(number) or not 0 < number < math.inf:
            raise ValueError(f"priority must have positive numbers, not {number!r} for {topic!r}")


@dataclass(frozen=True)
class Handling:
    concurrency: int | Concurrency
    order: Order
    batch_size: int | None
    max_uncommitted: int
    retry: Retry
    dead_letter: DeadLetter | LettersByError | None
    breaker: CircuitBreaker | None
    timeout_s: float | None = None
    batch_wait_ms: float = 0
    batch_by: BatchBy = None
    list_of: ListOf | None = None
    max_per_second: float | None = None
    fair: bool = False
    priority: Mapping[str, float] | None = None
    delays: Delays = NO_DELAYS

    def letter_for(self, error: BaseException, job: Handled | None = None) -> DeadLetter | None:
        """Return what finishes a failed record, only with a job a delay. None: `run` raises."""
        if job is not None and (delay := self.delays.writer_for(error, job)) is not None:
            return delay
        given = self.dead_letter
        return given.of(error) if isinstance(given, LettersByError) else given

    @property
    def keepers(self) -> list[DeadLetterKeeper]:
        """What a run opens: the dead letters, then the delay topics, which share a producer."""
        given = self.dead_letter
        letters = given.all if isinstance(given, LettersByError) else (given,)
        every = (*letters, *self.delays.writers.values())
        return [each for each in every if isinstance(each, DeadLetterKeeper)]

    def __post_init__(self) -> None:
        check_fields(self, {"int": POSITIVE_INT})
        if not isinstance(self.concurrency, Concurrency):
            POSITIVE_INT.check("concurrency", self.concurrency)
        for name in ("timeout_s", "max_per_second"):
            if (limit := getattr(self, name)) is not None and not 0 < limit < math.inf:
                raise ValueError(f"{name} must be a positive number or None, not {limit!r}")
        if not 0 <= self.batch_wait_ms < math.inf:
            raise ValueError(
                f"batch_wait_ms must be at least 0 and finite, not {self.batch_wait_ms}"
            )
        if self.batch_wait_ms and self.batch_size is None:
            raise ValueError("batch_wait_ms needs batch_size: only lists wait for more records")
        if self.priority is not None:
            _check_priority(self.priority)
        for name in ("fair", "priority"):
            if getattr(self, name) and (self.batch_wait_ms or self.batch_by):
                raise ValueError(
                    f"{name} cannot be used with batch_wait_ms or batch_by, because lists begin in "
                    "the order in which they are full or have waited"
                )
        if self.batch_by not in ("key", "partition", None):
            raise ValueError(f'batch_by must be "key", "partition" or None, not {self.batch_by!r}')
        if self.batch_by is not None and self.batch_size is None:
            raise ValueError("batch_by needs batch_size: it is about lists of records")
        is_function = callable(self.order) and not is_async_callable(self.order)
        if not is_function and self.order not in ("key", "partition", None):
            raise ValueError(
                'order must be "key", "partition", None or a function of a record that is not '
                f"async, not {self.order!r}"
            )
