"""After which errors of a handler there is another attempt, how many there are, and when."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Literal, TypeAlias

from aiokafka_lite.client.backoff import delay_after
from aiokafka_lite.consumer.processing.calls import leaves

Errors: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]
Kinds: TypeAlias = type[BaseException] | tuple["Kinds", ...]
Verdict = Literal["retry", "dead", "stop"]


@dataclass(frozen=True)
class Retry:
    """Says which errors of a handler are met by another attempt, how many there are, and when.

    A record that waits for its next attempt holds up its lane (the records of its key), and nothing
    else: neither other records nor the place of a handler. Where nothing is left to try, it goes to
    the dead letters; without those `run` ends with the handler's error.

    A group of exceptions, as of asyncio.TaskGroup, is of a kind if all exceptions in it are. It
    stops everything if one of them does.

    Args:
        attempts: How often a record is tried, in all; None: without end.
        first_delay_ms: The pause before the second attempt. It doubles each time, and varies by a
            fifth.
        max_delay_ms: The longest pause.
        on: The errors after which it is worth to try again. All others count as the last attempt's.
        dead: Errors that say that the record is bad: it goes to the dead letters at once. They say
            nothing of what the handler depends on, so a circuit breaker does not count them.
        stop: Errors after which nothing more is processed: `run` raises them.

    Raises:
        ValueError: A number is too small.
        TypeError: `on`, `dead` or `stop` are no classes of exceptions.
    """

    attempts: int | None = 5
    first_delay_ms: float = 100
    max_delay_ms: float = 30_000
    on: Errors = Exception
    dead: Errors = ()
    stop: Errors = ()

    def __post_init__(self) -> None:
        if self.attempts is not None and self.attempts < 1:
            raise ValueError(f"attempts is how often a record is tried, 1 or more: {self.attempts}")
        if self.first_delay_ms < 0 or self.max_delay_ms < self.first_delay_ms:
            raise ValueError(
                "first_delay_ms is not negative, and no longer than max_delay_ms: "
                f"{self.first_delay_ms}, {self.max_delay_ms}"
            )

        for name in ("on", "dead", "stop"):
            kinds = getattr(self, name)
            for kind in kinds if isinstance(kinds, tuple) else (kinds,):
                if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                    raise TypeError(
                        f"{name} is a class of exceptions, or a tuple of such, not {kinds!r}"
                    )

    def verdict(self, error: BaseException, attempts: int) -> Verdict:
        """Return what is to become of a record after so many attempts, and this error of the last.

        "dead" also says that nothing is left to try.
        """
        if self.stops(error):
            return "stop"
        if self.is_bad_record(error):
            return "dead"
        # A handler that awaits what somebody has cancelled fails by that, as by an exception.
        is_passing = _is_all(error, (self.on, asyncio.CancelledError))
        has_more = self.attempts is None or attempts < self.attempts
        return "retry" if is_passing and has_more else "dead"

    def is_bad_record(self, error: BaseException) -> bool:
        """Whether an error says something of the record, and nothing of what is around."""
        return _is_all(error, self.dead)

    def stops(self, error: BaseException) -> bool:
        """Whether nothing more is processed after an error."""
        return isinstance(error, self.stop) or any(
            isinstance(leaf, self.stop) for leaf in leaves(error)
        )

    def delay_s(self, failures: int, rng: random.Random) -> float:
        """Return the pause after so many failures in a row."""
        return delay_after(failures - 1, self.first_delay_ms / 1000, self.max_delay_ms / 1000, rng)


def _is_all(error: BaseException, kinds: Kinds) -> bool:
    """Whether an error is of these kinds, or a group of such errors only."""
    return isinstance(error, kinds) or all(isinstance(leaf, kinds) for leaf in leaves(error))


#: Without `retry`: one attempt.
ONCE = Retry(attempts=1)
