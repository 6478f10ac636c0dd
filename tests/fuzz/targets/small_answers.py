"""Small responses to Fetch, by the compiled codec and by the plain way: the same records."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

from aiokafka_lite._compat import override
from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.fetching.session import FetchSession
from aiokafka_lite.errors import KafkaError, KafkaProtocolError
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from aiokafka_lite.records import RecordSet
from aiokafka_lite.structs import TopicPartition
from tests.fuzz import mutations, record_sets, structure
from tests.fuzz.engine import Broken, Target
from tests.support import crafted

VERSION: Final = 16
SESSION_ID: Final = 77
TOPIC_ID: Final = bytes(range(16))
PARTITIONS: Final = 3
OFFSETS: Final = (0, 4, 100)


def session() -> FetchSession:
    """Return an open session with some partitions."""
    found = FetchSession()
    for number in range(PARTITIONS):
        cursor = Cursor(TopicPartition("t", number))
        cursor.topic_id = TOPIC_ID
        found.lend(cursor.lend_on(OFFSETS[number], 1 << 20))
    found.sent()
    found.succeeded(SESSION_ID)
    return found


@cache
def codec() -> Any:
    from aiokafka_lite.consumer.fetching._small import SmallCodec

    config: Any = SimpleNamespace(
        check_crcs=True,
        is_read_committed=False,
        client_id="fuzz",
        fetch_max_wait_ms=500,
        fetch_min_bytes=1,
        isolation_level_code=0,
    )
    return SmallCodec(session(), config)


def answer(parts: dict[int, bytes]) -> bytes:
    """Encode a response as a broker does."""
    partitions = [
        PartitionData(
            partition_index=number, high_watermark=200, last_stable_offset=200, records=content
        )
        for number, content in parts.items()
    ]
    topics = [FetchableTopicResponse(topic_id=TOPIC_ID, partitions=partitions)]
    message = FetchResponse(session_id=SESSION_ID, responses=topics)
    return framing.encode_response(message, VERSION, 1)[4:]


class _Others(structure.Others):
    @override
    def record_set(self, rng: random.Random) -> bytes:
        return crafted.batch(2, base_offset=4)


class SmallAnswers(Target):
    """The frame of a response in an open session. What is not plain is left to the other way."""

    name = "small-answers"
    allowed = (KafkaProtocolError,)
    weight = 2

    @override
    def seeds(self) -> Sequence[bytes]:
        plain = [
            crafted.batch(count, base_offset=base) for count, base in ((1, 0), (3, 4), (9, 100))
        ]
        return [
            answer({0: plain[0]}),
            answer({1: plain[1], 2: plain[2]}),
            answer({0: plain[0] + crafted.batch(2, base_offset=1), 1: b""}),
            answer({}),
            answer({0: crafted.batch(3, codec="zstd")}),
        ]

    @override
    def mutate(self, rng: random.Random, content: bytes, pool: Sequence[bytes]) -> bytes:
        if rng.random() < 0.3:
            return mutations.changed(rng, content, [rng.choice(pool)])
        try:
            message = framing.response_decoder(FetchRequest, VERSION)(memoryview(content))
        except (KafkaProtocolError, struct.error):
            return mutations.changed(rng, content, [rng.choice(pool)])
        for topic in message.responses:
            for part in topic.partitions:
                if part.records and rng.random() < 0.7:
                    part.records = record_sets.mutate(rng, bytes(part.records), self.seeds())
        if rng.random() < 0.5:
            tokens = structure.tokens_of(message, FetchResponse, VERSION)
            body = structure.mutate(rng, tokens, _Others())
            return content[:5] + body
        return framing.encode_response(message, VERSION, 1)[4:]

    @override
    def run(self, content: bytes) -> str:
        if len(content) < 4:
            return "short"
        with self.on_loop():
            parts = codec().decode(memoryview(content))
        if parts is None:
            return "left to the other way"
        message = framing.response_decoder(FetchRequest, VERSION)(memoryview(content))
        expected = [
            (topic.topic_id, part) for topic in message.responses for part in topic.partitions
        ]
        if len(parts) != len(expected):
            raise Broken(f"{len(parts)} partitions for {len(expected)}")
        for part, (topic_id, wanted) in zip(parts, expected, strict=True):
            _compare(part, topic_id, wanted)
        return f"{[min(len(part.records or ()), 3) for part in parts]}"


def _compare(part: Any, topic_id: bytes, wanted: PartitionData) -> None:
    cursor, offset = part.loan.cursor, part.loan.offset
    if (cursor.tp.partition, part.loan.topic_id) != (wanted.partition_index, topic_id):
        raise Broken("another partition")
    if part.high_watermark != wanted.high_watermark:
        raise Broken("another high watermark")
    if not wanted.records:
        if part.records:
            raise Broken("records of nothing")
        return
    plain = RecordSet("t", cursor.tp.partition, memoryview(wanted.records), fetch_offset=offset)
    records: list[Any] = []
    try:
        while more := plain.take(1000):
            records += more
    except KafkaError as error:
        raise Broken(f"the plain way fails: {type(error).__name__}") from error
    if records != part.records or plain.next_offset != part.next_offset:
        raise Broken(f"{len(part.records)} records for {len(records)}, {part.next_offset}")
