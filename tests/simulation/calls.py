"""What handlers did in a run: their calls, and the letters of failed records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aiokafka_lite._virtual import START_MS
from aiokafka_lite.consumer.processing import headers
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.support.inside import read_at

Record = ConsumerRecord[Any, Any]


class Handled(NamedTuple):
    """A record that a handler has received.

    Attributes:
        read_tp: Where it was read: its own partition, or that of a delay topic.
    """

    tp: TopicPartition
    offset: int
    value: bytes
    read_tp: TopicPartition
    read_offset: int

    @classmethod
    def of(cls, record: Record) -> Handled:
        """Return what is known of a record in its handler."""
        tp = TopicPartition(record.topic, record.partition)
        return cls(tp, record.offset, record.value or b"", *read_at(record))

    @property
    def is_delayed(self) -> bool:
        return self.tp != self.read_tp


@dataclass
class Call:
    """A call of a handler. `outcome`: "finished", "failed" or "cancelled"; "" if it has no end."""

    who: str
    began_at_s: float
    records: Sequence[Handled]
    outcome: str = ""
    ended_at_s: float = float("inf")


class Letter(NamedTuple):
    """A dead letter, or a delayed record.

    Attributes:
        at_s: When it was appended.
        there: The partition and the offset of the letter.
        tp: The partition of its record.
        history: The headers with the first error of a delayed record.
    """

    at_s: float
    there: tuple[TopicPartition, int]
    tp: TopicPartition
    offset: int
    value: bytes
    attempts: int
    error: str
    history: Mapping[str, bytes]

    @classmethod
    def of(cls, record: Record) -> Letter:
        found = dict(record.headers)
        return cls(
            (record.timestamp - START_MS) / 1000,
            (TopicPartition(record.topic, record.partition), record.offset),
            TopicPartition(found[headers.TOPIC].decode(), int(found[headers.PARTITION])),
            int(found[headers.OFFSET]),
            record.value or b"",
            int(found[headers.DELIVERY_COUNT]),
            found[headers.EXCEPTION].decode().rpartition(".")[2],
            {name: found[name] for name in headers.HISTORY if name in found},
        )

    @property
    def topic(self) -> str:
        return self.there[0].topic

    @property
    def delay_count(self) -> int:
        return int(self.history.get(headers.DELAY_COUNT, b"0"))

    @property
    def first_error(self) -> str:
        return self.history.get(headers.FIRST_EXCEPTION, b"").decode().rpartition(".")[2]


@dataclass
class CallLog:
    """The calls of all members, in their order, and the letters of functions."""

    calls: list[Call] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    counts: Counter[bytes] = field(default_factory=Counter)
