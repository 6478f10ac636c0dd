"""`broker.on(...)` and `broker.on_connect(...)`, and the faults that they offer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Final, Generic, TypeVar

from aiokafka_lite._arguments import (
    PLAIN_FUNCTION,
    Kind,
    are_ints,
    checks_arguments,
    is_int,
    one_of,
)
from aiokafka_lite.broker.faults import actions
from aiokafka_lite.broker.faults.actions import Damage, OnFrame, Replacement, RewriteBatches
from aiokafka_lite.broker.faults.rules import (
    Action,
    ConnectionFault,
    ConnectionMatch,
    Error,
    Holding,
    Match,
    When,
)
from aiokafka_lite.broker.handlers.base import Api, api_key_of
from aiokafka_lite.broker.refusals import Place
from aiokafka_lite.errors import UnknownTopicOrPartitionError
from aiokafka_lite.protocol.schema import Response

RuleT_co = TypeVar("RuleT_co", covariant=True)
NumT = TypeVar("NumT", int, float)

Leaders = Mapping[tuple[str, int], tuple[int, int]]


_KINDS: Final[Mapping[str, Kind]] = {
    "Place": one_of("answer", "topic", "partition"),
    "Replacement": Kind(
        "a Response, or a plain function that returns a Response or None",
        lambda given: isinstance(given, Response) or PLAIN_FUNCTION.is_right(given),
    ),
    "RewriteBatches": PLAIN_FUNCTION,
    "OnFrame": PLAIN_FUNCTION,
    "Leaders": Kind(
        "a dict that maps (topic, partition) to (node id, leader epoch)",
        lambda given: isinstance(given, Mapping),
    ),
    "Sequence[int]": Kind("a list of positions", are_ints),
}


@checks_arguments(_KINDS)
class RuleBuilder(Generic[RuleT_co]):
    """The fault of the requests that `on` matches.

    Each method adds a rule, which applies at once and `times` times. None is without a limit.
    Leaving a `with` block of the rule removes it.
    """

    def __init__(
        self, put: Callable[[Action, int | None], RuleT_co], leaders: Callable[[], Leaders]
    ) -> None:
        self._put = put
        self._leaders = leaders

    # Instead of handling

    def fail(self, error: Error, times: int | None = 1, *, at: Place | None = None) -> RuleT_co:
        """Respond with an error, without handling the request.

        If `on` names topics or partitions, only these get the error, and the broker handles the
        rest of the request. A failed Fetch is answered at once.

        Args:
            error: An error class of `aiokafka_lite.errors`, an instance (its text is sent if the
                response has a field for it), or any code.
            at: The place of the code, if it differs from the API's usual one: the "answer" itself,
                each "topic" (or group, or key), or each "partition". The broker closes the
                connection if the response has no error code there.

        Raises:
            TypeError: `error` is an error that brokers do not respond with, such as KeyError.
            ValueError: The code has more than 16 bits, or `at` is none of the three places.
        """
        return self._put(actions.Fail(error, at), times)

    def answer(self, replacement: Replacement, times: int | None = 1) -> RuleT_co:
        """Respond with another response, or with that of a plain function of (context, request).

        If the function returns None, the request is handled as usual.
        """
        return self._put(actions.TakeOver(replacement), times)

    def delay(self, delay_s: float, times: int | None = 1, *, handled: bool = False) -> RuleT_co:
        """Handle requests `delay_s` later. Further requests of their connections wait.

        `handled` handles the requests at once, and delays the responses only.
        """
        _at_least(0, "delay_s", delay_s)
        return self._put(actions.Delay(handled, delay_s), times)

    def hold(self, times: int | None = None) -> RuleT_co:
        """Hold requests until `release()` of the rule, or its end."""
        return self._put(Holding(), times)

    def silence(self, times: int | None = 1, *, handled: bool = False) -> RuleT_co:
        """Send no response. The connections stay open, and are not served any more.

        `handled` handles the requests, and omits the responses only.
        """
        return self._put(actions.Silence(is_handled=handled), times)

    def disconnect(
        self,
        times: int | None = 1,
        *,
        handled: bool = False,
        reset: bool = False,
        after_bytes: int | None = None,
    ) -> RuleT_co:
        """Close the requests' connections without a response.

        Args:
            handled: Handle the requests first.
            reset: Close with a TCP reset.
            after_bytes: Send this many bytes of the response first.
        """
        _at_least(0, "after_bytes", after_bytes or 0)
        is_handled = handled or after_bytes is not None
        return self._put(actions.Disconnect(is_handled, reset, after_bytes), times)

    # Other answers

    def corrupt(
        self, what: Damage, times: int | None = 1, *, count: int = 1, by: int = 1
    ) -> RuleT_co:
        """Damage responses.

        "crc" breaks the checksum of the first batch of each partition in a Fetch response.
        "records" shortens the record set in that batch. Both skip responses without records.
        "bytes" inverts `count` random bytes after the correlation id. "length" announces a frame
        `by` bytes longer than it is.
        """
        if what == "crc":
            return self._put(actions.RewriteRecords(actions.flip_crc), times)
        if what == "records":
            return self._put(actions.RewriteRecords(actions.cut_records), times)
        if what == "bytes":
            return self._put(actions.FrameHook(actions.flip_bytes(count)), times)
        if what == "length":
            return self._put(actions.FrameHook(actions.misstate_length(by)), times)
        raise ValueError(f"what= must be 'crc', 'records', 'bytes' or 'length', not {what!r}")

    def rewrite_batch(self, rewrite: RewriteBatches, times: int | None = 1) -> RuleT_co:
        """Replace record sets of Fetch responses by `rewrite(topic-partition, record set)`.

        Responses without records do not count.
        """
        return self._put(actions.RewriteRecords(rewrite), times)

    def on_frame(self, hook: OnFrame, times: int | None = 1) -> RuleT_co:
        """Pass the bytes of responses through a function.

        Args:
            hook: A function of (context, frame) that returns the bytes to send, `faults.DROP` to
                omit the response, or `faults.CLOSE` to close the connection. A frame begins with
                its size.
        """
        return self._put(actions.FrameHook(hook), times)

    def wrong_correlation_id(self, times: int | None = 1) -> RuleT_co:
        """Respond with the correlation id of a request that was never sent."""
        return self._put(actions.FrameHook(actions.wrong_correlation_id), times)

    def stale_metadata(self, leaders: Leaders | None = None, times: int | None = None) -> RuleT_co:
        """Respond to Metadata with earlier leaders and epochs. Later topics are unknown.

        Args:
            leaders: {(topic, partition): (node id, leader epoch)}, by default those of this moment.
        """
        seen = self._leaders() if leaders is None else leaders
        unknown = UnknownTopicOrPartitionError.errno
        return self._put(actions.AnswerStaleMetadata(dict(seen), unknown), times)

    def throttle(self, throttle_s: float, times: int | None = 1, *, mute: bool = False) -> RuleT_co:
        """Report a throttle time in responses, as if the client had used up a quota.

        The requests are handled. If a Fetch exceeds a quota, Kafka responds without records:
        `answer(FetchResponse(throttle_time_ms=…))` does that.

        Args:
            mute: Also read no request of the connection for this time, like Kafka (KIP-219). For a
                producer with acks=0 this is the only effect.
        """
        _at_least(0, "throttle_s", throttle_s)
        return self._put(actions.Throttle(throttle_s, is_muting=mute), times)

    # Other ways to send them

    def split(
        self,
        pieces: int | None = None,
        times: int | None = 1,
        *,
        at: Sequence[int] | None = None,
        piece_bytes: int | None = None,
        pause_s: float = 0.0,
    ) -> RuleT_co:
        """Send responses in pieces.

        Args:
            pieces: The number of pieces.
            at: Instead of `pieces`, the positions to split at (0 to 4 are the frame's size).
            piece_bytes: Instead of both, the size of a piece, 1 by default.
            pause_s: The pause between two pieces.
        """
        if at is not None:
            cut = actions.cut_at(at)
        elif pieces is not None:
            cut = actions.cut_into(_at_least(1, "pieces", pieces))
        else:
            cut = actions.cut_every(_at_least(1, "piece_bytes", piece_bytes or 1))
        return self._put(actions.SendInPieces(cut, pause_s), times)

    def trickle(self, bytes_per_s: int, times: int | None = 1) -> RuleT_co:
        """Send responses slowly, a piece every 50 ms."""
        _at_least(1, "bytes_per_s", bytes_per_s)
        interval_s = max(actions.TRICKLE_INTERVAL_S, 1 / bytes_per_s)
        size = max(1, round(bytes_per_s * interval_s))
        return self._put(actions.SendInPieces(actions.cut_every(size), interval_s), times)


def _at_least(lowest: int, name: str, value: NumT) -> NumT:
    if value < lowest:
        raise ValueError(f"{name} must be at least {lowest}, not {value}")
    return value


@checks_arguments()
class ConnectionRuleBuilder(Generic[RuleT_co]):
    """The fault of the connections that `on_connect` matches."""

    def __init__(self, put: Callable[[ConnectionFault, int | None], RuleT_co]) -> None:
        self._put = put

    def refuse(self, times: int | None = 1) -> RuleT_co:
        """Reset connections as soon as they are accepted.

        To refuse connections at the port itself, stop the node (`stop_node`).
        """
        return self._put(lambda connection: connection.reset(), times)

    def silence(self, times: int | None = 1) -> RuleT_co:
        """Accept connections and send no response. They stay open until the broker stops."""
        return self._put(lambda connection: connection.mute(), times)

    def close_after(self, sent_bytes: int, times: int | None = 1) -> RuleT_co:
        """Close connections after `sent_bytes` bytes, in the middle of a response."""
        _at_least(0, "sent_bytes", sent_bytes)
        return self._put(lambda connection: connection.close_after(sent_bytes), times)


RuleT = TypeVar("RuleT")
ConnectionRuleT = TypeVar("ConnectionRuleT")


_MATCH_KINDS: Final[Mapping[str, Kind]] = {
    "When": PLAIN_FUNCTION,
    "int | Container[int]": Kind(
        "an int, or a list or range of ints",
        lambda given: (
            is_int(given) or (isinstance(given, Container) and not isinstance(given, str | bytes))
        ),
    ),
    "str | Container[str]": Kind(
        "a str, or a list of str",
        lambda given: isinstance(given, Container) and not isinstance(given, bytes),
    ),
}


@checks_arguments(_MATCH_KINDS)
class FaultMethods(ABC, Generic[RuleT, ConnectionRuleT]):
    """The methods of `Broker` and `BrokerThread` that add faults."""

    def on(
        self,
        api: Api = None,
        *,
        node: int | None = None,
        client_id: str | Container[str] | None = None,
        peer: str | None = None,
        version: int | Container[int] | None = None,
        topic: str | Container[str] | None = None,
        partition: int | Container[int] | None = None,
        when: When | None = None,
    ) -> RuleBuilder[RuleT]:
        """Match requests. The methods of the returned builder add a fault for them.

        ::

            broker.on("Fetch", topic="t").fail(NotLeaderForPartitionError, times=2)
            with broker.on(HeartbeatRequest, client_id="slow").silence():
                ...

        The first matching rule applies to a request, in the order in which they were added. Instead
        of a value, most arguments take a container of values: `version=range(13, 19)`.

        Args:
            api: A request's class, the API's name or its key. None is all.
            node: The id of the node that gets the request.
            client_id: A client id.
            peer: The client's address: "127.0.0.1:50123".
            version: A version.
            topic: A topic in the request or in its fetch session.
            partition: The same for partitions. With `topic`, of these topics only.
            when: A function of (context, request) that returns whether the request matches.

        Raises:
            ValueError: No request can match: the broker has no such API or version, or requests of
                the API name no topics.
        """
        match = Match(api_key_of(api), node, client_id, peer, version, topic, partition, when)
        match.check()
        return RuleBuilder(partial(self.put_rule, match), self.leaders_now)

    def on_connect(
        self, *, node: int | None = None, when: Callable[[str], bool] | None = None
    ) -> ConnectionRuleBuilder[ConnectionRuleT]:
        """Match new connections. The methods of the returned builder add a fault for them.

        Args:
            node: The id of the node that the client connects to.
            when: A function of the client's address, "host:port", that returns whether it matches.
        """
        return ConnectionRuleBuilder(partial(self.put_connection_rule, ConnectionMatch(node, when)))

    @abstractmethod
    def put_rule(self, match: Match, action: Action, times: int | None) -> RuleT: ...

    @abstractmethod
    def put_connection_rule(
        self, match: ConnectionMatch, fault: ConnectionFault, times: int | None
    ) -> ConnectionRuleT: ...

    @abstractmethod
    def leaders_now(self) -> Leaders: ...
