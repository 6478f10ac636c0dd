"""A consumer that is tested, and the leader of its group, whose steps the test decides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.assignors import RoundRobinPartitionAssignor
from aiokafka_lite.structs import TopicPartition
from tests.support import inside
from tests.support.cluster import KafkaHandle, unique
from tests.support.other_member import OtherMember
from tests.support.rows import rows
from tests.support.waiting import PATIENCE_S

RECORD_COUNT = 520
SETTINGS: Final[Mapping[str, object]] = {
    # The other member leads, by the only assignor that it knows.
    "group_protocol": "classic",
    "partition_assignment_strategy": (RoundRobinPartitionAssignor,),
    "auto_offset_reset": "earliest",
    "heartbeat_interval_ms": 30,
    "auto_commit_interval_ms": 60_000,
    "rebalance_hold_ms": 0,  # what is worked on stays unfinished
}


class Pair(NamedTuple):
    """The consumer that is tested, and the member that leads its group."""

    consumer: AIOKafkaConsumer
    other: OtherMember
    # Of the only partition of their topic.
    tp: TopicPartition
    # Another topic, with which a subscription can be changed.
    more: str

    async def read(self, count: int) -> None:
        """Be handed so many records by one get."""
        found = await self.consumer.getmany(timeout_ms=PATIENCE_S * 1000, max_records=count)
        assert [len(batch) for batch in found.values()] == [count]

    async def until_it_is(self, state: str) -> None:
        """Wait until the consumer is in a state of its membership."""
        await self.other.until(lambda: f"({state})" in " ".join(self.consumer.health().reasons))

    async def have_it_join(self) -> None:
        """Have the consumer join anew, which the coordinator answers when the other has, too."""
        self.consumer.subscribe([self.tp.topic, self.more])
        await self.other.until(self.other.is_called_to_rejoin)

    def take_over(self, offset: int) -> None:
        """Join, take the partition, and commit; the consumer hears of none of it."""
        self.other.begin_join()
        self.other.end_join()
        self.other.share_out([0], [])
        self.other.commit({self.tp: offset})

    async def move(self, *, to_other: bool) -> None:
        """Rebalance, and wait until the consumer has what is left to it."""
        mine, theirs = ([0], []) if to_other else ([], [0])
        await self.other.rebalance(mine, theirs)
        await self.other.until(lambda: self.consumer.health().verdict == "ok" and self.is_settled)
        assert self.consumer.assignment() == (set() if to_other else {self.tp})

    @property
    def is_settled(self) -> bool:
        return inside.generation(self.consumer) == self.other.generation


@asynccontextmanager
async def two_members(kafka: KafkaHandle, **settings: object) -> AsyncIterator[Pair]:
    """A consumer that has the only partition, and the group's leader, that has none."""
    topic, more, group_id = await kafka.create_topic(), await kafka.create_topic(), unique("g")
    await kafka.produce(topic, 0, rows(0, RECORD_COUNT))
    with OtherMember(kafka.bootstrap_servers, group_id, topic) as other:
        await other.lead()
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=kafka.bootstrap_servers,
            group_id=group_id,
            **{**SETTINGS, **settings},  # type: ignore[arg-type]
        )
        starting = asyncio.ensure_future(consumer.start())
        try:
            await other.until(other.is_called_to_rejoin)
            await other.rebalance([], [0])
            await asyncio.wait_for(starting, PATIENCE_S)
            yield Pair(consumer, other, TopicPartition(topic, 0), more)
        finally:
            await consumer.stop()
            await asyncio.gather(starting, return_exceptions=True)
