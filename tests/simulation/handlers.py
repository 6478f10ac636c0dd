"""Members that call `run` as the plan's handling has it, and write each call of a handler down."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from aiokafka_lite.processing import (
    DROP,
    CircuitBreaker,
    Concurrency,
    DeadLetters,
    DeadRecord,
    Retry,
    Router,
)
from aiokafka_lite.structs import TopicPartition
from tests.simulation.calls import Call, CallLog, Handled, Letter, Record
from tests.simulation.cluster import DEAD, INPUT, LATE, OUTPUT, SECOND
from tests.simulation.handling import (
    BAD,
    DELAYS_S,
    ENDLESS,
    KEYS_OF_FUNCTION,
    MOST_PER_SECOND,
    RETRY,
    Act,
    Handling,
    number_of,
)

if TYPE_CHECKING:
    from tests.simulation.member import Member

TRANSACTION_MS: Final = 10_000
# How long the concurrency of a run changes, and how often.
LONGEST_CHANGES_S: Final = 20.0
CHANGES_EACH_S: Final = 0.7
MOST_CALLS: Final = 20
# The part of the time limit that a slow handler takes.
SLOW_PART: Final = 0.8
# How long a handler goes on after its cancellation.
LATE_S: Final = 0.05
LETTER_S: Final = 0.02
ENDLESS_S: Final = 3_600.0
# Where the function of a plan that writes dead letters puts them.
BY_FUNCTION: Final = TopicPartition("function", 0)
TURN: Final[ContextVar[int]] = ContextVar("turn", default=0)


class BadRecordError(Exception):
    """The handler cannot use the record."""


class NotOursError(Exception):
    """The record is another application's."""


class _IgnoredError(Exception):
    """The handler goes on after its cancellation, and returns."""


def changing_concurrency(value: int) -> Concurrency:
    """Return a concurrency that changes for a while."""
    limit, loop = Concurrency(value), asyncio.get_running_loop()
    ends_at = loop.time() + LONGEST_CHANGES_S

    def change() -> None:
        limit.value = 1 + (limit.value + MOST_CALLS // 4) % MOST_CALLS
        if loop.time() < ends_at:
            loop.call_later(CHANGES_EACH_S, change)

    change()
    return limit


class Handlers:
    """The handlers of one member."""

    def __init__(self, member: Member, handling: Handling) -> None:
        self._member, self._handling = member, handling
        self._log: CallLog = member.cluster.call_log

    # The arguments of `run`

    def given(self) -> Any:
        """Return the handler, in the form of the plan."""
        handling = self._handling
        handle: Any = self._function(is_plain=handling.form == "plain")
        if handling.form == "dict" and self._member.plan.second != "pattern":
            return {each: self._function() for each in (INPUT, SECOND)}
        if handling.form in ("dict", "router"):
            router = Router(default=self._function())
            router.on(INPUT, re.compile(f"{INPUT}."))(handle)
            return router
        return handle

    def _function(self, *, is_plain: bool = False) -> Callable[..., Any]:
        """Return a new function that takes a record or a list, and outputs if there are some."""
        is_list = self._handling.batch_size is not None

        async def handle(given: Any, *outputs: Any) -> None:
            await self._handle(given if is_list else [given], outputs)

        def handle_in_thread(given: Any, *outputs: Any) -> None:
            self._handle_at_once(given if is_list else [given], outputs)

        if not self._handling.copies:  # the number of arguments is checked
            return _of_one(handle_in_thread) if is_plain else _of_one_async(handle)
        return handle_in_thread if is_plain else handle

    def arguments(self) -> dict[str, Any]:
        handling = self._handling
        by_number: Callable[[Record], int] = lambda each: number_of(each.value) % KEYS_OF_FUNCTION  # noqa: E731
        found: dict[str, Any] = {
            "concurrency": handling.concurrency,
            "order": {"none": None, "function": by_number}.get(handling.order, handling.order),
            "timeout_s": handling.timeout_s,
            "retry": self._retry(),
            "dead_letter": self._dead_letter(),
            "breaker": None,
        }
        if handling.limit == "changing":
            found["concurrency"] = changing_concurrency(handling.concurrency)
        elif handling.limit == "rate":
            found["max_per_second"] = MOST_PER_SECOND
        elif handling.limit in ("fair", "priority"):
            found["fair"] = handling.limit == "fair"
            found["priority"] = {SECOND: 3} if handling.limit == "priority" else None
        if handling.batch_size is not None:
            found["batch_size"] = handling.batch_size
            found["batch_wait_ms"] = handling.batch_wait_ms
            found["batch_by"] = handling.batch_by
        if handling.has_breaker:
            found["breaker"] = CircuitBreaker(
                min_calls=8,
                window_ms=2_000,
                first_pause_ms=100,
                max_pause_ms=500,
                probes=2,
                give_up_ms=2_000,
            )
        if handling.has_middleware:
            found["middleware"] = [_around]
        return found

    def _retry(self) -> Retry:
        handling = self._handling
        delays: dict[str, Any] = {}
        if handling.after:
            delays = {"topic": RETRY, "delays": DELAYS_S, "after": handling.after}
        return Retry(
            attempts=handling.attempts,
            first_delay_ms=50,
            max_delay_ms=200,
            dead=(BadRecordError, NotOursError),
            **delays,
        )

    def _dead_letter(self) -> Any:
        handling = self._handling
        transaction: dict[str, Any] = {}
        if handling.writes == "letters in transactions":
            transaction = {
                "transactional_id": f"letters-{self._member.slot}",
                "transaction_timeout_ms": TRANSACTION_MS,
            }
        dead = DeadLetters(DEAD, **transaction)
        by_error = {
            NotOursError: DROP,
            TimeoutError: DeadLetters(LATE, **transaction),
            Exception: dead,
        }
        return {"topic": dead, "by error": by_error, "function": self._write, "drop": DROP}.get(
            handling.letters
        )

    async def _write(self, dead: DeadRecord) -> None:
        await asyncio.sleep(LETTER_S)
        record = dead.record
        self._log.letters.append(
            Letter(
                self._member.now(),
                (BY_FUNCTION, len(self._log.letters)),
                TopicPartition(record.topic, record.partition),
                record.offset,
                record.value or b"",
                dead.attempts,
                type(dead.error).__name__,
                dict(dead.history),
            )
        )

    # The calls

    def _begin(self, records: Sequence[Record]) -> tuple[Call, list[Act]]:
        """Write a call down. Return it, with what is to be done with each record."""
        member = self._member
        handled = [Handled.of(record) for record in records]
        fresh = [each for each, of in zip(records, handled, strict=True) if not of.is_delayed]
        member.note_returned(fresh)
        call = Call(member.name, member.now(), handled)
        self._log.calls.append(call)
        acts: list[Act] = []
        for each in handled:
            act = self._handling.act_of(each.value)
            is_first = not self._log.counts[each.value]
            self._log.counts[each.value] += 1
            acts.append(act if is_first or act in (*ENDLESS, Act.SLOW) else Act.FINE)
        return call, acts

    def _end(self, call: Call, outcome: str, records: Sequence[Record] = ()) -> None:
        call.outcome, call.ended_at_s = outcome, self._member.now()
        for record in records:
            self._member.note_handled(record)

    async def _handle(self, records: Sequence[Record], outputs: Sequence[Any]) -> None:
        call, acts = self._begin(records)
        try:
            await asyncio.sleep(self._member.plan.handling_s)
            self._send(records, outputs)
            for act, each in zip(acts, call.records, strict=True):
                await self._do(act, each, call)
        except _IgnoredError:
            self._end(call, "cancelled")
        except asyncio.CancelledError:
            self._end(call, "cancelled")
            raise
        except BaseException:
            self._end(call, "failed")
            raise
        else:
            self._end(call, "finished", records)

    def _handle_at_once(self, records: Sequence[Record], outputs: Sequence[Any]) -> None:
        call, acts = self._begin(records)
        try:
            self._send(records, outputs)
            for act, each in zip(acts, call.records, strict=True):
                self._fail(act, each)
        except Exception:
            self._end(call, "failed")
            raise
        self._end(call, "finished", records)

    @staticmethod
    def _send(records: Sequence[Record], outputs: Sequence[Any]) -> None:
        for each in outputs:
            for record in records:
                each.send(OUTPUT, record.value, key=record.key)

    @staticmethod
    def _fail(act: Act, handled: Handled) -> None:
        if act in BAD:
            raise BadRecordError if act is Act.BAD else NotOursError
        if act in (Act.FAILS, Act.FAILS_ONCE):  # the first error differs from the last one
            raise (ConnectionResetError if handled.is_delayed else ConnectionError)(act.value)

    async def _do(self, act: Act, handled: Handled, call: Call) -> None:
        self._fail(act, handled)
        limit_s = self._handling.timeout_s
        if limit_s is None or act is Act.FINE:
            return
        if act is Act.SLOW:
            slow_s = limit_s * SLOW_PART - self._member.plan.handling_s
            await asyncio.sleep(max(0.0, slow_s) / len(call.records))
            return
        try:
            await asyncio.sleep(ENDLESS_S)
        except asyncio.CancelledError:
            # Another cancellation than that by the limit is obeyed.
            if act in (Act.HANGS, Act.HANGS_ONCE) or self._member.now() < call.began_at_s + limit_s:
                raise
            if act is Act.RAISES_LATE:
                raise ConnectionError(act.value) from None
            if act is Act.UNCANCELS:
                _uncancel()
            await asyncio.sleep(LATE_S)
            raise _IgnoredError from None


def _uncancel() -> None:
    task = asyncio.current_task()
    if (uncancel := getattr(task, "uncancel", None)) is not None:  # Python 3.10 has none
        uncancel()


def _of_one(handle: Callable[..., None]) -> Callable[[Any], None]:
    return lambda given: handle(given)


def _of_one_async(handle: Callable[..., Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
    async def handle_one(given: Any) -> None:
        await handle(given)

    return handle_one


async def _around(given: Any, call_next: Callable[[Any], Awaitable[Any]]) -> None:
    TURN.set(TURN.get() + 1)
    await call_next(given)
