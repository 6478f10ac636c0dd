"""The actions of faults: on requests before they are handled or instead, and on responses."""

from __future__ import annotations

import enum
import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from aiokafka_lite._arguments import expected, is_int, plain
from aiokafka_lite.broker.faults.rules import AnswerAction, Error, RequestAction, topic_names
from aiokafka_lite.broker.handlers.base import RequestContext
from aiokafka_lite.broker.network.dispatcher import RequestWork
from aiokafka_lite.broker.refusals import (
    SESSION_REQUESTS,
    Place,
    Refusal,
    RefusalReason,
    is_error_class,
)
from aiokafka_lite.errors import BrokerResponseError, for_code
from aiokafka_lite.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData
from aiokafka_lite.protocol.messages.metadata import MetadataRequest, MetadataResponse
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.structs import TopicPartition

Replacement: TypeAlias = "Response | Callable[[RequestContext, Request[Response]], Response | None]"
"""An answer, or a plain function that makes one; after None the request is handled as usual."""

# Errors of sessions. Kafka puts them into the response itself, not into partitions.
_ABOUT_THE_SESSION = frozenset({70, 71, 106, 122, 123, 133})


class Fail(RequestAction):
    def __init__(self, error: Error, at: Place | None) -> None:
        self._code, self._text = _code_and_text(error)
        self._at = at

    def __repr__(self) -> str:
        return f"fail with {for_code(self._code).message} ({self._code})"

    def covers(self, work: RequestWork) -> bool:
        has_session = isinstance(work.request, SESSION_REQUESTS)  # which has more partitions
        return has_session or not self._refusal(work).is_empty(work.request)

    def handle(self, work: RequestWork, go_on: Callable[[], None]) -> None:
        request, context = work.request, work.context
        if isinstance(request, SESSION_REQUESTS) and self._is_for_partitions:
            # The partitions depend on the session, so the handler decides.
            concerns, error = self.rule.match.concerns, for_code(self._code)
            work.context = replace(
                context,
                refuses=lambda topic, index: error if concerns(topic, index) else None,
            )
            go_on()
            return
        refusal = self._refusal(work)
        if not refusal.is_listed(request):
            go_on()  # the request is for everything, which only the response lists
            return
        refused, rest = refusal.split(request, self._refused(work))
        if rest is not None:
            work.refused = refused
            work.request = rest
            go_on()
        elif request.expects_response:
            work.processor.answer(work, refused)
        else:
            work.processor.close()  # acks=0: Kafka, too, reports errors this way

    def answer(self, work: RequestWork, response: Response | None) -> bool:
        if response is not None:
            self._complete(work, response)
        work.processor.send(work, response)
        return True

    def _complete(self, work: RequestWork, response: Response) -> None:
        refusal, request = self._refusal(work), work.request
        if work.refused is not None:
            refusal.merge(response, work.refused)
            return
        if isinstance(request, SESSION_REQUESTS) and self._is_for_partitions:
            needs_marks = self._code not in BrokerResponseError.by_code
        else:
            needs_marks = not refusal.is_listed(request)
        if needs_marks:
            refusal.mark(response, self._refused(work))

    def _refused(self, work: RequestWork) -> RefusalReason:
        concerns = self.rule.match.concerns
        return RefusalReason(self._code, self._text, concerns, topic_names(work.context))

    @property
    def _is_for_partitions(self) -> bool:
        return self._at != "answer" and self._code not in _ABOUT_THE_SESSION

    def _refusal(self, work: RequestWork) -> Refusal:
        at = self._at
        if isinstance(work.request, SESSION_REQUESTS) and not self._is_for_partitions:
            at = "answer"
        of_topics = self.rule.match.is_about_partitions
        return Refusal(type(work.request), work.context.api_version, at, of_topics=of_topics)


def _code_and_text(error: Error) -> tuple[int, str]:
    if not (is_int(error) or is_error_class(error) or isinstance(error, BrokerResponseError)):
        wanted = "a Kafka error, such as NotLeaderForPartitionError, or its error code"
        raise TypeError(expected("error", wanted, error))
    if isinstance(error, int) and not -(2**15) <= error < 2**15:
        raise ValueError(expected("error", "an error code from -32768 to 32767", error))
    if isinstance(error, int):
        return error, for_code(error).description
    code = error.errno
    text = str(error.args[0]) if isinstance(error, BrokerResponseError) and error.args else ""
    return code, text or error.description


@dataclass(eq=False)
class Silence(RequestAction):
    """Stops requests before they are handled, or their responses."""

    is_handled: bool

    def handle(self, work: RequestWork, go_on: Callable[[], None]) -> None:
        if self.is_handled:
            go_on()
        else:
            self._stop(work, go_on)

    def answer(self, work: RequestWork, response: Response | None) -> bool:
        def send() -> None:
            if work.processor.is_open:
                work.processor.send(work, response)

        if self.is_handled:
            self._stop(work, send)
        else:
            send()
        return True

    def _stop(self, work: RequestWork, go_on: Callable[[], None]) -> None:
        pass


@dataclass(eq=False)
class Delay(Silence):
    delay_s: float

    def _stop(self, work: RequestWork, go_on: Callable[[], None]) -> None:
        self.rule.faults.call_later(self.delay_s, go_on)


@dataclass(eq=False)
class Disconnect(Silence):
    is_reset: bool
    after_bytes: int | None

    def answer(self, work: RequestWork, response: Response | None) -> bool:
        if self.after_bytes is not None and response is not None:
            frame = work.processor.encode(work, response)
            work.processor.write_now(frame[: self.after_bytes])
        return super().answer(work, response)

    def _stop(self, work: RequestWork, go_on: Callable[[], None]) -> None:
        if self.is_reset:
            work.processor.reset()
        else:
            work.processor.close()


@dataclass(eq=False)
class TakeOver(RequestAction):
    """Sends the response of the test."""

    replacement: Replacement

    def handle(self, work: RequestWork, go_on: Callable[[], None]) -> None:
        replacement = self.replacement
        if isinstance(replacement, Response):
            answer: Response | None = replacement
        else:
            result: object = replacement(work.context, work.request)
            if result is not None and not isinstance(result, Response):
                plain("answer() takes a plain function, not a coroutine function", result)
                wanted = "a Response or None"
                raise TypeError(expected("the result of answer()'s function", wanted, result))
            answer = result
        if answer is None:
            go_on()
        else:
            work.processor.answer(work, answer)


SIZE: Final = struct.Struct(">i")
CORRELATION_ID: Final = struct.Struct(">ii")  # after the size
HEAD_BYTES: Final = CORRELATION_ID.size

# Offsets within a batch; see records/batch.py for the whole.
_MAGIC_AT: Final = 16
_CRC_AT: Final = {0: 12, 1: 12, 2: 17}
_BATCH_LENGTH_AT: Final = 8
_BATCH_PREFIX_BYTES: Final = 12

# The interval of a trickle's pieces.
TRICKLE_INTERVAL_S: Final = 0.05


class FrameFate(enum.Enum):
    """The results of a byte hook other than bytes."""

    DROP = "the response is not sent, and the connection stays open for further requests"
    CLOSE = "the connection is closed"


OnFrame: TypeAlias = "Callable[[RequestContext, bytes], bytes | FrameFate]"
"""Takes an answer as it would be sent, its size first, and returns what is sent instead."""

RewriteBatches: TypeAlias = Callable[[TopicPartition, bytes], bytes]
"""Takes a partition's record set and returns the one that is sent instead."""

Damage: TypeAlias = Literal["crc", "bytes", "length", "records"]


@dataclass(eq=False)
class Throttle(AnswerAction):
    throttle_s: float
    is_muting: bool

    def answer(self, work: RequestWork, response: Response | None) -> bool:
        if response is None:  # acks=0: muting is the only effect
            if not self.is_muting:
                return False
        elif hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = round(self.throttle_s * 1000)
        else:
            return False
        if self.is_muting:
            work.processor.mute_for(self.throttle_s)
        work.processor.send(work, response)
        return True


@dataclass(eq=False)
class RewriteRecords(AnswerAction):
    only = FetchRequest
    rewrite: RewriteBatches

    def answer(self, work: RequestWork, response: Response | None) -> bool:
        chosen = [] if response is None else self._with_records(work.context, response)
        for tp, partition in chosen:
            partition.records = self.rewrite(tp, bytes(partition.records or b""))
        if not chosen:
            return False
        work.processor.send(work, response)
        return True

    def _with_records(
        self, context: RequestContext, response: Response
    ) -> list[tuple[TopicPartition, PartitionData]]:
        if not isinstance(response, FetchResponse):
            return []
        name_of = topic_names(context)
        found = [
            (
                TopicPartition(topic.topic or name_of(topic.topic_id) or "", data.partition_index),
                data,
            )
            for topic in response.responses
            for data in topic.partitions
            if data.records
        ]
        return [(tp, data) for tp, data in found if self.rule.match.concerns(*tp)]


def flip_crc(tp: TopicPartition, records: bytes) -> bytes:
    broken = bytearray(records)
    broken[_CRC_AT[records[_MAGIC_AT]]] ^= 0xFF
    return bytes(broken)


def cut_records(tp: TopicPartition, records: bytes) -> bytes:
    (length,) = SIZE.unpack_from(records, _BATCH_LENGTH_AT)
    return records[: _BATCH_PREFIX_BYTES + length // 2]


@dataclass(eq=False)
class FrameHook(AnswerAction):
    hook: OnFrame

    def answer(self, work: RequestWork, response: Response | None) -> bool:
        if response is None:
            return False
        processor = work.processor
        sent: object = self.hook(work.context, processor.encode(work, response))
        if sent is FrameFate.CLOSE:
            processor.close()
        elif isinstance(sent, FrameFate):
            processor.send(work, None)
        elif isinstance(sent, bytes | bytearray):
            processor.write_rest(work, response, bytes(sent))
        else:
            wanted = "bytes, faults.DROP or faults.CLOSE"
            raise TypeError(expected("the result of on_frame()'s function", wanted, sent))
        return True


def flip_bytes(count: int) -> OnFrame:
    def flip(context: RequestContext, frame: bytes) -> bytes:
        broken = bytearray(frame)
        places = range(HEAD_BYTES, len(frame))
        for place in context.cluster.rng.sample(places, min(count, len(places))):
            broken[place] ^= 0xFF
        return bytes(broken)

    return flip


def misstate_length(by: int) -> OnFrame:
    def lie(context: RequestContext, frame: bytes) -> bytes:
        return SIZE.pack(len(frame) - SIZE.size + by) + frame[SIZE.size :]

    return lie


def wrong_correlation_id(context: RequestContext, frame: bytes) -> bytes:
    size, correlation_id = CORRELATION_ID.unpack_from(frame)
    wrong = (correlation_id + 1) & 0x7FFFFFFF
    return CORRELATION_ID.pack(size, wrong) + frame[HEAD_BYTES:]


@dataclass(eq=False)
class SendInPieces(AnswerAction):
    """The connection is muted until the last piece."""

    cut: Callable[[bytes], Sequence[bytes]]
    pause_s: float

    def answer(self, work: RequestWork, response: Response | None) -> bool:
        if response is None:
            return False
        pieces = iter(self.cut(work.processor.encode(work, response)))
        self._send(work, response, pieces, next(pieces))
        return True

    def _send(
        self, work: RequestWork, response: Response, pieces: Iterator[bytes], piece: bytes
    ) -> None:
        following = next(pieces, None)
        if following is None:
            work.processor.write_rest(work, response, piece)
            return
        work.processor.write_now(piece)
        if work.processor.is_open:
            self.rule.faults.call_later(
                self.pause_s, lambda: self._send(work, response, pieces, following)
            )


def cut_into(count: int) -> Callable[[bytes], Sequence[bytes]]:
    return lambda frame: cut_every(max(1, -(-len(frame) // count)))(frame)


def cut_every(size: int) -> Callable[[bytes], Sequence[bytes]]:
    return lambda frame: [frame[at : at + size] for at in range(0, len(frame), size)]


def cut_at(positions: Sequence[int]) -> Callable[[bytes], Sequence[bytes]]:
    def cut(frame: bytes) -> Sequence[bytes]:
        bounds = [0, *sorted({at for at in positions if 0 < at < len(frame)}), len(frame)]
        return [frame[start:end] for start, end in itertools.pairwise(bounds)]

    return cut


@dataclass(eq=False)
class AnswerStaleMetadata(AnswerAction):
    """Topics that are newer than the leaders get `unknown_code`."""

    only = MetadataRequest
    leaders: dict[tuple[str, int], tuple[int, int]]
    unknown_code: int

    def answer(self, work: RequestWork, response: Response | None) -> bool:
        if not isinstance(response, MetadataResponse):
            return False
        topics = {topic for topic, _ in self.leaders}
        for topic in response.topics:
            if topic.name not in topics:
                topic.error_code, topic.partitions = self.unknown_code, []
                continue
            topic.partitions = [
                partition
                for partition in topic.partitions
                if (topic.name, partition.partition_index) in self.leaders
            ]
            for partition in topic.partitions:
                leader = self.leaders[topic.name, partition.partition_index]
                partition.leader_id, partition.leader_epoch = leader
                partition.error_code = 0
        work.processor.send(work, response)
        return True
