"""Rules and the request log for threads other than the broker's."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Generic, Protocol, TypeVar

from aiokafka_lite.broker.faults.connections import ConnectionRule, Removable
from aiokafka_lite.broker.faults.rules import Rule
from aiokafka_lite.broker.handlers.registry import Api
from aiokafka_lite.broker.network.request_log import RequestLog, SeenRequest
from aiokafka_lite.errors import BrokerResponseError

T = TypeVar("T")
RuleT = TypeVar("RuleT", bound=Rule | ConnectionRule)


class LoggingBroker(Protocol):
    @property
    def requests(self) -> RequestLog: ...


class BrokersThread(Protocol):
    """The methods of `BrokerThread` that are used here."""

    @property
    def broker(self) -> LoggingBroker: ...

    def call(self, function: Callable[[LoggingBroker], T]) -> T: ...

    def wait(self, name: str, coro: Coroutine[object, None, T]) -> T: ...


class _ThreadsRule(Removable, Generic[RuleT]):
    def __init__(self, rule: RuleT, thread: BrokersThread) -> None:
        self._rule = rule
        self._thread = thread

    def __repr__(self) -> str:
        return repr(self._rule)

    @property
    def hits(self) -> int:
        """The number of requests or connections that the rule has applied to."""
        return self._rule.hits

    @property
    def is_over(self) -> bool:
        """Whether the rule has ended."""
        return self._rule.is_over

    def remove(self) -> None:
        """End the rule. The broker handles the requests that it holds. Idempotent."""
        self._thread.call(lambda broker: self._rule.remove())


class ThreadRule(_ThreadsRule[Rule]):
    """A `Rule` for threads other than the broker's."""

    def release(self) -> None:
        """Handle the requests that `hold()` holds. See `Rule.release`."""
        self._thread.call(lambda broker: self._rule.release())

    def reached(self, hits: int = 1, timeout_s: float | None = 10.0) -> None:
        """Wait until the rule has applied to `hits` requests. See `Rule.reached`."""
        self._thread.wait("rule.reached", self._rule.reached(hits, timeout_s))


class ThreadConnectionRule(_ThreadsRule[ConnectionRule]):
    """A `ConnectionRule` for threads other than the broker's."""


class ThreadRequestLog:
    """A `RequestLog` for threads other than the broker's."""

    def __init__(self, thread: BrokersThread) -> None:
        self._thread = thread

    def __len__(self) -> int:
        return self._thread.call(lambda broker: len(broker.requests))

    def __iter__(self) -> Iterator[SeenRequest]:
        """Iterate over the requests in the log, the oldest first."""
        return iter(self._thread.call(lambda broker: list(broker.requests)))

    @property
    def total(self) -> int:
        """The number of all requests so far."""
        return self._thread.call(lambda broker: broker.requests.total)

    def of(
        self,
        api: Api = None,
        *,
        since: int = 0,
        node: int | None = None,
        client_id: str | None = None,
        error: type[BrokerResponseError] | int | None = None,
        when: Callable[[SeenRequest], bool] | None = None,
    ) -> list[SeenRequest]:
        """Return the matching requests in the log, the oldest first. See `RequestLog.of`."""
        return self._thread.call(
            lambda broker: broker.requests.of(
                api, since=since, node=node, client_id=client_id, error=error, when=when
            )
        )

    def wait_for(
        self,
        api: Api = None,
        *,
        count: int = 1,
        timeout_s: float | None = 10.0,
        since: int = 0,
        node: int | None = None,
        client_id: str | None = None,
        error: type[BrokerResponseError] | int | None = None,
        when: Callable[[SeenRequest], bool] | None = None,
    ) -> list[SeenRequest]:
        """Wait until the log has `count` matching requests. See `RequestLog.wait_for`."""
        waiting = self._thread.broker.requests.wait_for(
            api,
            count=count,
            timeout_s=timeout_s,
            since=since,
            node=node,
            client_id=client_id,
            error=error,
            when=when,
        )
        return self._thread.wait("broker.requests.wait_for", waiting)

    def clear(self) -> None:
        """Remove all requests from the log. `total` keeps counting."""
        self._thread.call(lambda broker: broker.requests.clear())
