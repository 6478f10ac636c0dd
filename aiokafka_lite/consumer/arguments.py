"""Checks of what the application passes to a consumer's methods."""

from __future__ import annotations

import re
from collections.abc import Iterable

from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.structs import TopicPartition


def check_topics(topics: Iterable[str]) -> frozenset[str]:
    """Return topic names as a set.

    Raises:
        TypeError: They are not a collection of strings.
        ValueError: One of them is not a string, or empty.
    """
    if isinstance(topics, str) or not isinstance(topics, Iterable):
        raise TypeError(f"topics is a list, tuple or set of names, not {topics!r}")
    names = frozenset(topics)
    for name in names:
        if not _is_name(name):
            raise ValueError(f"a topic's name is a string that is not empty, not {name!r}")
    return names


def check_listener(listener: ConsumerRebalanceListener | None) -> None:
    """Refuse what is not a rebalance listener.

    Raises:
        TypeError: It is something else, and not None.
    """
    if listener is not None and not isinstance(listener, ConsumerRebalanceListener):
        raise TypeError(f"listener is a ConsumerRebalanceListener, not {listener!r}")


def check_pattern(pattern: str) -> re.Pattern[str]:
    """Return a compiled topic pattern.

    Raises:
        ValueError: It is not a regular expression.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error


def check_partitions(partitions: Iterable[TopicPartition]) -> tuple[TopicPartition, ...]:
    """Return partitions as a tuple, as they were given.

    Raises:
        TypeError: One is not a TopicPartition.
    """
    checked = tuple(partitions)
    for tp in checked:
        if not isinstance(tp, TopicPartition):
            raise TypeError(f"a partition is a TopicPartition, not {tp!r}")
    return checked


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bool(name)


def check_offset(offset: object) -> int:
    """Return an offset to seek to.

    Raises:
        ValueError: It is not an int, or negative.
    """
    if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
        raise ValueError(f"an offset is an int that is not negative, not {offset!r}")
    return offset
