"""Rules: the requests that they match, how often they apply, and their actions.

    broker.on("Fetch", topic="orders").fail(NotLeaderForPartitionError, times=2)
           └─ Match ─────────────────┘ └─ Action ────────────────────┘

All of this runs on the broker's loop.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Container, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

from aiokafka_lite import _compat
from aiokafka_lite._compat import Self
from aiokafka_lite.broker import refusals
from aiokafka_lite.broker.cluster import ClusterNode
from aiokafka_lite.broker.handlers.base import HANDLERS, RequestContext
from aiokafka_lite.broker.network.dispatcher import RequestWork, ServedConnection
from aiokafka_lite.broker.share.sessions import ShareSessionKey
from aiokafka_lite.errors import BrokerResponseError
from aiokafka_lite.protocol.messages.fetch import FetchRequest
from aiokafka_lite.protocol.messages.metadata import ApiVersionsRequest
from aiokafka_lite.protocol.messages.share import ShareFetchRequest
from aiokafka_lite.protocol.registry import API_NAMES
from aiokafka_lite.protocol.schema import Request, Response

Error: TypeAlias = type[BrokerResponseError] | BrokerResponseError | int
"""An error class, an error whose text is sent if the response has a field for it, or a code."""

When: TypeAlias = Callable[[RequestContext, Request[Response]], bool]
ConnectionFault: TypeAlias = Callable[[ServedConnection], None]


def topic_names(context: RequestContext) -> refusals.TopicName:
    def name_of(topic_id: bytes) -> str | None:
        topic = context.cluster.topic_by_id(topic_id)
        return None if topic is None else topic.name

    return name_of


# --- Matches ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Match:
    """The requests that a rule applies to. None matches all. See `Broker.on` for the fields."""

    api_key: int | None = None
    node: int | None = None
    client_id: str | Container[str] | None = None
    peer: str | None = None
    version: int | Container[int] | None = None
    topic: str | Container[str] | None = None
    partition: int | Container[int] | None = None
    when: When | None = None

    def check(self) -> None:
        """Raise ValueError if no request can match."""
        if self.api_key is None:
            return
        api, entry = API_NAMES[self.api_key], HANDLERS[self.api_key]
        versions = range(entry.request.min_version, entry.request.max_version + 1)
        matching = [each for each in versions if _is_one_of(self.version, each)]
        # ApiVersions is answered in any version.
        if not matching and entry.request is not ApiVersionsRequest:
            raise ValueError(
                f"this broker supports {api} versions {versions[0]} to {versions[-1]}, so no "
                f"request would ever match version={self.version!r}"
            )
        if self.is_about_partitions and not any(
            refusals.names_topics(entry.request, each) for each in matching
        ):
            raise ValueError(
                f"{api} requests do not name topics, so topic= and partition= would never match"
            )

    def covers(self, work: RequestWork) -> bool:
        context, request = work.context, work.request
        return (
            (self.api_key is None or self.api_key == request.api_key)
            and (self.node is None or self.node == context.node.id)
            and (self.peer is None or self.peer == work.processor.peer)
            and _is_one_of(self.client_id, context.client_id)
            and _is_one_of(self.version, context.api_version)
            and (not self.is_about_partitions or self._covers_any_partition(work))
            and (self.when is None or self.when(context, request))
        )

    @property
    def is_about_partitions(self) -> bool:
        return self.topic is not None or self.partition is not None

    def concerns(self, topic: str | None, partition: int | None) -> bool:
        """Return whether a partition matches. Without one only the topic's name counts."""
        return _is_one_of(self.topic, topic) and (
            partition is None or _is_one_of(self.partition, partition)
        )

    def _covers_any_partition(self, work: RequestWork) -> bool:
        context = work.context
        topic_name = topic_names(context)
        named = refusals.named_partitions(work.request, context.api_version, topic_name)
        # A request of a fetch session contains only changed partitions.
        for asked, index in _session_partitions(context.node, work.request):
            named.append((topic_name(asked) if isinstance(asked, bytes) else asked, index))
        return any(self.concerns(*each) for each in named)


def _session_partitions(
    node: ClusterNode, request: Request[Response]
) -> Collection[tuple[str | bytes, int]]:
    """Return the partitions that a request asks for because its session has them."""
    if isinstance(request, FetchRequest):
        return node.fetch_sessions.keys_of(request.session_id)
    if isinstance(request, ShareFetchRequest):
        return node.share_sessions.keys_of(
            ShareSessionKey(request.group_id or "", request.member_id or "")
        )
    return ()


def _is_one_of(wanted: object, value: str | int | None) -> bool:
    if wanted is None:
        return True
    if isinstance(wanted, str | int) or not isinstance(wanted, Container):
        return wanted == value
    return value in wanted


@dataclass(frozen=True)
class ConnectionMatch:
    """The connections that a rule applies to. None matches all. See `Broker.on_connect`."""

    node: int | None = None
    when: Callable[[str], bool] | None = None

    def covers(self, connection: ServedConnection, node_id: int) -> bool:
        return (self.node is None or self.node == node_id) and (
            self.when is None or self.when(connection.peer)
        )


# --- Actions and rules ------------------------------------------------------------------------
class Action(ABC):
    """The effect of a rule on each of its requests."""

    rule: Rule  # the rule, which sets this attribute before any call
    # The one API that the action can change, or None for all.
    only: ClassVar[type[Request[Response]] | None] = None

    def covers(self, work: RequestWork) -> bool:
        """Return whether the action can change a request that the rule matches."""
        return True

    @abstractmethod
    def handle(self, work: RequestWork, go_on: Callable[[], None]) -> None:
        """Act on a request before it is handled. `go_on` handles it."""

    @abstractmethod
    def answer(self, work: RequestWork, response: Response | None) -> bool:
        """Act on the response. Return False to send it unchanged: the rule has not applied."""


class RequestAction(Action):
    """An action on requests. The responses are not changed."""

    def answer(self, work: RequestWork, response: Response | None) -> bool:
        work.processor.send(work, response)
        return True


class AnswerAction(Action):
    """An action on responses. The requests are handled as usual."""

    def handle(self, work: RequestWork, go_on: Callable[[], None]) -> None:
        go_on()


class Removable(ABC):
    """A rule that ends with its `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.remove()

    @abstractmethod
    def remove(self) -> None:
        """End the rule. Idempotent."""


class AnyRule(Removable):
    """A fault of requests or connections."""

    def __init__(self, faults: Faults, times: int | None) -> None:
        if times is not None and times < 1:
            raise ValueError(f"times must be at least 1, or None for no limit, not {times}")
        self.hits = 0  # the number of requests or connections that it has applied to
        self.number: Final = faults.next_number()
        self.faults: Final = faults
        self._left = times
        self._is_removed = False

    @property
    def is_over(self) -> bool:
        return self._is_removed or self._left == 0

    def remove(self) -> None:
        """End the rule. The broker handles the requests that it holds. Idempotent."""
        self._is_removed = True
        self.faults.drop(self)

    def take(self) -> None:
        """Count one of the `times` as used."""
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self.faults.drop(self)

    def give_back(self) -> None:
        """Undo `take`, because the action has not applied."""
        if self._left is not None:
            self._left += 1
            if not self._is_removed:
                self.faults.put(self)


class ConnectionRule(AnyRule):
    """A fault of connections. Silenced ones stay silent after its end."""

    def __init__(
        self, faults: Faults, match: ConnectionMatch, apply: ConnectionFault, times: int | None
    ) -> None:
        super().__init__(faults, times)
        self.match: Final = match
        self.apply: Final = apply


class Rule(AnyRule):
    """A fault of requests."""

    def __init__(self, faults: Faults, match: Match, action: Action, times: int | None) -> None:
        super().__init__(faults, times)
        only, api_key = action.only, match.api_key
        if only is not None and api_key is not None and api_key != only.api_key:
            raise ValueError(
                f"this fault is only for {API_NAMES[only.api_key]} requests, so it would never "
                f"apply to {API_NAMES[api_key]}"
            )
        self.match: Final = match
        self.action: Final = action
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        action.rule = self

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.action} on {self.match}: {self.hits} hits>"

    def remove(self) -> None:
        super().remove()
        if isinstance(self.action, Holding):
            self.action.release()

    def release(self) -> None:
        """Handle the requests that `hold()` holds, in the order of arrival, and end the rule."""
        if isinstance(self.action, Holding):
            self.remove()

    async def reached(self, hits: int = 1, timeout_s: float | None = 10.0) -> None:
        """Wait until the rule has applied to `hits` requests.

        Raises:
            TimeoutError: It has applied to fewer within `timeout_s`.
        """
        if self.hits >= hits:
            return
        entry = (hits, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        try:
            async with _compat.timeout(timeout_s):
                await entry[1]
        except asyncio.TimeoutError:
            raise TimeoutError(
                f"{self!r} has not reached {hits} hits within {timeout_s} s"
            ) from None
        finally:
            self._waiting.remove(entry)

    # The reactor's side

    def note_hit(self) -> None:
        self.hits += 1
        for wanted, future in self._waiting:
            if self.hits >= wanted and not future.done():
                future.set_result(None)

    def handle(self, work: RequestWork, go_on: Callable[[], None]) -> None:
        if not isinstance(self.action, AnswerAction):
            self.note_hit()
        self.action.handle(work, go_on)

    def answer(self, work: RequestWork, response: Response | None) -> None:
        is_applied = self.action.answer(work, response)
        if not is_applied:
            self.give_back()
            work.processor.send(work, response)
        elif isinstance(self.action, AnswerAction):
            self.note_hit()


class Holding(RequestAction):
    def __init__(self) -> None:
        self._held: list[Callable[[], None]] = []

    def handle(self, work: RequestWork, go_on: Callable[[], None]) -> None:
        self._held.append(go_on)

    def release(self) -> None:
        held, self._held = self._held, []
        for go_on in held:
            go_on()

    def forget(self) -> None:
        self._held.clear()

    def __repr__(self) -> str:
        return f"hold (of {len(self._held)} requests)"


# --- All rules of a broker --------------------------------------------------------------------
class Faults:
    """All rules of a broker, in order. Written only from its loop."""

    def __init__(self) -> None:
        self.is_armed = self.is_armed_for_connections = False
        self._rules: list[AnyRule] = []
        self._numbers = itertools.count(1)
        self._timers: dict[asyncio.TimerHandle, None] = {}

    @property
    def rules(self) -> Sequence[Rule]:
        """The rules for requests that have not ended, in order."""
        return tuple(rule for rule in self._rules if isinstance(rule, Rule))

    @property
    def connection_rules(self) -> Sequence[ConnectionRule]:
        """The rules for connections that have not ended, in order."""
        return tuple(rule for rule in self._rules if isinstance(rule, ConnectionRule))

    def next_number(self) -> int:
        return next(self._numbers)

    def clear(self) -> None:
        """End all rules. The broker handles the requests that they hold."""
        for rule in tuple(self._rules):
            rule.remove()

    def close(self) -> None:
        """Drop all rules, and the requests that they delay or hold, because the broker stops."""
        for rule in self.rules:
            if isinstance(rule.action, Holding):
                rule.action.forget()
        self.clear()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def put(self, rule: AnyRule) -> None:
        """Add a rule at the position of its number. Idempotent."""
        if rule not in self._rules:
            self._rules.append(rule)
            self._rules.sort(key=lambda each: each.number)
        self._arm()

    def drop(self, rule: AnyRule) -> None:
        if rule in self._rules:
            self._rules.remove(rule)
        self._arm()

    def _arm(self) -> None:
        self.is_armed = bool(self.rules)
        self.is_armed_for_connections = bool(self.connection_rules)

    def handle(self, work: RequestWork, go_on: Callable[[], None]) -> None:
        for rule in self.rules:
            if rule.match.covers(work) and rule.action.covers(work):
                rule.take()
                work.rule = rule
                rule.handle(work, go_on)
                return
        go_on()

    def connected(self, connection: ServedConnection, node_id: int) -> None:
        for rule in self.connection_rules:
            if rule.match.covers(connection, node_id):
                rule.take()
                rule.hits += 1
                rule.apply(connection)
                return

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Call `callback` after `delay_s`, unless the broker stops before."""

        def ring() -> None:
            del self._timers[timer]
            callback()

        timer = asyncio.get_running_loop().call_later(delay_s, ring)
        self._timers[timer] = None
