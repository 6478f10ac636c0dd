"""The errors of handlers that are retried, the number of attempts, and the pauses."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Literal, TypeAlias

from aiokafka_lite._arguments import check_fields
from aiokafka_lite.client.backoff import delay_after
from aiokafka_lite.consumer.processing.calls import leaves

Errors: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]
Kinds: TypeAlias = type[BaseException] | tuple["Kinds", ...]
Verdict = Literal["retry", "dead", "stop"]


@dataclass(frozen=True)
class Retry:
    """Decides which errors of a handler are retried, how often and when.

    A record that waits for its next attempt delays only its lane (the records of its key), and no
    handler. After its last attempt it is written to the dead letters; without them `run` raises the
    handler's error.

    An exception group, such as asyncio.TaskGroup's, is of a kind if all its exceptions are. But it
    stops `run` if one of them does.

    Args:
        attempts: Attempts per record, including the first; None: no limit.
        first_delay_ms: The pause before the second attempt. It doubles each time, and varies by a
            fifth.
        max_delay_ms: The longest pause.
        on: The errors that are retried. Any other error ends the attempts.
        dead: Errors of a bad record, which is written to the dead letters at once. A circuit
            breaker does not count them.
        stop: Errors after which processing stops; `run` raises them.

    Raises:
        ValueError: A number is too small.
        TypeError: `on`, `dead` or `stop` are not exception classes, or a number is none.
    """

    attempts: int | None = 5
    first_delay_ms: float = 100
    max_delay_ms: float = 30_000
    on: Errors = Exception
    dead: Errors = ()
    stop: Errors = ()

    def __post_init__(self) -> None:
        check_fields(self)
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

    def verdict(self, error: BaseException, attempts: int) -> Verdict:
        """Return the decision about a record after `attempts` attempts, and the last one's error.

        "dead" also means that no attempts are left.
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
    """Whether an error is of these kinds, or a group of only such errors."""
    return isinstance(error, kinds) or all(isinstance(leaf, kinds) for leaf in leaves(error))


#: Without `retry`: one attempt.
ONCE = Retry(attempts=1)
