"""`/scale`: how many members a group needs, by what each of them tells."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

import pytest

from aiokafka_lite import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer.monitoring.diagnosis import Cause
from aiokafka_lite.extras import web
from aiokafka_lite.extras.web import pages, scale
from aiokafka_lite.extras.web.scale import (
    MemberSample,
    PartitionSample,
    Scaling,
    Target,
    added,
    members_wanted,
)
from tests.support.asking import ask
from tests.support.for_each import for_each

Places: TypeAlias = Sequence[tuple[float, float]]


def sample(
    at_s: float, places: Places, busy: float = 1.0, *, is_paused: bool = False
) -> MemberSample:
    """A member's partitions with their positions and lags."""
    found = {
        TopicPartition("t", n): PartitionSample(int(p), int(lag))
        for n, (p, lag) in enumerate(places)
    }
    return MemberSample(at_s, busy * at_s, found, is_paused)


@for_each(
    [
        # How many, positions and lags before and 100 s later, busy.
        ("no partitions", 0.0, [], [], 0.0),
        ("no new records", 0.0, [(5, 0)] * 4, [(5, 0)] * 4, 0.0),
        ("a fifth of its time", 0.2, [(0, 0)] * 4, [(1000, 0)] * 4, 0.2),
        ("all of its time", 1.0, [(0, 0)] * 4, [(1000, 0)] * 4, 1.0),
        ("hardly any time", 0.05, [(0, 0)] * 4, [(1000, 0)] * 4, 0.0),
        ("as fast again to catch up", 2.0, [(0, 3000)] * 4, [(1000, 3000)] * 4, 0.1),
        ("falls behind", 3.0, [(0, 0)] * 4, [(1000, 1500)] * 4, 1.0),
        ("one partition has the lag", 1.0, [(0, 9000), (0, 0)], [(1000, 9000), (0, 0)], 1.0),
        ("no more than partitions", 4.0, [(0, 0)] * 4, [(10, 1_000_000)] * 4, 1.0),
        ("no record is read", 1.0, [(0, 500)] * 4, [(0, 900)] * 4, 1.0),
        ("a seek back", 1.0, [(900, 0)] * 4, [(0, 900)] * 4, 1.0),
        ("all partitions are new", 1.0, [], [(9, 100)] * 3, 1.0),
    ],
    "{0}",
)
def test_members_are_wanted_by_lag_rate_and_use(
    name: str, expected: float, before: Places, after: Places, busy: float
) -> None:
    found = members_wanted(sample(0.0, before), sample(100.0, after, busy), Target(part=1.0))
    assert found == pytest.approx(expected)


def test_members_use_a_part_of_their_capacity_and_no_partition_needs_two() -> None:
    before, after = sample(0.0, [(0, 0)] * 4), [(1000, 0)] * 4
    for part, busy, expected in ((0.8, 0.8, 1.0), (0.8, 0.4, 0.5), (0.5, 0.8, 1.6), (0.2, 1.0, 4)):
        found = members_wanted(before, sample(100.0, after, busy), Target(part=part))
        assert found == pytest.approx(expected)


def test_the_size_is_kept_while_handlers_are_paused_or_little_is_known() -> None:
    before, after = sample(0.0, [(0, 5000)] * 4), [(10, 9000)] * 4
    assert members_wanted(before, sample(100.0, after), Target()) == 4.0
    assert members_wanted(before, sample(100.0, after, is_paused=True), Target()) == 1.0
    assert members_wanted(before, sample(5.0, after), Target()) == 1.0


async def test_records_that_are_not_due_are_no_lag() -> None:
    rows: list[dict[str, object]] = [
        {"topic": "t", "partition": n, "position": 5, "lag": 100, "state": state}
        for n, state in enumerate(["buffered", Cause.DELAYED.value])
    ]
    rows.append({"topic": "t", "partition": 2, "position": None, "lag": None, "state": "fetching"})
    counts = dict.fromkeys(("processing_paused", "processing_concurrency", "processing_calls"), 0)
    found = Scaling().answer({"partitions": rows, **counts}, Target(), now=0.0)
    assert (found["lag"], found["partitions_with_lag"], found["wanted"]) == (100, 1, 1)
    assert added([found, found]) == {
        "lag": 200, "partitions_with_lag": 2, "wanted": 2, "busy": found["busy"]
    }  # fmt: skip


class Group:
    """A group that an autoscaler gives the size it wants, asked every 15 s, smaller after 300 s."""

    def __init__(self, partitions: int, per_member: float) -> None:
        self.partitions, self.per_member, self.size = partitions, per_member, 1
        self.position, self.lag = [0.0] * partitions, [0.0] * partitions
        self.earlier: dict[int, MemberSample] = {}
        self.wishes = deque([1], maxlen=20)
        self.now = 0.0

    def run(self, seconds: float, new: Sequence[float]) -> list[int]:
        """Let records arrive, each second so many in each partition. Return the sizes."""
        sizes = []
        for _ in range(int(seconds / 15)):
            self.now += 15
            total = 0.0
            for member in range(self.size):
                total += self.step([*range(member, self.partitions, self.size)], new)
            self.wishes.append(max(1, math.ceil(round(total, 3))))
            if max(self.wishes) != self.size:
                self.size = max(self.wishes)
                self.earlier.clear()
            sizes.append(self.size)
        return sizes

    def step(self, mine: Sequence[int], new: Sequence[float]) -> float:
        there = {n: self.lag[n] + 15 * new[n] for n in mine}
        can, work = 15 * self.per_member, sum(there.values())
        part = min(1.0, can / work) if work else 0.0
        for n in mine:
            self.position[n] += there[n] * part
            self.lag[n] = there[n] * (1 - part)
        places = {
            TopicPartition("t", n): PartitionSample(int(self.position[n]), int(self.lag[n]))
            for n in mine
        }
        before = self.earlier.get(mine[0])
        busy_s = (0.0 if before is None else before.busy_s) + min(15.0, 15 * work / can)
        latest = MemberSample(self.now, busy_s, places)
        self.earlier[mine[0]] = latest
        return members_wanted(before or latest, latest, Target())


def test_a_group_grows_catches_up_and_shrinks() -> None:
    group = Group(partitions=10, per_member=100.0)
    assert group.run(1800, [5.0] * 10)[-20:] == [1] * 20
    busy = group.run(3600, [48.0] * 10)  # 480 a second
    assert max(busy) <= 10
    assert sum(group.lag) < 1000
    assert set(busy[-60:]) == {6}
    group.lag = [3000.0] * 10  # a burst
    assert max(group.run(600, [48.0] * 10)) > 5
    assert sum(group.lag) < 30_000 / 4
    assert group.run(3600, [1.0] * 10)[-1] == 1
    hot = group.run(3600, [300.0] + [1.0] * 9)  # more than one member reads of one partition
    assert max(hot) <= 3


async def test_the_page_answers_an_autoscaler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "REST_PER_WORK", 0)
    monkeypatch.setattr(scale, "LEAST_S", 0.001)
    handled, release = asyncio.Semaphore(0), asyncio.Event()

    async def handle(record: ConsumerRecord) -> None:
        handled.release()
        if record.value == b"wait":
            await release.wait()

    async with Broker() as broker:
        broker.create_topic("t", 2)
        consumer = AIOKafkaConsumer(
            "t", bootstrap_servers=broker.bootstrap_servers, group_id="g",
            auto_offset_reset="earliest",
        )  # fmt: skip
        async with web.serve(consumer) as url, consumer:
            running = asyncio.create_task(consumer.run(handle, concurrency=4, order=None))
            for _ in range(8):
                broker.produce("t", "go", partition=0)
                await handled.acquire()
            first = (await ask(f"{url}scale")).fields()
            assert first.keys() == {"lag", "partitions_with_lag", "busy", "wanted"}
            for _ in range(2):
                broker.produce("t", "wait", partition=1)
                await handled.acquire()
            await ask(f"{url}scale")
            metrics = consumer.metrics()
            assert (metrics["processing_calls"], metrics["processing_concurrency"]) == (2, 4)
            await asyncio.sleep(0.2)
            answer = await ask(f"{url}scale/60/0.5", Host="pod.example")
            found = answer.fields()
            assert (found["lag"], found["partitions_with_lag"]) == (2, 1)
            assert 0 < float(str(found["busy"])) <= 1
            assert 0 < float(str(found["wanted"])) <= 2
            for wrong in ("0", "-1", "inf", "nan", "soon", "60/x", "60/0", "60/1.1", "60/0.8/"):
                assert (await ask(f"{url}scale/{wrong}")).status == 404
            release.set()
            await consumer.stop()
            await running
            assert (await ask(f"{url}scale")).status == 503
