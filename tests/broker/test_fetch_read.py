"""Reading for one Fetch request: in steps, and only when it is worth it."""

from __future__ import annotations

import pytest

from aiokafka_lite.broker.fetching.read import FetchLimits, FetchRead
from aiokafka_lite.broker.fetching.session import CachedPartition, FetchKey
from aiokafka_lite.broker.log.storage import MemoryStore
from aiokafka_lite.broker.topics import Partition, PartitionKey
from aiokafka_lite.errors import NotLeaderForPartitionError, UnknownTopicOrPartitionError
from aiokafka_lite.protocol.source import ELEMENTS_PER_STEP, run_to_end
from tests.broker.logs import MEGABYTE, batch, open_log


class Leader:
    """Reads partitions, unless it does not lead them."""

    leads = True

    def check_readable(self, partition: Partition, client_epoch: int) -> None:
        if not self.leads:
            raise NotLeaderForPartitionError

    def preferred_replica(self, partition: Partition) -> int | None:
        return None

    def end_offset(self, partition: Partition) -> int:
        return partition.high_watermark


def target(offset: int = 0) -> CachedPartition:
    return CachedPartition(FetchKey("t", 0), offset, MEGABYTE, -1, -1)


@pytest.fixture
def partition() -> Partition:
    key = PartitionKey(bytes(16), 0)
    return Partition("t", key, open_log(MemoryStore(MEGABYTE)), 1, 0, [1], [1], lambda _: None)


def test_long_poll_is_worth_answering_when_there_is_enough_or_the_leader_has_moved(
    partition: Partition,
) -> None:
    size = len(batch())
    leader = Leader()
    limits = FetchLimits(2 * size, MEGABYTE, 0)
    read = FetchRead([target()], limits, lambda _: partition, leader)
    for is_enough in (False, False, True):
        run_to_end(read.read_in_steps())
        assert read.is_worth_answering() is is_enough
        partition.append(batch())
    at_end = FetchRead([target(3)], FetchLimits(1, MEGABYTE, 0), lambda _: partition, leader)
    run_to_end(at_end.read_in_steps())
    assert not at_end.is_worth_answering()
    leader.leads = False
    assert at_end.is_worth_answering()


def test_partitions_that_disappear_make_a_long_poll_worth_answering(partition: Partition) -> None:
    found: list[Partition | type[UnknownTopicOrPartitionError]] = [partition]
    read = FetchRead([target()], FetchLimits(1, MEGABYTE, 0), lambda _: found[0], Leader())
    run_to_end(read.read_in_steps())
    assert not read.is_worth_answering()
    found[0] = UnknownTopicOrPartitionError
    assert read.is_worth_answering()


def test_many_partitions_are_read_in_steps() -> None:
    targets = [target()] * (2 * ELEMENTS_PER_STEP + 1)
    read = FetchRead(
        targets, FetchLimits(1, 1, 0), lambda _: UnknownTopicOrPartitionError, Leader()
    )
    assert len(list(read.read_in_steps())) == 2
