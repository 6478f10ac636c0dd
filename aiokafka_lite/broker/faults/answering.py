"""Actions on responses: on the message, its bytes, and how these are sent."""

from __future__ import annotations

import enum
import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from aiokafka_lite._arguments import expected
from aiokafka_lite.broker.context import RequestContext
from aiokafka_lite.broker.faults.rules import AnswerAction, topic_names
from aiokafka_lite.broker.network.work import RequestWork
from aiokafka_lite.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionData
from aiokafka_lite.protocol.messages.metadata import MetadataRequest, MetadataResponse
from aiokafka_lite.protocol.schema import Response
from aiokafka_lite.structs import TopicPartition

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
