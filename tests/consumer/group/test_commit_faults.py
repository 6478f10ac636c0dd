"""Commits that fail: what the application is told, and that the consumer goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from aiokafka_lite import errors
from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    IllegalStateError,
    KafkaTimeoutError,
    MaxPollIntervalError,
)
from aiokafka_lite.events import CommitFailed, CoordinatorChanged
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from aiokafka_lite.protocol.messages.offsets import OffsetCommitRequest
from aiokafka_lite.protocol.schema import Message, Response
from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition
from tests.support import inside
from tests.support.cluster import KafkaHandle, unique
from tests.support.events import events_so_far, next_event
from tests.support.other_member import throw_out
from tests.support.protocols import goodbyes, in_both_protocols
from tests.support.reading import reading
from tests.support.rows import rows, tps
from tests.support.scripted_group import NODE_ID, ScriptedBroker, commit_answer, refused_commit
from tests.support.waiting import PATIENCE_S, until
from tests.support.worker import Worker

TP = TopicPartition("t", 0)


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker({"t": 2, "gone": 1}) as broker:
        yield broker


def worker_of(broker: ScriptedBroker, *topics: str, **settings: object) -> Worker:
    return Worker(f"127.0.0.1:{broker.port}", "g", topics or ["t"], settings)


# --- The consumer goes on ------------------------------------------------------------------
@pytest.mark.real_if_long
@pytest.mark.parametrize("way", ["getone", "getmany"])
async def test_after_a_commit_that_failed_the_consumer_reads_on(
    kafka: KafkaHandle, way: str
) -> None:
    """FastStream#1414: commit by hand, thrown out of the group, and then never a record again."""
    topic = await kafka.create_topic()
    tp, group = TopicPartition(topic, 0), unique("g")
    await kafka.produce(topic, 0, rows(0, 6))

    # Whom LeaveGroup throws out.
    settings = {"group_id": group, "group_protocol": "classic", "enable_auto_commit": False}
    async with reading(kafka, topic, **settings) as consumer:  # type: ignore[arg-type]

        async def next_offset() -> int:
            if way == "getone":
                return (await consumer.getone()).offset
            batches = await consumer.getmany(timeout_ms=int(PATIENCE_S * 1000), max_records=1)
            ((record,),) = batches.values()
            return record.offset

        for offset in range(3):
            assert await next_offset() == offset
        await consumer.commit({tp: 2})
        for _ in range(2):
            member_id = inside.member_id(consumer)
            await throw_out(kafka, group, member_id)
            events = consumer.events()
            with pytest.raises(CommitFailedError):
                await consumer.commit({tp: 3})
            failed = await next_event(events)
            assert isinstance(failed, CommitFailed)
            assert failed.offsets == {tp: OffsetAndMetadata(3, "")}
            assert isinstance(failed.error, CommitFailedError)
            assert not failed.is_auto
            # What was not committed is read again, and may be committed now.
            assert await asyncio.wait_for(next_offset(), PATIENCE_S) == 2
        await consumer.commit()
        assert await consumer.committed(tp) == 3
        assert [await next_offset() for _ in range(3)] == [3, 4, 5]


async def test_a_commit_by_a_fenced_member_says_so_and_every_get_does(kafka: KafkaHandle) -> None:
    topic = await kafka.create_topic()
    group = unique("g")

    def member() -> AbstractAsyncContextManager[AIOKafkaConsumer]:
        # Heartbeats come too late to find it out before the commit does.
        return reading(
            kafka,
            topic,
            group_id=group,
            group_instance_id="twin",
            group_protocol="classic",  # the newer of two takes the older one's place
            heartbeat_interval_ms=10_000,
            session_timeout_ms=30_000,
            enable_auto_commit=False,
        )

    async with member() as older, member():
        with pytest.raises(FencedInstanceIdError, match="'twin'"):
            await older.commit({TopicPartition(topic, 0): 0})
        for _ in range(2):
            with pytest.raises(FencedInstanceIdError):
                await asyncio.wait_for(older.getone(), PATIENCE_S)
        with pytest.raises(FencedInstanceIdError, match="'twin'"):
            older.group_metadata()
        assert older.assignment() == set()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_tasks_that_commit_again_and_again_hold_up_neither_a_rebalance_nor_a_stop(
    protocol: str,
) -> None:
    async with Broker(group_consumer_heartbeat_interval_ms=100) as broker:
        broker.create_topic("t", 2)
        handle = KafkaHandle("embedded", broker.bootstrap_servers)
        settings: dict[str, Any] = {
            "group_id": "g",
            "group_protocol": protocol,
            "heartbeat_interval_ms": 100,
            "rebalance_hold_ms": 40_000,
            "enable_auto_commit": False,
        }
        async with reading(handle, "t", **settings) as consumer:

            async def commit_again_and_again() -> None:
                while not is_over:
                    try:
                        await consumer.commit(dict.fromkeys(consumer.assignment() or [TP], 0))
                    except (CommitFailedError, IllegalStateError):
                        await asyncio.sleep(0)  # revoked in the meantime

            is_over = False
            tasks = [asyncio.ensure_future(commit_again_and_again()) for _ in range(5)]
            await asyncio.sleep(0.1)
            try:
                async with reading(handle, "t", **settings) as other:
                    await until(other.assignment)
                await until(lambda: len(consumer.assignment()) == 2)
                began_at = asyncio.get_running_loop().time()
                await consumer.stop()
                assert asyncio.get_running_loop().time() - began_at < 5  # it may take 10
            finally:
                is_over = True
            await asyncio.gather(*tasks)


# --- What the application is told ----------------------------------------------------------
@in_both_protocols
async def test_a_commit_after_too_long_a_pause_says_how_long_and_at_which_record(
    protocol: str,
) -> None:
    settings = {"group_protocol": protocol, "max_poll_interval_ms": 150}
    async with Broker() as broker:
        broker.create_topic("t")
        broker.produce("t", b"one")
        handle = KafkaHandle("embedded", broker.bootstrap_servers)
        async with reading(
            handle,
            "t",
            group_id="g",
            enable_auto_commit=False,
            **settings,  # type: ignore[arg-type]
        ) as consumer:
            record = await consumer.getone()
            await broker.wait_until(lambda: bool(goodbyes(broker)))
            with pytest.raises(MaxPollIntervalError) as caught:
                await consumer.commit({TP: record.offset + 1})
            with pytest.raises(MaxPollIntervalError, match="max_poll_interval_ms=150"):
                consumer.group_metadata()  # for a transaction
            assert (await consumer.getone()).offset == 0  # it has joined again
            await consumer.commit()
    text = str(caught.value)
    assert "longer than max_poll_interval_ms=150" in text
    assert "t-0 offset 0" in text
    assert "max_poll_records" in text


async def test_it_says_so_too_before_leave_group_is_answered() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        broker.produce("t", b"one")
        handle = KafkaHandle("embedded", broker.bootstrap_servers)
        async with reading(
            handle,
            "t",
            group_id="g",
            group_protocol="classic",
            max_poll_interval_ms=150,
            enable_auto_commit=False,
        ) as consumer:
            record = await consumer.getone()
            with broker.on("LeaveGroup").hold() as leave:
                await leave.reached()
                commit = asyncio.ensure_future(consumer.commit({TP: record.offset + 1}))
                await asyncio.sleep(0)  # it is on its way behind LeaveGroup
            with pytest.raises(MaxPollIntervalError, match="max_poll_interval_ms=150"):
                await asyncio.wait_for(commit, PATIENCE_S)


@in_both_protocols
async def test_commit_gives_up_after_request_timeout_ms(protocol: str) -> None:
    settings = {"group_protocol": protocol, "request_timeout_ms": 300}
    async with Broker() as broker:
        broker.create_topic("t")
        handle = KafkaHandle("embedded", broker.bootstrap_servers)
        async with reading(
            handle,
            "t",
            group_id="g",
            enable_auto_commit=False,
            **settings,  # type: ignore[arg-type]
        ) as consumer:
            with (
                broker.on("OffsetCommit").fail(errors.CoordinatorLoadInProgressError, times=None),
                pytest.raises(KafkaTimeoutError) as caught,
            ):
                await asyncio.wait_for(consumer.commit({TP: 1}), PATIENCE_S)
            assert isinstance(caught.value.__cause__, errors.CoordinatorLoadInProgressError)
            await consumer.commit({TP: 1})
        assert broker.committed("g") == {TP: 1}


async def test_another_coordinator_is_an_event(broker: ScriptedBroker) -> None:
    worker = worker_of(broker)
    with worker.state.events.subscribe() as events:
        async with worker:
            broker.script(OffsetCommitRequest, refused_commit(errors.NotCoordinatorError))
            await worker.commits.commit({TP: 5})
        changes = [
            event for event in events_so_far(events) if isinstance(event, CoordinatorChanged)
        ]
    assert changes == [CoordinatorChanged(NODE_ID)]  # the second time it was the same one


# --- Deleted topics ------------------------------------------------------------------------
def knowing(broker: ScriptedBroker, *topics: str) -> Callable[[Message], Response]:
    """Commit offsets of these topics, and say of others that there are none such."""

    def answer(request: Message) -> Response:
        assert isinstance(request, OffsetCommitRequest)
        response = commit_answer(request)
        for asked, told in zip(request.topics, response.topics, strict=True):
            name = broker.name_of(asked.name, asked.topic_id)
            for entry, result in zip(asked.partitions, told.partitions, strict=True):
                if name in topics:
                    broker.offsets[name, entry.partition_index] = (entry.committed_offset, "")
                else:
                    result.error_code = errors.UnknownTopicOrPartitionError.errno
        return response

    return answer


@pytest.mark.virtual_time
async def test_positions_of_a_deleted_topic_drop_out_of_a_commit(broker: ScriptedBroker) -> None:
    async with worker_of(broker, "t", "gone") as worker:
        worker.work(TP, 5)
        worker.work(TopicPartition("gone", 0), 7)
        del broker.topics["gone"]
        broker.script(OffsetCommitRequest, *[knowing(broker, "t")] * 100)

        await asyncio.wait_for(worker.commits.commit(), PATIENCE_S)

    assert broker.offsets == {("t", 0): (5, "")}


@pytest.mark.virtual_time
async def test_an_offset_that_is_named_of_a_deleted_topic_fails_once_metadata_lack_it(
    broker: ScriptedBroker,
) -> None:
    gone = TopicPartition("gone", 0)
    settings = {"request_timeout_ms": 60_000}
    async with worker_of(broker, "t", "gone", **settings) as worker:
        del broker.topics["gone"]
        broker.script(OffsetCommitRequest, *[knowing(broker, "t")] * 1_000)
        with pytest.raises(errors.UnknownTopicOrPartitionError):
            await worker.commits.commit({gone: 7, TP: 5})

    assert broker.offsets == {("t", 0): (5, "")}


@pytest.mark.virtual_time
async def test_giving_partitions_back_does_not_wait_for_a_deleted_topic(
    broker: ScriptedBroker,
) -> None:
    settings = {"enable_auto_commit": True, "rebalance_timeout_ms": 600_000}
    async with worker_of(broker, "t", "gone", **settings) as worker:
        worker.work(TP, 5)
        worker.work(TopicPartition("gone", 0), 7)
        worker.state.reads.begin_get()
        broker.script(OffsetCommitRequest, *[knowing(broker, "t")] * 100)
        del broker.topics["gone"]
        worker.cluster.invalidate()  # the leader sees it and has the topics shared out anew

        await until(lambda: worker.partitions == tps("t", 0, 1), worker)
    assert broker.offsets == {("t", 0): (5, "")}


async def test_a_topic_that_one_broker_does_not_know_yet_is_committed(
    broker: ScriptedBroker,
) -> None:
    async with worker_of(broker) as worker:
        worker.work(TP, 5)
        broker.script(OffsetCommitRequest, knowing(broker))
        await worker.commits.commit()
    assert broker.offsets == {("t", 0): (5, "")}


async def test_a_topic_stays_in_a_commit_while_metadata_are_missing(
    broker: ScriptedBroker,
) -> None:
    async with worker_of(broker) as worker:
        worker.work(TP, 5)
        broker.script(OffsetCommitRequest, *[knowing(broker)] * 100)
        metadata = broker.hold(MetadataRequest)
        worker.commits.request_timeout_s = 0.2
        with pytest.raises(KafkaTimeoutError):
            await worker.commits.commit()
        metadata.release()


# --- Other assignments -------------------------------------------------------------------
def subscribe(consumer: AIOKafkaConsumer) -> None:
    consumer.unsubscribe()
    consumer.subscribe(["t"])


def assign(consumer: AIOKafkaConsumer) -> None:
    consumer.unsubscribe()
    consumer.assign([TP])


@pytest.mark.parametrize(("first", "then"), [(assign, subscribe), (subscribe, assign)])
async def test_a_commit_is_not_made_under_an_assignment_of_another_kind(
    first: Callable[[AIOKafkaConsumer], None],
    then: Callable[[AIOKafkaConsumer], None],
) -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        handle = KafkaHandle("embedded", broker.bootstrap_servers)
        settings = {"enable_auto_commit": False, "retry_backoff_ms": 100}
        async with reading(handle, group_id="g", **settings) as consumer:  # type: ignore[arg-type]
            first(consumer)
            await until(lambda: consumer.assignment() == {TP})
            rule = broker.on("OffsetCommit").fail(errors.CoordinatorLoadInProgressError)
            committing = asyncio.ensure_future(consumer.commit({TP: 1}))
            await until(lambda: rule.hits == 1)
            then(consumer)
            with pytest.raises(CommitFailedError):
                await asyncio.wait_for(committing, PATIENCE_S)
            await until(lambda: consumer.assignment() == {TP})
            await consumer.commit({TP: 2})
            assert broker.committed("g") == {TP: 2}
        assert len(broker.requests.of("OffsetCommit")) == 2


# --- Lost answers --------------------------------------------------------------------------
@in_both_protocols
async def test_auto_commit_does_not_go_back_behind_a_commit_whose_answer_was_lost(
    protocol: str,
) -> None:
    settings = {"group_protocol": protocol, "auto_commit_interval_ms": 10}
    async with Broker() as broker:
        broker.create_topic("t")
        for _ in range(5):
            broker.produce("t", b"")
        handle = KafkaHandle("embedded", broker.bootstrap_servers)
        async with reading(handle, "t", group_id="g", retry_backoff_ms=200, **settings) as consumer:  # type: ignore[arg-type]
            for _ in range(3):
                await consumer.getone()  # the third is in our hands when we commit it
            broker.on("OffsetCommit").disconnect(handled=True)
            await consumer.commit({TP: 3})
            commits = broker.requests.of("OffsetCommit")
            offsets = [
                partition.committed_offset
                for seen in commits
                if isinstance(seen.request, OffsetCommitRequest)
                for partition in seen.request.topics[0].partitions
            ]
            assert offsets == sorted(offsets)
            assert broker.committed("g") == {TP: 3}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_commit_of_assigned_partitions_to_a_group_of_subscribers_says_so(
    kafka: KafkaHandle, protocol: str
) -> None:
    topic, group = await kafka.create_topic(), unique("g")
    await kafka.produce(topic, 0, rows(0, 1))
    async with (
        reading(kafka, topic, group_id=group, group_protocol=protocol) as member,
        reading(kafka, group_id=group, enable_auto_commit=False) as other,
    ):
        await until(lambda: member.assignment())
        other.assign([TopicPartition(topic, 0)])
        await other.getone()
        with pytest.raises(CommitFailedError, match=r"members that subscribe.* another group_id"):
            await other.commit()
