"""Members come and go all the time: every record is handed out, by whoever owned it then."""

from __future__ import annotations

import asyncio
import random
from typing import Final, NamedTuple

import pytest

from aiokafka_lite._compat import timeout
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.assignors import (
    AbstractPartitionAssignor,
    RangePartitionAssignor,
    RoundRobinPartitionAssignor,
)
from aiokafka_lite.consumer.assignors.sticky import StickyPartitionAssignor
from aiokafka_lite.errors import CommitFailedError, ConsumerStoppedError
from aiokafka_lite.structs import TopicPartition
from tests.support import inside
from tests.support.cluster import KafkaHandle, unique
from tests.support.rounds import LONG
from tests.support.rows import rows, tps
from tests.support.waiting import PATIENCE_S, until

ASSIGNORS: Final = [RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor]
PARTITION_COUNT: Final = 6
BATCH_SIZE: Final = 20
CALM_WITHIN_S: Final = 10.0


class HandOut(NamedTuple):
    """One batch of one partition, from its first to its last offset."""

    tp: TopicPartition
    generation: int
    owner: int
    first: int
    last: int


class Storming:
    """A member that commits after each batch, and writes down who was handed what, and when."""

    def __init__(
        self,
        kafka: KafkaHandle,
        topic: str,
        group_id: str,
        assignor: type[AbstractPartitionAssignor],
        handed_out: list[HandOut],
    ) -> None:
        self.consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=kafka.bootstrap_servers,
            group_id=group_id,
            group_protocol="classic",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=50,
            retry_backoff_ms=20,
            partition_assignment_strategy=(assignor,),
        )
        self._handed_out = handed_out
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.consumer.start()
        self._task = asyncio.create_task(self._work())

    async def stop(self) -> None:
        await self.consumer.stop()
        assert self._task is not None
        await self._task

    async def _work(self) -> None:
        while True:
            try:
                batches = await self.consumer.poll(timeout_ms=1_000)
                generation = inside.generation(self.consumer)
                for tp, batch in batches.items():
                    assert tp in self.consumer.assignment()
                    first, last = batch[0].offset, batch[-1].offset
                    self._handed_out.append(HandOut(tp, generation, id(self), first, last))
                    assert [record.offset for record in batch] == list(range(first, last + 1))
                if batches:
                    await self.consumer.commit()
            except CommitFailedError:
                continue
            except ConsumerStoppedError:
                return


@pytest.mark.parametrize("assignor", ASSIGNORS)
async def test_a_storm_of_rebalances_loses_nothing_and_calms_down(
    kafka: KafkaHandle, assignor: type[AbstractPartitionAssignor]
) -> None:
    topic, group_id = await kafka.create_topic(partitions=PARTITION_COUNT), unique("storm")
    rng = random.Random(0)
    handed_out: list[HandOut] = []
    members: list[Storming] = []

    async def join() -> None:
        member = Storming(kafka, topic, group_id, assignor, handed_out)
        members.append(member)
        await member.start()

    await join()
    produced = 0
    for _ in range(24 if LONG else 8):
        for partition in range(PARTITION_COUNT):
            await kafka.produce(topic, partition, rows(produced, BATCH_SIZE))
        produced += BATCH_SIZE
        if len(members) == 1 or (len(members) < 6 and rng.random() < 0.5):
            await join()
        else:
            await members.pop(rng.randrange(len(members))).stop()
        await asyncio.sleep(rng.uniform(1, 2) if LONG else rng.uniform(0, 0.1))

    calm_by = asyncio.get_running_loop().time() + CALM_WITHIN_S

    def is_calm() -> bool:
        held = [tp for member in members for tp in member.consumer.assignment()]
        return sorted(held) == sorted(tps(topic, *range(PARTITION_COUNT)))

    await until(is_calm)
    assert asyncio.get_running_loop().time() < calm_by

    async with timeout(PATIENCE_S):
        for tp in tps(topic, *range(PARTITION_COUNT)):
            while await members[0].consumer.committed(tp) != produced:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    for member in members:
        await member.stop()
    owners: dict[tuple[TopicPartition, int], int] = {}
    read_to = dict.fromkeys(tps(topic, *range(PARTITION_COUNT)), -1)
    for tp, generation, owner, first, last in handed_out:
        assert owners.setdefault((tp, generation), owner) == owner
        assert first <= read_to[tp] + 1  # again perhaps, but nothing is passed over
        read_to[tp] = max(read_to[tp], last)
    assert set(read_to.values()) == {produced - 1}
