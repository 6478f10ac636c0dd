"""Rules and the request log for threads other than the broker's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterator
from typing import Concatenate, Generic, ParamSpec, Protocol, TypeVar

from aiokafka_lite.broker.faults.rules import AnyRule, ConnectionRule, Removable, Rule
from aiokafka_lite.broker.network.request_log import RequestLog, SeenRequest

T = TypeVar("T")
P = ParamSpec("P")
TargetT = TypeVar("TargetT")
TargetT_co = TypeVar("TargetT_co", covariant=True)
RuleT = TypeVar("RuleT", bound=AnyRule)


class Remote(Protocol[TargetT_co]):
    """Calls functions with its target, in the broker's thread. `path` is its name in errors."""

    path: str

    def call(self, function: Callable[[TargetT_co], T]) -> T: ...

    def wait(self, name: str, function: Callable[[TargetT_co], Coroutine[object, None, T]]) -> T:
        """Run a coroutine function. Raise RuntimeError if that would block an event loop."""


def called(
    method: Callable[Concatenate[TargetT, P], T],
) -> Callable[Concatenate[Remote[TargetT], P], T]:
    """Return the method of a `Remote` that calls this method of its target."""

    @functools.wraps(method)
    def call(self: Remote[TargetT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.call(lambda target: method(target, *args, **kwargs))

    return call


def waited(
    method: Callable[Concatenate[TargetT, P], Coroutine[object, None, T]],
) -> Callable[Concatenate[Remote[TargetT], P], T]:
    """Return the method of a `Remote` that waits for this coroutine method of its target."""

    @functools.wraps(method)
    def wait(self: Remote[TargetT], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.wait(
            f"{self.path}.{method.__name__}", lambda target: method(target, *args, **kwargs)
        )

    return wait


class BrokersObject(Generic[TargetT]):
    """An object of the broker. `Remote` for it."""

    def __init__(self, target: TargetT, thread: Remote[object]) -> None:
        self._target = target
        self._thread = thread

    def call(self, function: Callable[[TargetT], T]) -> T:
        return self._thread.call(lambda broker: function(self._target))

    def wait(self, name: str, function: Callable[[TargetT], Coroutine[object, None, T]]) -> T:
        return self._thread.wait(name, lambda broker: function(self._target))


class _ThreadsRule(BrokersObject[RuleT], Removable):
    path = "rule"

    def __repr__(self) -> str:
        return repr(self._target)

    @property
    def hits(self) -> int:
        """The number of requests or connections that the rule has applied to."""
        return self._target.hits

    @property
    def is_over(self) -> bool:
        """Whether the rule has ended."""
        return self._target.is_over

    def remove(self) -> None:
        """End the rule. The broker handles the requests that it holds. Idempotent."""
        self.call(lambda rule: rule.remove())


class ThreadRule(_ThreadsRule[Rule]):
    release = called(Rule.release)
    reached = waited(Rule.reached)


class ThreadConnectionRule(_ThreadsRule[ConnectionRule]):
    """A `ConnectionRule` for threads other than the broker's."""


class ThreadRequestLog(BrokersObject[RequestLog]):
    path = "broker.requests"

    def __len__(self) -> int:
        return self.call(len)

    def __iter__(self) -> Iterator[SeenRequest]:
        return iter(self.call(list))

    @property
    def total(self) -> int:
        """The number of all requests so far."""
        return self.call(lambda requests: requests.total)

    of = called(RequestLog.of)
    wait_for = waited(RequestLog.wait_for)
    clear = called(RequestLog.clear)
