"""Reading for one Fetch request: in steps, and only when it is worth it."""

from __future__ import annotations

import pytest

from aiokafka_lite.broker.fetch_sessions import CachedPartition, FetchKey
from aiokafka_lite.broker.handlers.fetch import FetchRead, Find
from aiokafka_lite.broker.log.storage import MemoryStore
from aiokafka_lite.broker.topics import Node as Address
from aiokafka_lite.broker.topics import Partition, PartitionKey
from aiokafka_lite.errors import UnknownTopicOrPartitionError
from aiokafka_lite.protocol.messages.fetch import FetchPartition
from aiokafka_lite.protocol.source import ELEMENTS_PER_STEP, run_to_end
from tests.broker.logs import MEGABYTE, batch, open_log


class Node:
    """A node that no client prefers."""

    id = 1
    is_up = True
    address = Address(1, "h", 1)


def target(offset: int = 0) -> CachedPartition:
    return CachedPartition(
        FetchKey("t", 0), FetchPartition(fetch_offset=offset, partition_max_bytes=MEGABYTE)
    )


def reading(
    targets: list[CachedPartition], find: Find, *, min_bytes: int = 1, max_bytes: int = MEGABYTE
) -> FetchRead:
    return FetchRead(targets, find, Node(), {}, min_bytes, max_bytes, is_committed=False)


@pytest.fixture
def partition() -> Partition:
    key = PartitionKey(bytes(16), 0)
    return Partition("t", key, open_log(MemoryStore(MEGABYTE)), 1, 0, [1], [1], lambda _: None)


def test_long_poll_is_worth_answering_when_there_is_enough_or_the_leader_has_moved(
    partition: Partition,
) -> None:
    size = len(batch())
    read = reading([target()], lambda _: partition, min_bytes=2 * size)
    for is_enough in (False, False, True):
        run_to_end(read.read_in_steps())
        assert run_to_end(read.is_worth_answering()) is is_enough
        partition.append(batch())
    at_end = reading([target(3)], lambda _: partition)
    run_to_end(at_end.read_in_steps())
    assert not run_to_end(at_end.is_worth_answering())
    partition.leader_id = 2
    assert run_to_end(at_end.is_worth_answering())


def test_partitions_that_disappear_make_a_long_poll_worth_answering(partition: Partition) -> None:
    found: list[Partition | type[UnknownTopicOrPartitionError]] = [partition]
    read = reading([target()], lambda _: found[0])
    run_to_end(read.read_in_steps())
    assert not run_to_end(read.is_worth_answering())
    found[0] = UnknownTopicOrPartitionError
    assert run_to_end(read.is_worth_answering())


def test_many_partitions_are_read_in_steps() -> None:
    targets = [target()] * (2 * ELEMENTS_PER_STEP + 1)
    read = reading(targets, lambda _: UnknownTopicOrPartitionError, max_bytes=1)
    assert len(list(read.read_in_steps())) == 2
