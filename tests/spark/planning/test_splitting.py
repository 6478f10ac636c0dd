"""Tasks cover every offset once, split as Spark's own source splits, and small ranges share."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite.client.view import Node
from aiokafka_lite.spark.planner import Task, divide, split
from aiokafka_lite.spark.ranges import KafkaOffsetRange
from tests.support.for_each import for_each

NODES = [Node(1, "a", 9092), Node(2, "b", 9092), Node(3, "c", 9092)]
BY_CONNECTOR = json.loads(Path(__file__).with_name("splits.json").read_text())


def ranges_of(*sizes: int, topic: str = "t") -> list[KafkaOffsetRange]:
    """One range a size, of partitions 0, 1, 2 ... led by three nodes in turn."""
    return [
        KafkaOffsetRange(topic, index, 10 * index, 10 * index + size, leader=NODES[index % 3])
        for index, size in enumerate(sizes)
    ]


def sizes_of(tasks: list[Task]) -> list[int]:
    return [sum(piece.size for piece in task) for task in tasks]


a_range = st.tuples(st.integers(0, 1 << 40), st.integers(-5, 5000), st.sampled_from([*NODES, None]))
some_ranges = st.lists(a_range, max_size=40).map(
    lambda drawn: [
        KafkaOffsetRange("even" if index % 2 else "odd", index, start, start + size, leader=leader)
        for index, (start, size, leader) in enumerate(drawn)
    ]
)
a_limit = st.none() | st.integers(1, 3000)


@for_each(BY_CONNECTOR)
def test_ranges_are_split_as_the_jvm_connector_splits_them(case: dict[str, object]) -> None:
    """What `KafkaOffsetRangeCalculator` of connector 4.2.0 made of these ranges."""
    ranges, expected = case["ranges"], case["split"]
    min_partitions, max_records = case["minPartitions"], case["maxRecordsPerPartition"]
    assert isinstance(ranges, list)
    assert isinstance(expected, list)
    assert min_partitions is None or isinstance(min_partitions, int)
    assert max_records is None or isinstance(max_records, int)
    pieces = divide(
        [KafkaOffsetRange(*each) for each in ranges],
        min_partitions=min_partitions,
        max_records_per_partition=max_records,
    )
    assert [list(piece[:4]) for piece in pieces] == expected


@given(some_ranges, st.none() | st.integers(1, 60), a_limit, st.integers(0, 3000))
def test_every_offset_is_in_one_task(
    ranges: list[KafkaOffsetRange], min_partitions: int | None, limit: int | None, min_records: int
) -> None:
    tasks = split(
        ranges,
        min_partitions=min_partitions,
        max_records_per_partition=limit,
        min_records_per_task=min_records,
    )
    assert all(tasks)
    for each in ranges:
        pieces = sorted(piece for task in tasks for piece in task if piece.tp == each.tp)
        if each.size <= 0:
            assert not pieces
            continue
        assert pieces[0].start == each.start
        assert pieces[-1].end == each.end
        assert all(left.end == right.start for left, right in pairwise(pieces))
        assert all(piece.size > 0 and piece[4:] == each[4:] for piece in pieces)


@given(some_ranges, st.none() | st.integers(1, 60), a_limit, st.integers(0, 3000))
def test_sharing_keeps_the_options_about_tasks(
    ranges: list[KafkaOffsetRange], min_partitions: int | None, limit: int | None, min_records: int
) -> None:
    pieces = divide(ranges, min_partitions=min_partitions, max_records_per_partition=limit)
    tasks = split(
        ranges,
        min_partitions=min_partitions,
        max_records_per_partition=limit,
        min_records_per_task=min_records,
    )
    assert len(tasks) <= len(pieces)
    assert len(tasks) >= min(len(pieces), min_partitions or 0)
    if limit is not None:
        assert all(size <= limit for size in sizes_of(tasks))
    if min_records == 0:
        assert len(tasks) == len(pieces)
    elif min_partitions is None and limit is None:
        shared = [task for task in tasks if task[0].size < min_records]
        records = sum(sizes_of(shared))
        assert len(shared) == (max(records // min_records, 1) if records else 0)


@given(some_ranges, st.integers(0, 3000), st.randoms())
def test_tasks_do_not_depend_on_the_order_of_ranges(
    ranges: list[KafkaOffsetRange], min_records: int, rng: random.Random
) -> None:
    shuffled = list(ranges)
    rng.shuffle(shuffled)
    planned = [
        split(
            each,
            min_partitions=None,
            max_records_per_partition=None,
            min_records_per_task=min_records,
        )
        for each in (ranges, shuffled)
    ]
    assert planned[0] == planned[1]


def test_small_ranges_of_one_leader_share_a_task() -> None:
    tasks = split(
        ranges_of(*[400] * 15),
        min_partitions=None,
        max_records_per_partition=None,
        min_records_per_task=2000,
    )
    assert [{piece.leader for piece in task} for task in tasks] == [{node} for node in NODES]


def test_small_ranges_stay_apart_when_many_tasks_are_wanted() -> None:
    tasks = split(
        ranges_of(5, 7, 9, 11),
        min_partitions=3,
        max_records_per_partition=None,
        min_records_per_task=1000,
    )
    assert len(tasks) == 3


def test_shared_tasks_are_of_about_the_same_size() -> None:
    tasks = split(
        ranges_of(*[100] * 35),
        min_partitions=None,
        max_records_per_partition=None,
        min_records_per_task=1000,
    )
    assert len(tasks) == 3
    assert max(sizes_of(tasks)) - min(sizes_of(tasks)) <= 100


def test_the_largest_task_comes_first_and_ties_in_order_of_partitions() -> None:
    tasks = split(
        ranges_of(50, 900, 50, 2000),
        min_partitions=None,
        max_records_per_partition=None,
        min_records_per_task=0,
    )
    assert [task[0].partition for task in tasks] == [3, 1, 0, 2]


def test_parts_of_a_partition_that_meet_in_a_task_are_one_range() -> None:
    ranges = [KafkaOffsetRange("t", 0, 0, 100), KafkaOffsetRange("t", 0, 100, 150)]
    (task,) = split(
        ranges, min_partitions=None, max_records_per_partition=None, min_records_per_task=1000
    )
    assert task == (KafkaOffsetRange("t", 0, 0, 150),)


def test_nothing_to_read_is_no_task() -> None:
    ranges = [KafkaOffsetRange("t", 0, 5, 5), KafkaOffsetRange("t", 1, 7, 3)]
    assert not split(
        ranges, min_partitions=8, max_records_per_partition=10, min_records_per_task=1000
    )
