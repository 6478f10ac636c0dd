"""Builds the faults of `broker.on(...)`: what happens to the requests that it chose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from aiokafka_lite.broker.faults import answering
from aiokafka_lite.broker.faults.answering import Damage, OnFrame, RewriteBatches
from aiokafka_lite.broker.faults.handling import (
    Delay,
    Disconnect,
    Fail,
    Replacement,
    Silence,
    TakeOver,
)
from aiokafka_lite.broker.faults.refusals import Place
from aiokafka_lite.broker.faults.rules import Action, Error, Holding
from aiokafka_lite.errors import UnknownTopicOrPartitionError

RuleT_co = TypeVar("RuleT_co", covariant=True)

Leaders = Mapping[tuple[str, int], tuple[int, int]]


class RuleBuilder(Generic[RuleT_co]):
    """Requests that were chosen with `on`; its methods say what happens to them.

    Each makes a rule, which applies from then on, `times` times; None is for ever. A rule can be
    used in a `with`, at whose end it is removed. Requests beyond are served as usual.

    Args:
        put: Makes a rule of an action and adds it.
        leaders: Returns who leads now, and in which epoch, by (topic, partition).
    """

    def __init__(
        self, put: Callable[[Action, int | None], RuleT_co], leaders: Callable[[], Leaders]
    ) -> None:
        self._put = put
        self._leaders = leaders

    # Instead of handling

    def fail(self, error: Error, times: int | None = 1, *, at: Place | None = None) -> RuleT_co:
        """Refuse requests with an error; what is refused is not done.

        If `on` names topics or partitions, only these are refused, and the rest is served. A
        refused Fetch is answered at once.

        Args:
            error: An error class of `aiokafka_lite.errors`, an error of one (its text is sent
                where the API has room for it), or any code.
            at: Where the code goes, if not where that API usually has it: into the "answer"
                itself, to each "topic" (or group, or key), or to each "partition".

        Raises (in the broker, which then closes the connection):
            ValueError: The API has no error code there.
        """
        return self._put(Fail(error, at), times)

    def answer(self, replacement: Replacement, times: int | None = 1) -> RuleT_co:
        """Answer in the place of the broker.

        Args:
            replacement: A response, or a plain function of (context, request) that returns one,
                or None to handle the request as usual.
        """
        return self._put(TakeOver(replacement), times)

    def delay(self, delay_s: float, times: int | None = 1, *, handled: bool = False) -> RuleT_co:
        """Handle requests `delay_s` later; their connections serve no other request meanwhile.

        Args:
            handled: The requests are handled at once, only their answers are late.
        """
        if delay_s < 0:
            raise ValueError(f"delay_s must not be negative, not {delay_s}")
        return self._put(Delay(delay_s, is_handled=handled), times)

    def hold(self, times: int | None = None) -> RuleT_co:
        """Hold requests until the rule's `release()`, or its end."""
        return self._put(Holding(), times)

    def silence(self, times: int | None = 1, *, handled: bool = False) -> RuleT_co:
        """Never answer; the connections stay open, and serve nothing any more.

        Args:
            handled: The requests are carried out, only their answers are missing.
        """
        return self._put(Silence(is_handled=handled), times)

    def disconnect(
        self,
        times: int | None = 1,
        *,
        handled: bool = False,
        reset: bool = False,
        after_bytes: int | None = None,
    ) -> RuleT_co:
        """Close the connections that requests came on, without an answer.

        Args:
            handled: The requests are carried out before.
            reset: With a TCP reset instead of an orderly end.
            after_bytes: Of the answer, so many bytes are sent before.
        """
        if after_bytes is not None and after_bytes < 0:
            raise ValueError(f"after_bytes must not be negative, not {after_bytes}")
        action = Disconnect(is_handled=handled, is_reset=reset, after_bytes=after_bytes)
        return self._put(action, times)

    # Other answers

    def corrupt(
        self, what: Damage, times: int | None = 1, *, count: int = 1, by: int = 1
    ) -> RuleT_co:
        """Damage answers.

        Args:
            what: "crc" breaks the checksum of the first batch of each partition in an answer to
                Fetch; "records" cuts the record set in that batch (answers without records are
                not counted in either case); "bytes" inverts `count` bytes, at random, after the
                correlation id; "length" announces a frame `by` bytes longer than it is.
        """
        if what == "crc":
            return self._put(answering.RewriteRecords(answering.flip_crc), times)
        if what == "records":
            return self._put(answering.RewriteRecords(answering.cut_records), times)
        if what == "bytes":
            return self._put(answering.FrameHook(answering.flip_bytes(count)), times)
        if what == "length":
            return self._put(answering.FrameHook(answering.misstate_length(by)), times)
        raise ValueError(f"what must be crc, records, bytes or length, not {what!r}")

    def rewrite_batch(self, rewrite: RewriteBatches, times: int | None = 1) -> RuleT_co:
        """Replace record sets in answers to Fetch; answers without any are not counted.

        Args:
            rewrite: A function of (topic-partition, record set) that returns a record set.
        """
        return self._put(answering.RewriteRecords(rewrite), times)

    def on_frame(self, hook: OnFrame, times: int | None = 1) -> RuleT_co:
        """Pass the bytes of answers through a function.

        Args:
            hook: A function of (context, frame) that returns the bytes to send, `faults.DROP` to
                send none, or `faults.CLOSE`. Frames begin with their sizes.
        """
        return self._put(answering.FrameHook(hook), times)

    def wrong_correlation_id(self, times: int | None = 1) -> RuleT_co:
        """Answer with the correlation id of a request that was not sent."""
        return self._put(answering.FrameHook(answering.wrong_correlation_id), times)

    def stale_metadata(self, leaders: Leaders | None = None, times: int | None = None) -> RuleT_co:
        """Answer Metadata with the leaders and epochs from when the rule was made.

        Topics and partitions created since are not known.

        Args:
            leaders: These instead: {(topic, partition): (node id, leader epoch)}.
        """
        seen = self._leaders() if leaders is None else leaders
        unknown = UnknownTopicOrPartitionError.errno
        return self._put(answering.AnswerStaleMetadata(dict(seen), unknown), times)

    def throttle(self, throttle_s: float, times: int | None = 1, *, mute: bool = False) -> RuleT_co:
        """Say in answers that the client is throttled for so long, as if a quota were used up.

        What was asked is done and answered. Kafka's answer to a Fetch above a quota holds no
        records: `answer(FetchResponse(throttle_time_ms=…))` gives that one.

        Args:
            mute: Also read no request of the connection in that time, as Kafka does (KIP-219);
                a producer with acks=0, which gets no answer, notices nothing else.
        """
        if throttle_s < 0:
            raise ValueError(f"throttle_s must not be negative, not {throttle_s}")
        return self._put(answering.Throttle(throttle_s, is_muting=mute), times)

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
        """Send answers in pieces.

        Args:
            pieces: Of how many; or else
            at: the positions to cut at (0 to 4 are the frame's size); or else
            piece_bytes: the size of a piece, 1 by default.
            pause_s: How much time passes between them.
        """
        if at is not None:
            cut = answering.cut_at(at)
        elif pieces is not None:
            cut = answering.cut_into(_positive("pieces", pieces))
        else:
            cut = answering.cut_every(_positive("piece_bytes", piece_bytes or 1))
        return self._put(answering.SendInPieces(cut, pause_s), times)

    def trickle(self, bytes_per_s: int, times: int | None = 1) -> RuleT_co:
        """Send answers slowly, a piece every twentieth of a second."""
        _positive("bytes_per_s", bytes_per_s)
        interval_s = max(answering.TRICKLE_INTERVAL_S, 1 / bytes_per_s)
        size = max(1, round(bytes_per_s * interval_s))
        return self._put(answering.SendInPieces(answering.cut_every(size), interval_s), times)


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")
    return value
