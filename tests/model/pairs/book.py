"""Which record is where: what the logs of a round hold, over recreations.

Each record has a number of its own, which is its value. So a record that was written at the offset
of another, of a topic that was recreated, is not taken for that one.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aiokafka_lite.structs import TopicPartition


@dataclass(frozen=True)
class Written:
    """One record, as it was written."""

    number: int
    tp: TopicPartition
    offset: int
    key: bytes | None
    is_bad: bool

    @property
    def value(self) -> bytes:
        return b"%d %s" % (self.number, BAD if self.is_bad else b"good")


BAD = b"bad"


def number_in(value: bytes | None) -> int:
    """Return the number of the record with this value."""
    return int((value or b"-1").split()[0])


class Book:
    """All records that were ever written, and those that the logs hold now.

    Attributes:
        records: All, by their numbers.
        gone: The numbers of those that no log holds any more.
        begins: The first offset of each log.
        lives: How often the topic of each partition was recreated.
    """

    def __init__(self, rng: random.Random, *, keys: int, bad: int) -> None:
        self._rng = rng
        self._keys = keys
        self._bad = bad
        self.records: list[Written] = []
        self.gone: set[int] = set()
        self.begins: dict[TopicPartition, int] = {}
        self.lives: dict[TopicPartition, int] = {}
        self._logs: dict[TopicPartition, list[Written]] = {}

    def open(self, topic: str, partitions: int) -> None:
        """Note that a topic is created."""
        for index in range(partitions):
            tp = TopicPartition(topic, index)
            self._logs[tp] = []
            self.begins[tp] = 0
            self.lives[tp] = self.lives.get(tp, 0) + 1

    def close(self, topic: str) -> None:
        """Note that a topic is deleted."""
        for tp in [each for each in self._logs if each.topic == topic]:
            self.gone.update(each.number for each in self._logs.pop(tp))
            del self.begins[tp]

    def write(self, tp: TopicPartition, count: int) -> list[Written]:
        """Note records that are written at the end of a log, and return them."""
        rng, log = self._rng, self._logs[tp]
        new = [
            Written(
                len(self.records) + n,
                tp,
                len(log) + n,
                b"%d" % rng.randrange(self._keys),
                rng.randrange(100) < self._bad,
            )
            for n in range(count)
        ]
        self.records += new
        log += new
        return new

    def delete_before(self, tp: TopicPartition, begin: int) -> None:
        """Note that a log begins later now."""
        self.begins[tp] = max(self.begins[tp], begin)
        self.gone.update(each.number for each in self._logs[tp][:begin])

    @property
    def present(self) -> list[Written]:
        """The records that the logs hold now."""
        return [each for log in self._logs.values() for each in log if each.number not in self.gone]

    @property
    def partitions(self) -> Iterable[TopicPartition]:
        return self._logs.keys()

    @property
    def ends(self) -> Mapping[TopicPartition, int]:
        return {tp: len(log) for tp, log in self._logs.items()}

    def log(self, tp: TopicPartition) -> list[Written]:
        """Return all records of a log by their offsets, also those before its begin."""
        return self._logs.get(tp, [])
