"""Divides ranges among tasks: large ranges are split, small ones share a task.

Splitting follows Spark's own Kafka source (`KafkaOffsetRangeCalculator`) to the offset, hence the
floating point. Sharing is an addition: a task costs Spark some 30 ms of CPU, so ranges of few
records are read together, those of one leader first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from aiokafka_lite.client.view import Node
from aiokafka_lite.spark.ranges import KafkaOffsetRange

Task: TypeAlias = tuple[KafkaOffsetRange, ...]


def split(
    ranges: Iterable[KafkaOffsetRange],
    *,
    min_partitions: int | None,
    max_records_per_partition: int | None,
    min_records_per_task: int,
) -> list[Task]:
    """Return the ranges of each task, the largest task first. Empty ranges are left out.

    Ranges of fewer than `min_records_per_task` offsets share a task. 0 gives each its own. Large
    ones are split to get about `min_partitions` tasks.
    """
    pieces = divide(
        ranges,
        min_partitions=min_partitions,
        max_records_per_partition=max_records_per_partition,
    )
    large = [piece for piece in pieces if piece.size >= min_records_per_task]
    small = [piece for piece in pieces if piece.size < min_records_per_task]
    tasks: list[Task] = [(piece,) for piece in large]
    if small:
        wanted = sum(piece.size for piece in small) // min_records_per_task
        if min_partitions is not None:
            wanted = max(wanted, min_partitions - len(large))
        tasks += _shared(small, wanted, max_records_per_partition)
    # A query would wait for a large task that starts last.
    return sorted(tasks, key=lambda task: (-_size(task), task[0][:3]))


def divide(
    ranges: Iterable[KafkaOffsetRange],
    *,
    min_partitions: int | None,
    max_records_per_partition: int | None,
) -> list[KafkaOffsetRange]:
    """Return the ranges as Spark's own source would split them, without the empty ones."""
    pieces = [piece for piece in ranges if piece.size > 0]
    if max_records_per_partition is not None:
        limit = float(max_records_per_partition)
        pieces = [
            part for piece in pieces for part in _parts(piece, math.ceil(float(piece.size) / limit))
        ]
    if min_partitions is None or min_partitions <= len(pieces):
        return pieces
    total = sum(piece.size for piece in pieces)
    whole = [piece for piece in pieces if _part_count(piece.size, total, min_partitions) == 1]
    whole_tps = {piece[:2] for piece in whole}
    total -= sum(piece.size for piece in whole)
    wanted = max(min_partitions - len(whole), 1)
    return [
        part
        for piece in pieces
        for part in (
            (piece,)
            if piece[:2] in whole_tps
            else _parts(piece, _part_count(piece.size, total, wanted))
        )
    ]


def _part_count(size: int, total: int, wanted: int) -> int:
    """Return how many of `wanted` parts a range gets, rounded like Java's Math.round."""
    exact = float(size) / float(total) * wanted
    below = math.floor(exact)
    return max(below + 1 if exact - below >= 0.5 else below, 1)


def _parts(piece: KafkaOffsetRange, count: int) -> list[KafkaOffsetRange]:
    """Return a range in `count` parts of about the same size, the larger ones last."""
    parts = []
    start, remaining = piece.start, piece.size
    for left in range(count, 0, -1):
        size = remaining // left
        remaining -= size
        if size > 0:
            parts.append(piece._replace(start=start, end=start + size))
            start += size
    return parts


def _shared(small: Sequence[KafkaOffsetRange], wanted: int, limit: int | None) -> list[Task]:
    """Return `wanted` tasks of about the same size, more if `limit` offsets a task need more."""
    wanted = min(max(wanted, 1), len(small))
    total = sum(piece.size for piece in small)
    tasks: list[list[KafkaOffsetRange]] = []
    before = task_size = 0
    for taken, piece in enumerate(sorted(small, key=_by_leader)):
        is_due = before * wanted >= total * len(tasks)
        is_last_chance = len(small) - taken <= wanted - len(tasks)
        is_too_large = limit is not None and task_size + piece.size > limit
        if is_due or is_last_chance or is_too_large:
            tasks.append([])
            task_size = 0
        _add(tasks[-1], piece)
        task_size += piece.size
        before += piece.size
    return [tuple(task) for task in tasks]


def _add(task: list[KafkaOffsetRange], piece: KafkaOffsetRange) -> None:
    if task and task[-1][:2] == piece[:2] and task[-1].end == piece.start:
        task[-1] = task[-1]._replace(end=piece.end)
    else:
        task.append(piece)


def _by_leader(piece: KafkaOffsetRange) -> tuple[int, str, int, int]:
    leader: Node | None = piece.leader
    return (-1 if leader is None else leader.id, piece.topic, piece.partition, piece.start)


def _size(task: Task) -> int:
    return sum(piece.size for piece in task)
