"""Where a query begins and where it ends, as options say it; brokers are asked later.

Five ways, as Spark's own Kafka source has them: the earliest or latest offset of every partition,
an offset or a timestamp for each partition, one timestamp for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from aiokafka_lite._compat import override
from aiokafka_lite.client.offsets import Offsets
from aiokafka_lite.structs import TopicPartition


class _Value:
    """Base of small values: equal if of one class with equal fields, and never changed.

    No dataclasses, whose making costs more than all the rest of importing options, and which
    happens in every worker; no NamedTuple, as two classes of those compare equal.
    """

    __slots__: tuple[str, ...] = ()
    __match_args__: tuple[str, ...] = ()

    @override
    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__match_args__)

    __hash__ = None  # type: ignore[assignment] # some hold a dict

    @override
    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
        return f"{type(self).__name__}({fields})"


class Earliest(_Value):
    """The first offset that each partition still has."""

    __slots__ = ()


class Latest(_Value):
    """The offset after each partition's last record."""

    __slots__ = ()


class AtOffsets(_Value):
    """An offset for each partition; -1 is its latest, -2 its earliest (`client.offsets`)."""

    __slots__ = ("offsets",)
    __match_args__ = ("offsets",)

    def __init__(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.offsets: Offsets = dict(offsets)


class AtTimestamp(_Value):
    """Each partition's first record of that time (ms since the epoch) or later."""

    __slots__ = ("timestamp_ms",)
    __match_args__ = ("timestamp_ms",)

    def __init__(self, timestamp_ms: int) -> None:
        self.timestamp_ms = timestamp_ms


class AtTimestamps(_Value):
    """For each partition the first record of a time of its own (ms since the epoch) or later."""

    __slots__ = ("timestamps_ms",)
    __match_args__ = ("timestamps_ms",)

    def __init__(self, timestamps_ms: Mapping[TopicPartition, int]) -> None:
        self.timestamps_ms: dict[TopicPartition, int] = dict(timestamps_ms)


Position: TypeAlias = Earliest | Latest | AtOffsets | AtTimestamp | AtTimestamps


class Assign(_Value):
    """Exactly these partitions."""

    __slots__ = ("partitions",)
    __match_args__ = ("partitions",)

    def __init__(self, partitions: tuple[TopicPartition, ...]) -> None:
        self.partitions = partitions


class Subscribe(_Value):
    """All partitions of these topics."""

    __slots__ = ("topics",)
    __match_args__ = ("topics",)

    def __init__(self, topics: tuple[str, ...]) -> None:
        self.topics = topics


class SubscribePattern(_Value):
    """All partitions of the topics in whose names a pattern is found, internal ones left out.

    Found, as in Spark's own source, need not be all of it: ``b`` finds ``abc``, ``^b$`` does not.

    Attributes:
        pattern: As it was given, in Java's syntax.

    Raises:
        JavaPatternError: The pattern is wrong, or cannot be had here.
    """

    __slots__ = ("_search", "pattern")
    __match_args__ = ("pattern",)

    def __init__(self, pattern: str) -> None:
        # Imported where it is used: most queries name their topics.
        from aiokafka_lite.spark.options.java_pattern import compile_java

        self.pattern = pattern
        self._search = compile_java(pattern)

    def matches(self, topic: str) -> bool:
        """Say whether a topic is meant."""
        return self._search.search(topic) is not None


Subscription: TypeAlias = Assign | Subscribe | SubscribePattern
