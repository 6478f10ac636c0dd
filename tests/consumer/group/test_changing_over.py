"""A group goes over from eager to cooperative by two rolling restarts, as KIP-429 says."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Final

from aiokafka_lite import AIOKafkaConsumer, CooperativeStickyPartitionAssignor
from aiokafka_lite.consumer.assignors import AbstractPartitionAssignor, RangePartitionAssignor
from tests.support import inside
from tests.support.cluster import KafkaHandle, unique
from tests.support.listeners import Losing
from tests.support.rows import rows
from tests.support.waiting import until

PARTITIONS: Final = 6
MEMBERS: Final = 3
RECORDS: Final = 40
Strategy = tuple[type[AbstractPartitionAssignor], ...]
EAGER: Final[Strategy] = (RangePartitionAssignor,)
BOTH: Final[Strategy] = (CooperativeStickyPartitionAssignor, RangePartitionAssignor)
COOPERATIVE: Final[Strategy] = (CooperativeStickyPartitionAssignor,)


class Member:
    """Reads on and on, and keeps where each record was."""

    def __init__(self, kafka: KafkaHandle, topic: str, group: str, strategy: Strategy) -> None:
        self.listener = Losing()
        self.seen: list[tuple[int, int]] = []
        self.consumer = AIOKafkaConsumer(
            bootstrap_servers=kafka.bootstrap_servers,
            group_id=group,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=100,
            fetch_max_wait_ms=50,
            partition_assignment_strategy=strategy,
        )
        self.consumer.subscribe([topic], listener=self.listener)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.consumer.start()
        self._task = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while True:
            found = await self.consumer.getmany(timeout_ms=50, max_records=10)
            for tp, records in found.items():
                self.seen += [(tp.partition, record.offset) for record in records]

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self.consumer.stop()


def is_shared_out(members: Sequence[Member]) -> bool:
    """Whether each partition has an owner, and no member has more than another."""
    owned = [each.consumer.assignment() for each in members]
    return (
        len(set().union(*owned)) == sum(map(len, owned)) == PARTITIONS
        and len({len(each) for each in owned}) == 1
        and all(inside.is_settled(each.consumer) for each in members)
    )


async def test_two_rolling_restarts_lose_and_repeat_nothing(kafka: KafkaHandle) -> None:
    topic, group = await kafka.create_topic(partitions=PARTITIONS), unique("g")
    written = 0

    async def write() -> None:
        nonlocal written
        for partition in range(PARTITIONS):
            await kafka.produce(topic, partition, rows(written, RECORDS))
        written += RECORDS

    members = [Member(kafka, topic, group, EAGER) for _ in range(MEMBERS)]
    everybody = list(members)
    try:
        for each in members:
            await each.start()
        await until(lambda: is_shared_out(members))
        for strategy in (BOTH, COOPERATIVE):
            for place in range(MEMBERS):
                await write()
                await members[place].stop()
                await write()
                members[place] = Member(kafka, topic, group, strategy)
                everybody.append(members[place])
                await members[place].start()
            await until(lambda: is_shared_out(members))
        # From here on only what moves is given back.
        calls = [len(each.listener.calls) for each in members]
        await members[0].stop()
        await until(lambda: is_shared_out(members[1:]))
        for each, before in zip(members[1:], calls[1:], strict=True):
            assert {name for name, tps in each.listener.calls[before:] if tps} == {"assigned"}
        expected = Counter({(p, n): 1 for p in range(PARTITIONS) for n in range(written)})
        seen: Counter[tuple[int, int]] = Counter()

        def is_all_seen() -> bool:
            seen.clear()
            seen.update(place for each in everybody for place in each.seen)
            return seen.keys() >= expected.keys()

        await until(is_all_seen)
        assert seen == expected
        assert not [name for each in everybody for name, _ in each.listener.calls if name == "lost"]
    finally:
        for each in members:
            await each.stop()
