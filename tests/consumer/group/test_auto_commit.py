"""Auto-commit never covers a record that is still being worked on, whatever happens to it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import hypothesis
import pytest
from hypothesis import strategies as st

from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.buffer.chunk import Record
from aiokafka_lite.errors import CoordinatorLoadInProgressError
from aiokafka_lite.protocol.messages.offsets import OffsetCommitRequest
from aiokafka_lite.structs import TopicPartition
from tests.consumer.group.one_record_each import BATCH, WAYS
from tests.support.cluster import KafkaHandle, unique
from tests.support.programs import started
from tests.support.reading import committed, reading
from tests.support.rounds import LONG
from tests.support.rows import rows
from tests.support.waiting import PATIENCE_S, eventually, until

STUCK_AT = 5


@pytest.mark.virtual_time
async def test_commit_that_is_sent_again_does_not_undo_an_auto_commit_that_has_gone_on() -> None:
    tp = TopicPartition("t", 0)
    async with Broker() as broker:
        broker.create_topic("t")
        for _ in range(4):
            broker.produce("t", b"x")
        settings = {"auto_commit_interval_ms": 10_000, "retry_backoff_ms": 1_000}
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        async with reading(kafka, "t", group_id="g", **settings) as consumer:  # type: ignore[arg-type]
            await consumer.getone()
            await consumer.getone()
            on_commit = broker.on("OffsetCommit")
            with on_commit.fail(CoordinatorLoadInProgressError, times=2) as rule:
                await until(lambda: rule.hits == 1)  # the auto-commit
                await asyncio.sleep(0.5)
                commit = asyncio.ensure_future(consumer.commit())
                await until(lambda: rule.hits == 2)
            await consumer.getone()
            await consumer.getone()
            await commit
            assert broker.committed("g") == {tp: 3}


# --- Killed ------------------------------------------------------------------------------------
async def test_a_killed_process_has_not_committed_what_it_was_working_on() -> None:
    async with Broker() as broker:
        await kill_while_working(KafkaHandle("embedded", broker.bootstrap_servers))


@pytest.mark.real_kafka
async def test_a_killed_process_has_not_committed_what_it_was_working_on_with_kafka(
    real_kafka: str,
) -> None:
    await kill_while_working(KafkaHandle("real", real_kafka))


async def kill_while_working(kafka: KafkaHandle) -> None:
    topics = {way: await kafka.create_topic(unique(way)) for way in WAYS}
    for topic in topics.values():
        await kafka.produce(topic, 0, rows(0, 10))
    async with started(
        sys.executable,
        "-m",
        "tests.consumer.group.one_record_each",
        kafka.bootstrap_servers,
        str(STUCK_AT),
        *(f"{way}={topic}" for way, topic in topics.items()),
        stdout=asyncio.subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        first_unfinished: dict[str, int] = {}
        while len(first_unfinished) < len(WAYS):
            line = await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
            way, offset = line.decode().split()
            first_unfinished[way] = int(offset)
        for way, topic in topics.items():
            # What was finished is committed while the process is stuck; then it is killed.
            expected = first_unfinished[way]
            assert STUCK_AT - BATCH < expected <= STUCK_AT
            await eventually(lambda t=topic: committed(kafka, t, TopicPartition(t, 0)), expected)  # type: ignore[misc]
        process.kill()
    for way, topic in topics.items():
        assert await committed(kafka, topic, TopicPartition(topic, 0)) == first_unfinished[way]


# --- Seeks -------------------------------------------------------------------------------------
async def ahead(consumer: AIOKafkaConsumer, tp: TopicPartition) -> None:
    consumer.seek(tp, 50)


async def to_the_end(consumer: AIOKafkaConsumer, tp: TopicPartition) -> None:
    await consumer.seek_to_end(tp)


async def back(consumer: AIOKafkaConsumer, tp: TopicPartition) -> None:
    consumer.seek(tp, 4)


Seek = Callable[[AIOKafkaConsumer, TopicPartition], Awaitable[None]]
SEEKS: Final[Mapping[Seek, int]] = {ahead: 50, to_the_end: 60, back: 4}
any_seek = pytest.mark.parametrize("seek", SEEKS, ids=lambda seek: seek.__name__)


@asynccontextmanager
async def working_on_ten(
    kafka: KafkaHandle, auto_commit_interval_ms: int
) -> AsyncIterator[tuple[AIOKafkaConsumer, TopicPartition, TopicPartition]]:
    """A consumer that was handed the first ten records of one partition, and none of another."""
    topic = await kafka.create_topic(partitions=2)
    first, second = (TopicPartition(topic, number) for number in range(2))
    for tp in (first, second):
        await kafka.produce(topic, tp.partition, rows(0, 60))
    async with reading(
        kafka, topic, group_id=topic, auto_commit_interval_ms=auto_commit_interval_ms
    ) as consumer:
        await consumer.position(second)
        found = await consumer.getmany(first, timeout_ms=PATIENCE_S * 1000, max_records=10)
        assert [len(batch) for batch in found.values()] == [10]
        yield consumer, first, second


@pytest.mark.real_if_long
@any_seek
async def test_a_seek_has_nothing_committed_that_is_worked_on(
    kafka: KafkaHandle, seek: Seek
) -> None:
    async with working_on_ten(kafka, 20) as (consumer, first, second):
        await seek(consumer, first)
        consumer.seek(second, 7)  # of which nothing is worked on
        await eventually(lambda: consumer.committed(second), 7)
        assert await consumer.committed(first) in (None, 0)

        await consumer.getmany(second, timeout_ms=0)  # back for more
        await eventually(lambda: consumer.committed(first), SEEKS[seek])


@pytest.mark.real_if_long
@any_seek
async def test_an_error_after_a_seek_leaves_what_was_worked_on_to_be_read_again(
    kafka: KafkaHandle, seek: Seek
) -> None:
    async def fail() -> None:
        async with working_on_ten(kafka, 60_000) as (consumer, first, _):
            topics.append(first.topic)
            await seek(consumer, first)
            raise LookupError

    topics: list[str] = []
    with pytest.raises(LookupError):
        await fail()
    assert await committed(kafka, topics[0], TopicPartition(topics[0], 0)) in (None, 0)


@pytest.mark.real_if_long
@any_seek
@pytest.mark.parametrize("way", ["commit", "stop"])
async def test_where_a_seek_went_is_committed_when_the_application_says_so(
    kafka: KafkaHandle, seek: Seek, way: str
) -> None:
    async with working_on_ten(kafka, 60_000) as (consumer, first, _):
        await seek(consumer, first)
        if way == "commit":
            await consumer.commit()
        else:
            assert await consumer.stop() == {}
    assert await committed(kafka, first.topic, TopicPartition(first.topic, 0)) == SEEKS[seek]


# --- Whatever the application does -----------------------------------------------------------
TPS: Final = (TopicPartition("t", 0), TopicPartition("t", 1))
RECORD_COUNT = 12

Step = tuple[str, tuple[int, ...]]


def a_step(what: str, *arguments: st.SearchStrategy[int]) -> st.SearchStrategy[Step]:
    return st.tuples(st.just(what), st.tuples(*arguments))


a_partition = st.integers(0, 1)
some_steps = st.lists(
    st.one_of(
        a_step("getone"),
        a_step("next"),
        a_step("poll", st.integers(1, 4)),
        a_step("getmany", a_partition),
        a_step("seek", a_partition, st.integers(0, RECORD_COUNT)),
        a_step("pause", a_partition),
        a_step("resume", a_partition),
        a_step("commit"),
        a_step("lose the answer"),
        a_step("refuse"),
        a_step("wait"),
    ),
    max_size=25,
)


class Application:
    """Does one thing after the other with a consumer, and keeps its own books about it."""

    def __init__(self, broker: Broker, consumer: AIOKafkaConsumer) -> None:
        self.broker = broker
        self.consumer = consumer
        self.handed_out = dict.fromkeys(TPS, 0)
        # Before this all was worked on, at some time at least.
        self.finished = dict.fromkeys(TPS, 0)
        # What the broker was told last; None once a seek may have it go back.
        self.committed: dict[TopicPartition, int] | None = dict.fromkeys(TPS, 0)
        self.commits: list[tuple[asyncio.Future[None], dict[TopicPartition, int]]] = []
        self._seen = broker.requests.total

    async def do(self, what: str, *arguments: int) -> None:
        if what in ("getone", "next", "poll", "getmany"):
            await self._get(what, *arguments)
        elif what == "seek":
            self._seek(*arguments)
        elif what == "pause":
            self.consumer.pause(TPS[arguments[0]])
        elif what == "resume":
            self.consumer.resume(TPS[arguments[0]])
        elif what == "commit":
            await self._commit()
        elif what == "lose the answer":
            self.broker.on("OffsetCommit").disconnect(handled=True)
        elif what == "refuse":
            self.broker.on("OffsetCommit").fail(CoordinatorLoadInProgressError)
        else:
            await asyncio.sleep(0.012)
        self.check()

    async def _get(self, way: str, argument: int = 0) -> None:
        self._finish(self.handed_out)  # back for more
        consumer = self.consumer
        try:
            async with timeout(0.03):
                if way == "getone":
                    self._note([await consumer.getone()])
                elif way == "next":
                    self._note([await anext(aiter(consumer))])
                else:
                    batches = await (
                        consumer.poll(20, max_records=argument)
                        if way == "poll"
                        else consumer.getmany(TPS[argument], timeout_ms=20, max_records=3)
                    )
                    for batch in batches.values():
                        self._note(batch)
        except asyncio.TimeoutError:
            pass  # paused, or at the end

    def _note(self, batch: Sequence[Record]) -> None:
        tp = TopicPartition("t", batch[0].partition)
        assert batch[0].offset == self.handed_out[tp]  # none lost, none twice
        self.handed_out[tp] = batch[-1].offset + 1

    def _finish(self, offsets: Mapping[TopicPartition, int]) -> None:
        for tp, offset in offsets.items():
            self.finished[tp] = max(self.finished[tp], offset)

    def _seek(self, number: int, offset: int) -> None:
        self.consumer.seek(TPS[number], offset)
        self.handed_out[TPS[number]] = offset
        self._finish({TPS[number]: offset})
        self.committed = None

    async def _commit(self) -> None:
        """Commit what is in our hands, and go on before that is done."""
        self._finish(self.handed_out)
        commit = asyncio.ensure_future(self.consumer.commit())
        self.commits.append((commit, dict(self.handed_out)))
        await asyncio.sleep(0)  # it looks at the positions now

    def check(self) -> None:
        """Compare the commits that came since the last look with what was worked on."""
        since, self._seen = self._seen, self.broker.requests.total
        for seen in self.broker.requests.of("OffsetCommit", since=since):
            assert isinstance(seen.request, OffsetCommitRequest)
            if CoordinatorLoadInProgressError.errno in seen.error_codes:
                continue
            for entry in seen.request.topics[0].partitions:
                tp, offset = TPS[entry.partition_index], entry.committed_offset
                assert offset <= self.finished[tp], f"{tp} is being worked on"
                if self.committed is not None:
                    assert offset >= self.committed[tp], f"{tp} goes back"
                    self.committed[tp] = offset
        if self.committed is not None:
            for commit, offsets in self.commits:
                if commit.done() and not commit.exception():
                    told = self.broker.committed("g")
                    assert all(told.get(tp, 0) >= offset for tp, offset in offsets.items())

    async def end(self) -> None:
        """Wait for the commits, and see that nothing but time was lost."""
        self.broker.faults.clear()
        await asyncio.wait_for(asyncio.gather(*(commit for commit, _ in self.commits)), PATIENCE_S)
        self.check()
        await self.consumer.commit()
        self._finish(self.handed_out)
        self.check()
        told = self.broker.committed("g")
        assert {tp: told.get(tp, 0) for tp in TPS} == self.handed_out


@hypothesis.settings(max_examples=150 if LONG else 12)
@hypothesis.given(some_steps)
def test_whatever_the_application_does_nothing_unfinished_is_committed(
    steps: list[Step],
) -> None:
    async def run() -> None:
        async with Broker() as broker:
            broker.create_topic("t", 2)
            for tp in TPS:
                for _ in range(RECORD_COUNT):
                    broker.produce("t", b"", partition=tp.partition)
            async with reading(
                KafkaHandle("embedded", broker.bootstrap_servers),
                "t",
                group_id="g",
                auto_commit_interval_ms=5,
                retry_backoff_ms=3,
                fetch_max_wait_ms=20,
            ) as consumer:
                for tp in TPS:
                    await consumer.position(tp)
                application = Application(broker, consumer)
                for what, arguments in steps:
                    await application.do(what, *arguments)
                await application.end()

    asyncio.run(run())
