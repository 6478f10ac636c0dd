"""Logs that are cut below what was read: positions are checked with each new leader (KIP-320)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import ExitStack, asynccontextmanager

import pytest

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener
from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import (
    ClusterAuthorizationFailedError,
    CoordinatorLoadInProgressError,
    FencedLeaderEpochError,
    LogTruncationError,
)
from aiokafka_lite.protocol.messages.offsets import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from aiokafka_lite.records import build_batch
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.support import inside, tuning
from tests.support.cluster import KafkaHandle
from tests.support.group_requests import GroupRequests
from tests.support.protocols import WAYS, offering
from tests.support.reading import consumer_of, values
from tests.support.waiting import eventually, until

TP = TopicPartition("t", 0)


@pytest.fixture
async def cluster() -> AsyncIterator[Broker]:
    async with Broker(nodes=2) as broker:
        broker.create_topic("t")
        yield broker
        assert broker.failure is None


def append(cluster: Broker, *values: bytes) -> None:
    for value in values:
        cluster.partition(*TP).append(build_batch([(1_000, None, value, ())]))


async def test_reading_goes_on_where_the_logs_part(cluster: Broker) -> None:
    append(cluster, b"a", b"b", b"c")
    async with consumer_of(cluster, "t") as consumer:
        assert await values(consumer, 3) == [b"a", b"b", b"c"]
        cluster.truncate(TP, 1)
        append(cluster, b"B", b"C", b"D")
        assert await values(consumer, 3) == [b"B", b"C", b"D"]
        assert await consumer.position(TP) == 4
        # There was no committed offset, and then the log was truncated.
        assert consumer.metrics()["offset_resets_total"] == 2


async def test_records_that_were_buffered_of_the_lost_log_are_not_handed_out(
    cluster: Broker,
) -> None:
    append(cluster, b"a", b"b", b"c")
    async with consumer_of(cluster, "t", fetch_max_wait_ms=10) as consumer:
        assert await values(consumer, 1) == [b"a"]
        cluster.truncate(TP, 1)
        append(cluster, b"B")
        # As soon as the consumer knows of the new leader, what it has of the old is dropped.
        await inside.cluster(consumer).refresh()
        assert await values(consumer, 1) == [b"B"]


class GivenUpError(Exception):
    """The application gives a batch up."""


@asynccontextmanager
async def transactional(
    cluster: Broker,
) -> AsyncIterator[tuple[AIOKafkaProducer, AIOKafkaConsumer]]:
    """A producer of transactions, and a consumer whose records only they and batches commit."""
    settings = {"group_id": "g", "enable_auto_commit": False}
    async with (
        AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, transactional_id="tx"
        ) as producer,
        consumer_of(cluster, "t", fetch_max_wait_ms=10, **settings) as consumer,
    ):
        yield producer, consumer


@pytest.mark.parametrize("kept", [2, 1, 0])
@pytest.mark.parametrize("around", ["no transaction", "the batch", "the transaction"])
async def test_records_of_a_batch_that_is_given_up_are_returned_again_as_far_as_the_log_has_them(
    cluster: Broker, around: str, kept: int
) -> None:
    append(cluster, b"a", b"b", b"c")

    async def lose() -> None:
        cluster.truncate(TP, kept)
        append(cluster, b"new")
        await inside.cluster(consumer).refresh()
        await until(lambda: inside.cursor(consumer, TP).position == kept)
        raise GivenUpError

    async def give_up() -> None:
        if around == "no transaction":
            async with consumer.batch(max_records=3):
                await lose()
        elif around == "the batch":
            async with consumer.batch(max_records=3) as batch, producer.transaction() as tx:
                tx.commit_offsets(batch)
                await lose()
        else:
            async with producer.transaction() as tx:
                async with consumer.batch(max_records=3) as batch:
                    tx.commit_offsets(batch)
                await lose()

    async with transactional(cluster) as (producer, consumer):
        with pytest.raises(GivenUpError):
            await give_up()
        found = await asyncio.wait_for(values(consumer, kept + 1), 10)
        assert found == [*[b"a", b"b", b"c"][:kept], b"new"]


@pytest.mark.parametrize("told_by", ["committed()", "a transaction"])
async def test_records_that_replaced_committed_ones_are_returned_again_after_an_abort(
    cluster: Broker, told_by: str
) -> None:
    append(cluster, b"a", b"b", b"c")

    async def lose() -> None:
        cluster.truncate(TP, 2)
        await until(lambda: inside.cursor(consumer, TP).position == 2)

    async def give_up() -> None:
        async with producer.transaction() as tx:
            async with consumer.batch(max_records=1) as batch:
                assert [record.value for record in batch] == [b"C"]
                tx.commit_offsets(batch)
            raise GivenUpError

    async with transactional(cluster) as (producer, consumer):
        if told_by == "committed()":
            assert await values(consumer, 3) == [b"a", b"b", b"c"]
            await consumer.commit()
            await lose()
            assert await consumer.committed(TP) == 3
        else:
            assert await values(consumer, 3) == [b"a", b"b", b"c"]
            with cluster.on("EndTxn").hold() as held:
                ending = asyncio.ensure_future(commit_all(producer, consumer))
                await held.reached()
                await lose()
            await ending
        append(cluster, b"C")
        with pytest.raises(GivenUpError):
            await give_up()
        assert await asyncio.wait_for(values(consumer, 1), 10) == [b"C"]


async def commit_all(producer: AIOKafkaProducer, consumer: AIOKafkaConsumer) -> None:
    async with producer.transaction() as tx:
        tx.commit_offsets(consumer)


@pytest.mark.parametrize("how", ["a block that fails", "an aborted transaction"])
async def test_the_position_is_compared_though_a_batch_is_given_up_meanwhile(
    cluster: Broker, how: str
) -> None:
    append(cluster, b"a", b"b", b"c")

    async def lose() -> None:
        with cluster.on("OffsetForLeaderEpoch").hold() as held:
            cluster.truncate(TP, 0)
            append(cluster, b"A", b"B")
            await held.reached()
            raise GivenUpError

    async def give_up() -> None:
        assert await values(consumer, 1) == [b"a"]
        if how == "a block that fails":
            async with consumer.batch(max_records=1):
                await lose()
        else:
            async with producer.transaction() as tx:
                async with consumer.batch(max_records=1) as batch:
                    tx.commit_offsets(batch)
                await lose()

    async with transactional(cluster) as (producer, consumer):
        with pytest.raises(GivenUpError):
            await give_up()
        assert await asyncio.wait_for(values(consumer, 2), 10) == [b"A", b"B"]


async def test_without_a_policy_the_application_decides(cluster: Broker) -> None:
    append(cluster, b"a", b"b", b"c")
    async with consumer_of(cluster, "t", auto_offset_reset="none") as consumer:
        consumer.seek(TP, 0)
        assert await values(consumer, 3) == [b"a", b"b", b"c"]
        cluster.truncate(TP, 1)
        append(cluster, b"B", b"C", b"D")
        for _ in range(2):  # until the application moves on
            with pytest.raises(LogTruncationError, match="truncated to offset 1") as caught:
                await values(consumer, 1)
            assert caught.value.divergent_offset == 1
        consumer.seek(TP, 1)
        assert await values(consumer, 3) == [b"B", b"C", b"D"]
        cluster.truncate(TP, 2)  # the second time is no different
        append(cluster, b"x")
        with pytest.raises(LogTruncationError, match="truncated to offset 2"):
            await values(consumer, 1)


async def test_a_seek_while_a_position_is_compared_is_where_reading_goes_on(
    cluster: Broker,
) -> None:
    append(cluster, b"a", b"b", b"c")
    async with consumer_of(cluster, "t", fetch_max_wait_ms=10) as consumer:
        await values(consumer, 3)
        with cluster.on("OffsetForLeaderEpoch").hold() as held:
            cluster.truncate(TP, 1)
            append(cluster, b"B", b"C", b"D")
            await held.reached()
            consumer.seek(TP, 2)
        # The answer, that the logs part at 1, is of a position that the consumer has left.
        assert await values(consumer, 2) == [b"C", b"D"]


@pytest.mark.parametrize("reset", ["earliest", "none"])
async def test_log_that_lost_just_the_last_record_read_is_noticed(
    cluster: Broker, reset: str
) -> None:
    append(cluster, b"a", b"b", b"c")
    async with consumer_of(cluster, "t", auto_offset_reset=reset) as consumer:
        consumer.seek(TP, 0)
        assert await values(consumer, 3) == [b"a", b"b", b"c"]
        cluster.truncate(TP, 2)
        append(cluster, b"C", b"D")  # another record where the lost one was
        if reset == "none":
            with pytest.raises(LogTruncationError, match="truncated to offset 2") as caught:
                await values(consumer, 1)
            assert caught.value.divergent_offset == 2
            consumer.seek(TP, 2)
        assert await values(consumer, 2) == [b"C", b"D"]


async def test_new_leader_with_all_that_was_read_changes_nothing(cluster: Broker) -> None:
    append(cluster, b"a", b"b")
    async with consumer_of(cluster, "t") as consumer:
        assert await values(consumer, 2) == [b"a", b"b"]
        for number in range(5):
            cluster.move_leader(TP)
            append(cluster, b"%d" % number)
            assert await values(consumer, 1) == [b"%d" % number]
        assert consumer.metrics()["offset_resets_total"] == 1  # there was no committed offset
    seen = [r for r in cluster.requests if r.api == "OffsetForLeaderEpoch"]
    assert len(seen) == 5


async def test_committed_offset_is_checked_where_its_epoch_is_an_old_one(cluster: Broker) -> None:
    append(cluster, b"a", b"b", b"c")
    async with consumer_of(cluster, "t", group_id="g") as consumer:
        assert await values(consumer, 3) == [b"a", b"b", b"c"]
        await consumer.commit()
    cluster.truncate(TP, 1)
    append(cluster, b"B", b"C", b"D", b"E")
    async with consumer_of(cluster, "t", group_id="g") as consumer:
        assert await values(consumer, 4) == [b"B", b"C", b"D", b"E"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_listener_learns_a_committed_position_after_it_was_compared(
    cluster: Broker, way: str
) -> None:
    append(cluster, b"a", b"b", b"c")
    async with consumer_of(cluster, "t", group_id="g") as consumer:
        assert await values(consumer, 3) == [b"a", b"b", b"c"]
        await consumer.commit()
    cluster.truncate(TP, 1)
    append(cluster, b"B", b"C", b"D")

    class Seeking(ConsumerRebalanceListener):
        async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
            for tp in assigned:
                consumer.seek(tp, await consumer.position(tp))

        async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None: ...

    async with consumer_of(cluster, group_id="g", **WAYS[way]) as consumer:
        consumer.subscribe(["t"], listener=Seeking())
        assert await values(consumer, 3) == [b"B", b"C", b"D"]


async def test_a_seek_to_a_committed_offset_is_compared(cluster: Broker) -> None:
    append(cluster, b"a", b"b", b"c")
    settings = {"group_id": "g", "enable_auto_commit": False}
    async with consumer_of(cluster, "t", **settings) as consumer:
        assert await values(consumer, 3) == [b"a", b"b", b"c"]
        await consumer.commit()
        cluster.truncate(TP, 1)
        append(cluster, b"B", b"C", b"D")
        assert await values(consumer, 3) == [b"B", b"C", b"D"]
        assert await consumer.seek_to_committed() == {TP: 3}
        assert await values(consumer, 3) == [b"B", b"C", b"D"]


@pytest.mark.parametrize("reset", ["earliest", "none"])
async def test_epoch_that_the_leader_does_not_know_is_no_alarm(cluster: Broker, reset: str) -> None:
    append(cluster, b"a", b"b")
    undefined = OffsetForLeaderEpochResponse(
        topics=[OffsetForLeaderTopicResult(topic="t", partitions=[EpochEndOffset(partition=0)])]
    )
    async with consumer_of(cluster, "t", auto_offset_reset=reset) as consumer:
        consumer.seek(TP, 0)
        assert await values(consumer, 2) == [b"a", b"b"]
        cluster.on("OffsetForLeaderEpoch").answer(undefined)
        cluster.move_leader(TP)
        if reset == "earliest":
            assert await values(consumer, 2) == [b"a", b"b"]
        else:
            with pytest.raises(LogTruncationError, match="unknown") as caught:
                await values(consumer, 1)
            assert caught.value.divergent_offset is None


async def test_validation_that_fails_is_tried_again_with_pauses(cluster: Broker) -> None:
    append(cluster, b"a")
    async with consumer_of(cluster, "t") as consumer:
        assert await values(consumer, 1) == [b"a"]
        rule = cluster.on("OffsetForLeaderEpoch").fail(FencedLeaderEpochError, times=3)
        cluster.move_leader(TP)
        append(cluster, b"b")
        assert await values(consumer, 1) == [b"b"]
        assert rule.hits == 3


async def read(cluster: Broker, count: int) -> list[bytes | None]:
    """Read as a member of a group, and stop, which commits."""
    async with consumer_of(cluster, "t", group_id="g") as consumer:
        return await values(consumer, count)


@pytest.mark.parametrize("newest", [None, 2], ids=["not offered", "for brokers only"])
async def test_broker_that_cannot_tell_where_epochs_end_is_read_on_from(
    cluster: Broker, newest: int | None
) -> None:
    """As Java's client does before version 3 of OffsetForLeaderEpoch, which needs ClusterAction."""
    cluster.on("ApiVersions").answer(offering(OffsetForLeaderEpoch=newest), times=None)
    cluster.on("OffsetForLeaderEpoch").fail(ClusterAuthorizationFailedError, times=None)
    append(cluster, b"a")
    async with consumer_of(cluster, "t") as consumer:
        assert await values(consumer, 1) == [b"a"]
        for value in (b"b", b"c"):
            cluster.move_leader(TP)
            append(cluster, value)
            assert await values(consumer, 1) == [value]
    assert not cluster.requests.of("OffsetForLeaderEpoch")


async def test_validation_that_cannot_be_made_is_told(
    cluster: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning.watch_often(monkeypatch)
    tuning.miss_positions_soon(monkeypatch)
    append(cluster, b"a")
    async with consumer_of(cluster, "t") as consumer:
        assert await values(consumer, 1) == [b"a"]
        cluster.on("OffsetForLeaderEpoch").fail(ClusterAuthorizationFailedError, times=None)
        cluster.move_leader(TP)
        with pytest.raises(ClusterAuthorizationFailedError):
            await values(consumer, 1)
        await until(lambda: "no position" in " ".join(consumer.health().reasons))


async def test_the_same_offset_is_committed_again_after_a_truncation(cluster: Broker) -> None:
    append(cluster, b"a", b"b", b"c")
    async with consumer_of(cluster, "t", group_id="g") as consumer:
        assert await values(consumer, 3) == [b"a", b"b", b"c"]
        await consumer.commit()
        cluster.truncate(TP, 2)
        append(cluster, b"C")
        assert await values(consumer, 1) == [b"C"]
    append(cluster, b"d")
    assert await read(cluster, 1) == [b"d"]  # not C once more: the commit is of its epoch


async def test_an_offset_is_committed_again_if_the_log_was_truncated_while_its_commit_was_sent(
    cluster: Broker,
) -> None:
    append(cluster, b"a", b"b", b"c")
    async with consumer_of(cluster, "t", group_id="g") as consumer:
        assert await values(consumer, 3) == [b"a", b"b", b"c"]
        with cluster.on("OffsetCommit").hold() as rule:
            commit = asyncio.create_task(consumer.commit())
            await until(lambda: rule.hits)
            cluster.truncate(TP, 2)
            append(cluster, b"C")
            assert await values(consumer, 1) == [b"C"]
        await commit
    append(cluster, b"d")
    assert await read(cluster, 1) == [b"d"]


async def test_a_commit_that_is_sent_again_after_a_truncation_covers_no_record_that_came_since(
    cluster: Broker,
) -> None:
    append(cluster, b"a", b"b", b"c")
    async with consumer_of(cluster, "t", group_id="g", enable_auto_commit=False) as consumer:
        assert await values(consumer, 3) == [b"a", b"b", b"c"]
        on_commit = cluster.on("OffsetCommit")
        with on_commit.fail(CoordinatorLoadInProgressError, times=None) as rule:
            commit = asyncio.create_task(consumer.commit())
            await until(lambda: rule.hits)
            cluster.truncate(TP, 2)
            append(cluster, b"C")
            assert await values(consumer, 1) == [b"C"]
        await commit
    assert await read(cluster, 1) == [b"C"]


@pytest.mark.parametrize("asks", ["before", "after"])
async def test_an_offset_is_committed_again_though_the_coordinator_tells_of_its_former_commit(
    cluster: Broker, asks: str
) -> None:
    append(cluster, b"a", b"b", b"c")
    async with consumer_of(cluster, "t", group_id="g", auto_commit_interval_ms=60_000) as consumer:
        assert await values(consumer, 3) == [b"a", b"b", b"c"]
        await consumer.commit()
        cluster.truncate(TP, 2)
        await eventually(lambda: consumer.position(TP), 2)
        if asks == "before":
            assert await consumer.committed(TP) == 3
        append(cluster, b"C")
        assert await values(consumer, 1) == [b"C"]
        if asks == "after":
            assert await consumer.committed(TP) == 3
    append(cluster, b"d")
    assert await read(cluster, 1) == [b"d"]


async def test_the_same_offset_is_committed_again_after_a_reset_below_it(cluster: Broker) -> None:
    append(cluster, b"a", b"b", b"c")
    async with consumer_of(cluster, "t", group_id="g") as consumer:
        assert await values(consumer, 3) == [b"a", b"b", b"c"]
        await consumer.commit()
        undefined = OffsetForLeaderEpochResponse(
            topics=[OffsetForLeaderTopicResult(topic="t", partitions=[EpochEndOffset(partition=0)])]
        )
        rule = cluster.on("OffsetForLeaderEpoch").answer(undefined)
        cluster.truncate(TP, 2)
        append(cluster, b"C")
        assert await values(consumer, 3) == [b"a", b"b", b"C"]  # from auto_offset_reset on
        rule.remove()
    append(cluster, b"d")
    assert await read(cluster, 1) == [b"d"]


@pytest.mark.parametrize("before", [0, 2])
async def test_records_after_a_position_that_was_looked_up_are_committed_in_their_epoch(
    cluster: Broker, before: int
) -> None:
    append(cluster, *[b"a", b"b"][:before])
    async with consumer_of(cluster, "t", group_id="g") as consumer:
        await consumer.position(TP)
        await values(consumer, before)
        cluster.move_leader(TP)
        append(cluster, b"c", b"d")
        assert await values(consumer, 2) == [b"c", b"d"]
        cluster.partition(*TP).log.delete_before(before)
        await consumer.seek_to_beginning(TP)
        assert await values(consumer, 2) == [b"c", b"d"]
    cluster.move_leader(TP)
    append(cluster, b"e")
    assert await read(cluster, 1) == [b"e"]  # not c once more: no log was truncated


async def test_a_run_that_is_begun_again_commits_the_epoch_of_its_records(cluster: Broker) -> None:
    append(cluster, b"a", b"b")
    done: list[bytes | None] = []
    is_stuck = asyncio.Event()

    async def handle(record: ConsumerRecord[bytes | None, bytes | None]) -> None:
        if record.value == b"c" and not is_stuck.is_set():
            is_stuck.set()
            await asyncio.Event().wait()
        done.append(record.value)

    async with consumer_of(cluster, "t", group_id="g") as consumer:
        running = asyncio.ensure_future(consumer.run(handle))
        await until(lambda: done == [b"a", b"b"])
        cluster.move_leader(TP)
        append(cluster, b"c", b"d")  # of the new leader's epoch
        await is_stuck.wait()
        running.cancel()
        await asyncio.wait([running])
        running = asyncio.ensure_future(consumer.run(handle))
        await until(lambda: b"c" in done)
        await consumer.stop()
        await running
    append(cluster, b"e")
    assert await read(cluster, 1) == [b"e"]  # not c once more: no log was truncated


@asynccontextmanager
async def running_at(consumer: AIOKafkaConsumer, unfinished: bytes) -> AsyncIterator[None]:
    """A run whose handlers have finished all records but one, until it is cancelled at the end."""
    is_stuck = asyncio.Event()
    done: list[bytes | None] = []

    async def handle(record: ConsumerRecord[bytes | None, bytes | None]) -> None:
        if record.value == unfinished:
            is_stuck.set()
            await asyncio.Event().wait()
        done.append(record.value)

    running = asyncio.ensure_future(consumer.run(handle, order=None))
    await until(lambda: is_stuck.is_set() and len(done) == 2)
    yield
    running.cancel()
    await asyncio.wait([running])


async def finish_only(consumer: AIOKafkaConsumer, wanted: bytes) -> None:
    """Have one record finished and committed, and those before it not."""
    is_done = asyncio.Event()

    async def handle(record: ConsumerRecord[bytes | None, bytes | None]) -> None:
        if record.value != wanted:
            await asyncio.Event().wait()
        is_done.set()

    running = asyncio.ensure_future(consumer.run(handle, order=None))
    await is_done.wait()
    running.cancel()
    await asyncio.wait([running])


async def handled_by(consumer: AIOKafkaConsumer, last: bytes) -> list[bytes | None]:
    """Return the values that `run` gives to a handler, up to one of them."""
    handled: list[bytes | None] = []

    async def handle(record: ConsumerRecord[bytes | None, bytes | None]) -> None:
        handled.append(record.value)

    running = asyncio.ensure_future(consumer.run(handle, order=None))
    await until(lambda: last in handled)
    running.cancel()
    await asyncio.wait([running])
    return handled


@pytest.mark.parametrize("finished", [b"a", b"b", b"c"])
async def test_the_next_owner_passes_over_finished_records_though_the_leader_has_moved(
    cluster: Broker, finished: bytes
) -> None:
    append(cluster, b"a", b"b", b"c")
    async with consumer_of(cluster, "t", group_id="g") as consumer:
        await finish_only(consumer, finished)
    cluster.move_leader(TP)
    append(cluster, b"d")  # comes in one answer with them
    async with consumer_of(cluster, "t", group_id="g") as consumer:
        left = [value for value in (b"a", b"b", b"c", b"d") if value != finished]
        assert await handled_by(consumer, b"d") == left


async def test_a_run_begun_again_passes_over_finished_records_though_the_leader_has_moved(
    cluster: Broker,
) -> None:
    append(cluster, b"a", b"b", b"c")
    async with consumer_of(cluster, "t", group_id="g") as consumer:
        await finish_only(consumer, b"b")
        for value in (b"d", b"e"):
            cluster.move_leader(TP)
            append(cluster, value)
            await inside.cluster(consumer).refresh()
        assert await handled_by(consumer, b"e") == [b"a", b"c", b"d", b"e"]


@pytest.mark.parametrize(
    ("kept", "expected"),
    [(3, [b"b", b"D"]), (1, [b"B", b"C", b"D"]), (0, [b"A", b"B", b"C", b"D"])],
)
@pytest.mark.parametrize("after", ["a seek", "a comparison that is under way"])
async def test_a_run_begun_again_compares_its_position_with_a_leader_that_came_meanwhile(
    cluster: Broker, after: str, kept: int, expected: list[bytes]
) -> None:
    append(cluster, b"a", b"b", b"c")
    async with consumer_of(cluster, "t", group_id="g") as consumer:
        with cluster.on("OffsetForLeaderEpoch").hold() as held:
            async with running_at(consumer, b"b"):
                consumer.pause(TP)
                if after == "a seek":
                    consumer.seek(TP, 3)
                cluster.truncate(TP, kept)
                append(cluster, *[b"A", b"B", b"C", b"D"][kept:])
                await inside.cluster(consumer).refresh()
                if after != "a seek":
                    await held.reached()
        consumer.resume(TP)
        assert await handled_by(consumer, b"D") == expected


async def test_finished_records_are_passed_over_by_a_seek_though_the_leader_has_moved(
    cluster: Broker,
) -> None:
    append(cluster, b"a", b"b", b"c")
    async with consumer_of(cluster, "t", group_id="g") as consumer:
        await finish_only(consumer, b"b")
        await consumer.commit()
        cluster.move_leader(TP)
        append(cluster, b"d")
        await inside.cluster(consumer).refresh()
        await consumer.seek_to_committed(TP)
        assert await handled_by(consumer, b"d") == [b"a", b"c", b"d"]


@pytest.mark.parametrize("length", [0, 1, 2])
async def test_records_that_replaced_finished_ones_are_not_passed_over(
    cluster: Broker, length: int
) -> None:
    append(cluster, b"a", b"b", b"c")
    async with consumer_of(cluster, "t", group_id="g") as consumer:
        await finish_only(consumer, b"c")
    cluster.truncate(TP, length)
    append(cluster, b"A", b"B", b"C", b"D")
    cluster.move_leader(TP)
    append(cluster, b"e")
    async with consumer_of(cluster, "t", group_id="g") as consumer:
        expected = [*[b"a", b"b", b"c"][:length], b"A", b"B", b"C", b"D", b"e"]
        assert await handled_by(consumer, b"e") == expected


async def test_a_run_that_ends_during_a_reset_has_finished_nothing_of_the_log_that_replaced_its_own(
    cluster: Broker,
) -> None:
    append(cluster, b"a", b"b", b"c")
    undefined = OffsetForLeaderEpochResponse(
        topics=[OffsetForLeaderTopicResult(topic="t", partitions=[EpochEndOffset(partition=0)])]
    )
    async with consumer_of(cluster, "t", group_id="g") as consumer:
        with ExitStack() as stack:
            async with running_at(consumer, b"b"):
                held = stack.enter_context(cluster.on("ListOffsets").hold())
                cluster.on("OffsetForLeaderEpoch").answer(undefined)
                cluster.truncate(TP, 0)
                append(cluster, b"A", b"B", b"C", b"D")
                await inside.cluster(consumer).refresh()
                await held.reached()
        assert await handled_by(consumer, b"D") == [b"A", b"B", b"C", b"D"]


async def test_records_of_a_recreated_topic_are_compared_by_its_own_epochs(cluster: Broker) -> None:
    settings = {"group_id": "g", "group_protocol": "classic"}
    for _ in range(3):
        cluster.move_leader(TP)
    append(cluster, b"a", b"b", b"c")
    async with consumer_of(cluster, "t", **settings) as consumer:
        await finish_only(consumer, b"c")
    async with consumer_of(cluster, "t", **settings) as consumer:
        assert await consumer.position(TP) == 0
        cluster.recreate_topic("t", 1)
        append(cluster, b"A", b"B", b"C")
        await finish_only(consumer, b"C")
    cluster.truncate(TP, 0)
    append(cluster, b"x", b"y", b"z")
    async with consumer_of(cluster, "t", **settings) as consumer:
        assert await handled_by(consumer, b"z") == [b"x", b"y", b"z"]


@pytest.mark.parametrize("lost", [2, 3])
async def test_finished_records_are_passed_over_though_a_later_epoch_of_their_answer_is_lost(
    cluster: Broker, lost: int
) -> None:
    append(cluster, b"a", b"b", b"c")
    for value in (b"d", b"e", b"f")[:lost]:
        cluster.move_leader(TP)
        append(cluster, value)
    async with consumer_of(cluster, "t", group_id="g") as consumer:
        await finish_only(consumer, b"b")
    cluster.truncate(TP, 3)
    append(cluster, b"D")
    async with consumer_of(cluster, "t", group_id="g") as consumer:
        assert await handled_by(consumer, b"D") == [b"a", b"c", b"D"]


async def read_with(consumer: AIOKafkaConsumer, way: str, count: int) -> None:
    """Read and finish `count` records one way."""
    if way == "getmany":
        found = await consumer.getmany(timeout_ms=9_000, max_records=count)
        assert len(found[TP]) == count
    elif way == "arrow":
        assert (await consumer.poll_arrow(max_rows=count)).num_rows == count
    elif way == "run":
        done = 0

        async def handle(record: ConsumerRecord[bytes | None, bytes | None]) -> None:
            nonlocal done
            if record.offset >= count:
                await asyncio.Event().wait()
            done += 1

        running = asyncio.ensure_future(consumer.run(handle, order=None))
        await until(lambda: done == count)
        running.cancel()
        await asyncio.wait([running])
    else:
        for _ in range(count):
            record = await (anext(aiter(consumer)) if way == "for" else consumer.getone())
            if way == "acks":
                record.ack()


@pytest.mark.parametrize("way", ["getone", "getmany", "for", "arrow", "acks", "run"])
async def test_a_commit_has_the_epoch_of_the_record_before_it_though_later_ones_came_with_it(
    cluster: Broker, way: str
) -> None:
    for n, value in enumerate((b"a", b"b", b"c", b"d", b"e")):
        if n in (2, 4):
            cluster.move_leader(TP)
        append(cluster, value)
    settings = {"ack_mode": "explicit"} if way == "acks" else {}
    epochs = {}
    for count in (1, 3, 5):
        group = f"{way}{count}"
        async with consumer_of(cluster, "t", group_id=group, **settings) as consumer:
            await read_with(consumer, way, count)
            await consumer.commit()
        coordinator = cluster.nodes[cluster.coordinator_of(group)].bootstrap_servers
        found = await GroupRequests(KafkaHandle("embedded", coordinator), group).fetch("t")
        assert found.committed_offset == count
        epochs[count] = found.committed_leader_epoch
    assert epochs == {1: 0, 3: 1, 5: 2}


@pytest.mark.parametrize(
    ("read_count", "sought", "committed"),
    [
        pytest.param(4, 1, 4, id="behind a position that was sought back"),
        pytest.param(2, 4, 3, id="among records that were sought over"),
    ],
)
async def test_a_committed_offset_whose_record_was_not_returned_is_no_truncation(
    cluster: Broker, read_count: int, sought: int, committed: int
) -> None:
    append(cluster, b"a", b"b")
    async with consumer_of(cluster, "t", group_id="g", enable_auto_commit=False) as consumer:
        if read_count == 2:
            await values(consumer, 2)
        cluster.move_leader(TP)
        append(cluster, b"c", b"d")
        if read_count == 4:
            await values(consumer, 4)
        consumer.seek(TP, sought)
        await consumer.commit({TP: committed})
        append(cluster, b"e")
    async with consumer_of(cluster, "t", group_id="g") as successor:
        assert (await successor.getone()).offset == committed
        assert successor.metrics()["offset_resets_total"] == 0


async def test_a_position_behind_a_marker_of_a_later_epoch_is_no_truncation(
    cluster: Broker,
) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, transactional_id="x")
    async with consumer_of(cluster, auto_offset_reset="none") as consumer, producer:
        consumer.assign([TP])
        consumer.seek(TP, 0)
        async with producer.transaction():
            await producer.send_and_wait("t", b"a")
            assert await values(consumer, 1) == [b"a"]
            cluster.move_leader(TP)
        # The marker is all that comes now.
        reading = asyncio.ensure_future(values(consumer, 1))
        await until(lambda: inside.cursor(consumer, TP).position == 2)
        cluster.move_leader(TP)
        append(cluster, b"b")
        assert await reading == [b"b"]


@pytest.mark.parametrize(("kept", "expected"), [(20, [5, 20]), (12, [5, 12])])
async def test_what_was_finished_before_a_sought_offset_stays_finished_as_far_as_the_log_has_it(
    cluster: Broker, kept: int, expected: list[int]
) -> None:
    append(cluster, *[b"a"] * 20)
    settings = {"group_id": "g", "ack_mode": "explicit", "rebalance_hold_ms": 0}
    async with consumer_of(cluster, "t", **settings) as consumer:
        for _ in range(20):
            record = await consumer.getone()
            assert record.offset == 5 or record.ack()
    async with consumer_of(cluster, "t", **settings) as consumer:
        assert (await consumer.getone()).offset == 5
        consumer.pause(TP)
        consumer.seek(TP, 20)
        # The first record that is read from here on is of a newer epoch.
        if kept < 20:
            cluster.truncate(TP, kept)
        else:
            cluster.move_leader(TP)
        append(cluster, *[b"b"] * (22 - kept))
        await inside.cluster(consumer).refresh()
        consumer.resume(TP)
        assert (await consumer.getone()).offset == 20
        await consumer.commit()
    async with consumer_of(cluster, "t", **settings) as consumer:
        assert [(await consumer.getone()).offset for _ in range(2)] == expected
