"""Which producer id and epoch batches are from, and what happens when the epochs are used up."""

from __future__ import annotations

from aiokafka_lite.producing.batch import ProducerIdAndEpoch
from aiokafka_lite.producing.partition_queue import CurrentIdentity, PartitionQueue
from aiokafka_lite.structs import TopicPartition


def broken(identity: ProducerIdAndEpoch, partition: int = 0) -> PartitionQueue:
    queue = PartitionQueue(TopicPartition("t", partition))
    queue.adopt(identity)
    queue.is_broken = True
    return queue


def test_a_broken_queue_gets_the_next_epoch_and_the_next_one_shares_it() -> None:
    asked: list[None] = []
    mine = CurrentIdentity(lambda: asked.append(None))
    mine.renew(ProducerIdAndEpoch(5, 0))
    first, second = broken(ProducerIdAndEpoch(5, 0)), broken(ProducerIdAndEpoch(5, 0), 1)
    mine.mend(first)
    mine.mend(second)
    assert mine.current == first.identity == second.identity == ProducerIdAndEpoch(5, 1)
    assert not first.is_broken
    assert not asked


def test_used_up_epochs_make_a_new_id_be_asked_for_once() -> None:
    asked: list[None] = []
    mine = CurrentIdentity(lambda: asked.append(None))
    last = ProducerIdAndEpoch(5, 2**15 - 1)
    mine.renew(last._replace(epoch=last.epoch - 1))
    mine.mend(broken(last._replace(epoch=last.epoch - 1)))
    assert mine.current == last
    queue = broken(last)
    mine.mend(queue)
    mine.mend(queue)
    assert mine.current is None
    assert queue.is_broken
    assert len(asked) == 1
    mine.renew(ProducerIdAndEpoch(6, 0))
    mine.mend(queue)
    assert queue.identity == ProducerIdAndEpoch(6, 0)
