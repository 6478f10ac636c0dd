"""Checks of what the application passes to a consumer's methods.

Messages begin with aiokafka's words, where it has some: programs match them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeGuard

from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

# What aiokafka's seeks say, and its pauses.
INSTANCES: Final = "partitions must be TopicPartition instances"
NAMED_TUPLES: Final = "partitions must be TopicPartition namedtuples"


def shown(given: object) -> str:
    """Show what was given, with module and class unless they are Python's own."""
    if isinstance(given, type):
        return f"the class {given.__module__}.{given.__qualname__}"
    kind = type(given)
    if kind.__module__ == "builtins":
        return repr(given)
    return f"{given!r} (of {kind.__module__}.{kind.__qualname__})"


def not_a(wanted: type, given: object) -> str:
    """Say what was given in place of one of this package's types.

    What is of a namesake of it in another package looks right to whoever passes it: it is said
    whose it is, and what to do.
    """
    text = f"not {shown(given)}"
    bases = type(given).__mro__
    namesakes = [base for base in bases if base.__name__ == wanted.__name__]
    if not namesakes:
        return text
    theirs = namesakes[0].__module__
    if namesakes[0] is not bases[0]:
        text += f", derived from {theirs}.{wanted.__name__}"
    text += f"; use {wanted.__module__}.{wanted.__name__}"
    if theirs.startswith("aiokafka."):
        text += ", or call aiokafka_lite.as_aiokafka.install() before the first import of aiokafka"
    return text


# --- Subscriptions ----------------------------------------------------------------------------
def check_topics(topics: Iterable[str]) -> frozenset[str]:
    """Return topic names as a set.

    Raises:
        TypeError: They are not a collection of strings.
        ValueError: One of them is not a string, or empty.
    """
    if isinstance(topics, str) or not isinstance(topics, Iterable):
        raise TypeError(f"Topics should be list of strings, or a tuple or set, not {topics!r}")
    names = frozenset(topics)
    for name in names:
        if not _is_name(name):
            raise ValueError(f"a topic's name is a string that is not empty, not {name!r}")
    return names


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bool(name)


def check_listener(listener: ConsumerRebalanceListener | None) -> None:
    """Refuse what is not a rebalance listener.

    Raises:
        TypeError: It is something else, and not None.
    """
    if listener is not None and not isinstance(listener, ConsumerRebalanceListener):
        raise TypeError(
            "listener should be an instance of ConsumerRebalanceListener, "
            f"{not_a(ConsumerRebalanceListener, listener)}"
        )


def check_pattern(pattern: str) -> re.Pattern[str]:
    """Return a compiled topic pattern.

    Raises:
        ValueError: It is not a regular expression.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(
            f"{pattern!r} is not a valid pattern: {error} (no regular expression)"
        ) from error


# --- Partitions -------------------------------------------------------------------------------
def check_partition(tp: object, otherwise: str = INSTANCES) -> TopicPartition:
    """Return a partition as this package's type.

    Other packages' named tuples with its fields, as aiokafka's own, are taken too.

    Raises:
        TypeError: It is something else; the message begins with `otherwise`.
    """
    if isinstance(tp, TopicPartition):
        return tp
    if isinstance(tp, tuple) and getattr(tp, "_fields", None) == TopicPartition._fields:
        return TopicPartition(*tp)
    raise TypeError(f"{otherwise}, {not_a(TopicPartition, tp)}")


def check_partitions(
    partitions: Iterable[TopicPartition], otherwise: str = INSTANCES
) -> tuple[TopicPartition, ...]:
    """Return partitions in the order given; raises as `check_partition` does."""
    return tuple([check_partition(tp, otherwise) for tp in partitions])


# --- Offsets ----------------------------------------------------------------------------------
def check_offset(offset: object) -> int:
    """Return an offset to seek to.

    Raises:
        ValueError: It is not an int, or negative.
    """
    if not _is_offset(offset):
        raise ValueError(
            f"Offset must be a positive integer: an offset is 0 or more, not {shown(offset)}"
        )
    return offset


def _is_offset(offset: object) -> TypeGuard[int]:
    return isinstance(offset, int) and not isinstance(offset, bool) and offset >= 0


def check_timestamps(timestamps: Mapping[TopicPartition, float]) -> dict[TopicPartition, int]:
    """Return the times (ms since the epoch) to look offsets up for, as whole numbers.

    Raises:
        TypeError: A key is not a TopicPartition.
        ValueError: A time is negative.
    """
    checked = {check_partition(tp): int(timestamp) for tp, timestamp in timestamps.items()}
    for tp, timestamp in checked.items():
        if timestamp < 0:
            raise ValueError(
                f"The target time for partition {tp} is {timestamp}. "
                "The target time cannot be negative."
            )
    return checked


def check_offsets(offsets: object) -> dict[TopicPartition, OffsetAndMetadata]:
    """Bring the argument of `commit` into one shape.

    Raises:
        ValueError: It is not a mapping with something in it, or an offset is negative or not
            an offset at all.
        TypeError: A key is no TopicPartition, or metadata is no string.
    """
    if not offsets or not isinstance(offsets, Mapping):
        raise ValueError(f"offsets is a dict of TopicPartition to offset, not {shown(offsets)}")
    return {
        check_partition(tp, "Key should be TopicPartition instance"): _check_commit(value)
        for tp, value in offsets.items()
    }


def _check_commit(value: object) -> OffsetAndMetadata:
    offset: object = value
    metadata: object = ""
    if sorted(getattr(value, "_fields", ())) == ["metadata", "offset"]:
        offset, metadata = value.offset, value.metadata  # type: ignore[attr-defined]
    elif isinstance(value, tuple | list):
        if len(value) != 2:
            raise ValueError(f"an offset to commit is an int or (int, str), not {shown(value)}")
        offset, metadata = value
    if not _is_offset(offset):
        raise ValueError(f"an offset to commit is an int >= 0 or (int, str), not {shown(value)}")
    if not isinstance(metadata, str):
        raise TypeError(f"Metadata should be a string, not {metadata!r}")
    return OffsetAndMetadata(offset, metadata)
