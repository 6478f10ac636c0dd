"""Rules and the log of requests, for callers in other threads than the broker's."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TypeVar

from aiokafka_lite._compat import Self
from aiokafka_lite.broker.faults.connections import ConnectionRule
from aiokafka_lite.broker.faults.rules import Api, Rule
from aiokafka_lite.errors import BrokerResponseError

if TYPE_CHECKING:
    from aiokafka_lite.broker.network.request_log import SeenRequest
    from aiokafka_lite.broker.server import Broker

T = TypeVar("T")


class BrokersThread(Protocol):
    """What is needed of `BrokerThread`."""

    @property
    def broker(self) -> Broker:
        """The broker, which belongs to the other thread."""

    def call(self, function: Callable[[Broker], T]) -> T:
        """Call a function in the broker's thread."""

    def wait(self, name: str, coro: Coroutine[object, None, T]) -> T:
        """Await in the broker's thread what may take long."""


class _ThreadsRule:
    """What rules for requests and for connections have in common."""

    def __init__(self, rule: Rule | ConnectionRule, thread: BrokersThread) -> None:
        self._rule = rule
        self._thread = thread

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()

    def __repr__(self) -> str:
        return repr(self._rule)

    @property
    def hits(self) -> int:
        """How often it has applied."""
        return self._rule.hits

    @property
    def is_over(self) -> bool:
        """It applies no more."""
        return self._rule.is_over

    def remove(self) -> None:
        """End the rule; requests that are held go on. Idempotent."""
        self._thread.call(lambda broker: self._rule.remove())


class ThreadRule(_ThreadsRule):
    """A `Rule`, used from another thread than the broker's."""

    def __init__(self, rule: Rule, thread: BrokersThread) -> None:
        super().__init__(rule, thread)
        self._request_rule = rule

    def release(self) -> None:
        """Handle the requests that `hold()` holds; see `Rule.release`."""
        self._thread.call(lambda broker: self._request_rule.release())

    def reached(self, hits: int = 1, timeout_s: float | None = 10.0) -> None:
        """Wait until the rule has applied to so many requests.

        Raises:
            TimeoutError: It has not within `timeout_s`.
            RuntimeError: Called in a coroutine; use `asyncio.to_thread`.
        """
        self._thread.wait("reached", self._request_rule.reached(hits, timeout_s))


class ThreadConnectionRule(_ThreadsRule):
    """A `ConnectionRule`, used from another thread than the broker's."""


class ThreadRequestLog:
    """A `RequestLog`, looked at from another thread than the broker's."""

    def __init__(self, thread: BrokersThread) -> None:
        self._thread = thread

    def __len__(self) -> int:
        return self._thread.call(lambda broker: len(broker.requests))

    def __iter__(self) -> Iterator[SeenRequest]:
        """Iterate over the requests that are kept, the oldest first."""
        return iter(self._thread.call(lambda broker: list(broker.requests)))

    @property
    def total(self) -> int:
        """How many requests there were, kept or not."""
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
        """Return requests that are kept, the oldest first; see `RequestLog.of`."""
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
        """Wait until there are so many such requests; see `RequestLog.wait_for`.

        Raises:
            TimeoutError: There were fewer within `timeout_s`.
            RuntimeError: Called in a coroutine; use `asyncio.to_thread`.
        """
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
        return self._thread.wait("requests.wait_for", waiting)

    def clear(self) -> None:
        """Forget the requests; `total` goes on."""
        self._thread.call(lambda broker: broker.requests.clear())
