"""The application's handlers, composed into one call when `run` begins."""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar

from aiokafka_lite._arguments import is_list
from aiokafka_lite.consumer.config import check_handler, check_topics, is_async_callable
from aiokafka_lite.consumer.processing.handling import Errors, Retry
from aiokafka_lite.consumer.processing.lists import ListOf
from aiokafka_lite.consumer.processing.threads import HandlerThreads
from aiokafka_lite.consumer.processing.typed import with_values
from aiokafka_lite.errors import IllegalStateError, InvalidValueError, NoHandlerError
from aiokafka_lite.structs import ConsumerRecord

Handler: TypeAlias = Callable[..., Any]
HandlerT = TypeVar("HandlerT", bound=Handler)
# Of a record or a list of records, and with transactions the outputs.
Call: TypeAlias = Callable[..., Awaitable[Any]]
AnyRecord: TypeAlias = ConsumerRecord[Any, Any]
# Takes a record or a list of them, and the function that it awaits for the rest of the call.
Middleware: TypeAlias = Callable[[Any, Callable[[Any], Awaitable[Any]]], Awaitable[object]]
Topics: TypeAlias = str | re.Pattern[str]
# By `Topics`. A mapping is invariant in its keys: a dict of names alone would be refused.
ByTopic: TypeAlias = Mapping[Any, Handler]
NO_HANDLERS: Final[ByTopic] = MappingProxyType({})


class Router:
    """Chooses the handler of each record by its topic: an argument of `AIOKafkaConsumer.run`.

    ::

        router = Router()

        @router.on("orders", re.compile("orders-"))
        async def handle(record: ConsumerRecord) -> None: ...

        await consumer.run(router)

    The handler of the topic's name is called. Otherwise it is that of the first pattern that
    matches the beginning of the name, as with `subscribe(pattern=...)`, and otherwise `default`.
    `run` uses the handlers that the router has when it begins.

    Args:
        handlers: The handlers by topic: a name, or a pattern made by `re.compile`.
        default: The handler of all other topics.

    Raises:
        TypeError, ValueError: A topic is neither a name nor a pattern, or has a handler already.
    """

    def __init__(self, handlers: ByTopic = NO_HANDLERS, *, default: Handler | None = None) -> None:
        self._handlers: dict[Topics, Handler] = {}
        self.default: Final = default
        for topic, handler in handlers.items():
            self.add(topic, handler)

    def __repr__(self) -> str:
        default = "" if self.default is None else f", default={self.default!r}"
        return f"Router({self._handlers!r}{default})"

    @property
    def handlers(self) -> Mapping[Topics, Handler]:
        """The handlers by topic, without the default."""
        return MappingProxyType(self._handlers)

    def on(self, *topics: Topics) -> Callable[[HandlerT], HandlerT]:
        """Return a decorator that adds a handler of these topics."""

        def decorate(handler: HandlerT) -> HandlerT:
            for topic in topics:
                self.add(topic, handler)
            return handler

        return decorate

    def add(self, topic: Topics, handler: Handler) -> None:
        """Add the handler of a topic.

        Raises:
            TypeError, ValueError: The topic is neither a name nor a pattern, or has a handler.
        """
        if not (isinstance(topic, re.Pattern) and isinstance(topic.pattern, str)):
            check_topics([topic])
        if topic in self._handlers:
            raise ValueError(f"{topic!r} has a handler already, {self._handlers[topic]!r}")
        self._handlers[topic] = handler

    def find(self, topic: str) -> Handler | None:
        """Return the handler of a topic. None: it has none."""
        if (handler := self._handlers.get(topic)) is not None:
            return handler
        for pattern, handler in self._handlers.items():
            if isinstance(pattern, re.Pattern) and pattern.match(topic):
                return handler
        return self.default

    def all(self) -> list[Handler]:
        """Return the handlers, with the default."""
        return [*self._handlers.values(), *(() if self.default is None else (self.default,))]

    def copy(self) -> Router:
        """Return a router with the same handlers."""
        return Router(self._handlers, default=self.default)

    @property
    def names(self) -> frozenset[str] | None:
        """All its topics. None: a pattern or the default may have others."""
        names = frozenset(topic for topic in self._handlers if isinstance(topic, str))
        return None if self.default is not None or len(names) < len(self._handlers) else names


class Handlers:
    """The application's handlers of one run.

    Raises:
        TypeError, ValueError: There is none, or one is no function of so many arguments.
    """

    def __init__(
        self,
        given: object,
        output_count: int,
        middleware: object = (),
        *,
        takes_lists: bool = False,
    ) -> None:
        if isinstance(given, Mapping):
            given = Router(given)
        # A copy: the application may change its own while `run` is active.
        self._router = given.copy() if isinstance(given, Router) else None
        self._handlers: list[Any] = [given] if self._router is None else self._router.all()
        if not self._handlers:
            raise ValueError(f"handler must have at least one handler, not {given!r}")
        self._takes_lists = takes_lists
        self._number_of = cache(self._find)
        self._of_records: list[Any] = []
        for handler in self._handlers:
            of_records = with_values(handler, output_count, takes_lists=takes_lists)
            check_handler(of_records, 1 + output_count)
            self._of_records.append(of_records)
        self._middleware = _checked(middleware)

    def _find(self, topic: str) -> int | None:
        """Return the number of the handler of a topic. None: it has none."""
        found = None if self._router is None else self._router.find(topic)
        numbers = (number for number, each in enumerate(self._handlers) if each is found)
        return next(numbers, None)

    def topics_to_subscribe(self, known: Collection[str], *, is_subscribed: bool) -> frozenset[str]:
        """Return the topics of the handlers, if nothing is subscribed or assigned.

        Raises:
            IllegalStateError: They are not known.
            ValueError: A known topic has no handler.
        """
        router = self._router
        if router is None:
            return frozenset()
        if not is_subscribed:
            if router.names is None:
                raise IllegalStateError(
                    "Not subscribed to any topics: run() subscribes to the topics of its handlers "
                    "only if they are names, without patterns and a default. Call subscribe() first"
                )
            return router.names
        if missing := sorted(topic for topic in known if router.find(topic) is None):
            raise ValueError(
                f"handler must have handlers for all topics that are read, but has none for "
                f"{', '.join(missing)}. For all other topics, pass Router(..., default=handler)"
            )
        return frozenset()

    def policy(self, retry: Retry) -> Retry:
        """Return the policy for errors of the application and for those raised here."""
        is_direct = self._router is None and all(map(is_async_callable, self._handlers))
        stop = () if is_direct else (NoHandlerError,)
        is_typed = any(map(operator.is_not, self._of_records, self._handlers))
        dead = (InvalidValueError,) if is_typed else ()
        if not (stop or dead):
            return retry
        return replace(
            retry, stop=(*kinds_of(retry.stop), *stop), dead=(*kinds_of(retry.dead), *dead)
        )

    def compose(self, threads: HandlerThreads) -> Call:
        """Return the one call. A single coroutine function is called directly."""
        call = self._routed(threads)
        for middleware in reversed(self._middleware):
            call = _around(middleware, call)
        return call

    def _routed(self, threads: HandlerThreads) -> Call:
        calls = [
            each if is_async_callable(each) else threads.call_of(each) for each in self._of_records
        ]
        if self._router is None:
            return calls[0]
        number_of = self._number_of

        def call_of(topic: str) -> Call:
            if (number := number_of(topic)) is None:
                raise NoHandlerError(
                    f"a record of {topic!r} was read, but run() has no handler for this topic: add "
                    "one, or use Router(..., default=handler)"
                )
            return calls[number]

        def call(record: AnyRecord, *outputs: object) -> Awaitable[Any]:
            return call_of(record.topic)(record, *outputs)

        def call_with_list(records: Sequence[AnyRecord], *outputs: object) -> Awaitable[Any]:
            return call_of(records[0].topic)(records, *outputs)

        return call_with_list if self._takes_lists else call

    def lists(self) -> ListOf | None:
        """Return a function that returns the same for records that may share a list."""
        number_of = self._number_of
        if self._router is None or not self._takes_lists:
            return None
        return lambda record: number_of(record.topic)


def kinds_of(errors: Errors) -> tuple[type[BaseException], ...]:
    return errors if isinstance(errors, tuple) else (errors,)


def _checked(middleware: object) -> Sequence[Middleware]:
    if not is_list(middleware):
        raise TypeError(f"middleware must be a list of async def functions, not {middleware!r}")
    functions: tuple[Any, ...] = tuple(middleware)
    for each in functions:
        if not is_async_callable(each):
            raise TypeError(
                "middleware must be async def functions that take a record and call_next, not "
                f"{each!r}"
            )
        try:
            inspect.signature(each).bind(None, None)
        except TypeError as error:
            raise TypeError(
                f"middleware must take a record and call_next, but {each!r} does not: {error}"
            ) from error
    return functions


def _around(middleware: Middleware, call: Call) -> Call:
    async def call_around(given: object, *outputs: object) -> None:
        if outputs:
            await middleware(given, lambda given: call(given, *outputs))
        else:
            await middleware(given, call)

    return call_around
