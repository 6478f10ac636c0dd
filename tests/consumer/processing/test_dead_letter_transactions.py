"""Dead letters in transactions: each is there with its offset, once, or neither is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import Broker
from aiokafka_lite.client.config import parse_address
from aiokafka_lite.consumer.processing import outbox
from aiokafka_lite.errors import (
    CommitFailedError,
    CoordinatorNotAvailableError,
    IllegalStateError,
    InvalidTransactionTimeout,
    InvalidTxnState,
    TransactionalIdAuthorizationFailed,
    UnknownMemberIdError,
)
from aiokafka_lite.processing import DeadLetters, Retry
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.protocol.messages.produce import ProduceRequest
from aiokafka_lite.structs import ConsumerGroupMetadata, ConsumerRecord, TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.protocols import WAYS
from tests.support.proxy import Proxy, send_through
from tests.support.waiting import eventually, until

PATIENCE_S: Final = 20.0
Record = ConsumerRecord[bytes | None, bytes | None]


async def refuse(record: Record) -> None:
    if record.value is not None and record.value.startswith(b"bad"):
        raise ValueError("bad")


class Job:
    """A consumer that runs, and a topic for its dead letters."""

    def __init__(self, kafka: KafkaHandle, topic: str, dead: str, group: str) -> None:
        self.kafka = kafka
        self.topic = topic
        self.dead = dead
        self.group = group

    @classmethod
    async def of(
        cls, kafka: KafkaHandle, partitions: int = 1, configs: dict[str, str] | None = None
    ) -> Job:
        topic = await kafka.create_topic(partitions=partitions)
        dead = await kafka.create_topic(partitions=partitions, configs=configs)
        return cls(kafka, topic, dead, unique("dead"))

    def consumer(self, **settings: object) -> AIOKafkaConsumer:
        arguments: dict[str, object] = {
            "bootstrap_servers": self.kafka.bootstrap_servers,
            "group_id": self.group,
            "auto_offset_reset": "earliest",
            "fetch_max_wait_ms": 50,
            "heartbeat_interval_ms": 100,
            "retry_backoff_ms": 20,
            **settings,
        }
        return AIOKafkaConsumer(self.topic, **arguments)  # type: ignore[arg-type]

    def run(self, consumer: AIOKafkaConsumer) -> asyncio.Task[None]:
        letters = DeadLetters(self.dead, transactional_id=unique("letters"))
        return asyncio.create_task(
            consumer.run(refuse, retry=Retry(dead=ValueError), dead_letter=letters)
        )

    @asynccontextmanager
    async def running(self, **settings: object) -> AsyncIterator[AIOKafkaConsumer]:
        async with timeout(PATIENCE_S), self.consumer(**settings) as consumer:
            task = self.run(consumer)
            try:
                yield consumer
            finally:
                await consumer.stop()
                await asyncio.wait([task])
        await task

    async def committed(self, partition: int = 0) -> int | None:
        """What the group has committed, as somebody else sees it."""
        async with AIOKafkaConsumer(
            bootstrap_servers=self.kafka.bootstrap_servers,
            group_id=self.group,
            enable_auto_commit=False,
        ) as reader:
            return await reader.committed(TopicPartition(self.topic, partition))

    async def letters(self, isolation_level: str = "read_committed") -> list[Record]:
        """All dead letters that are there, as whoever reads the topic sees them."""
        found: list[Record] = []
        async with (
            timeout(PATIENCE_S),
            AIOKafkaConsumer(
                self.dead,
                bootstrap_servers=self.kafka.bootstrap_servers,
                auto_offset_reset="earliest",
                isolation_level=isolation_level,
            ) as reader,
        ):
            ends = await reader.end_offsets(reader.assignment())
            while any([await reader.position(tp) < end for tp, end in ends.items()]):
                for records in (await reader.getmany(timeout_ms=200)).values():
                    found.extend(records)
        return found


async def origins(job: Job) -> Counter[tuple[bytes, bytes]]:
    """How many dead letters there are of each record, by partition and offset."""
    headers = [dict(letter.headers) for letter in await job.letters()]
    return Counter(
        (each["__dlq.errors.partition"], each["__dlq.errors.offset"]) for each in headers
    )


BAD: Final = [(b"k", b"ok"), (b"k", b"bad"), (b"k", b"ok")]


@pytest.fixture
async def job(kafka: KafkaHandle) -> Job:
    return await Job.of(kafka)


# --- What is written -----------------------------------------------------------------------------
async def test_a_letter_and_its_offset_are_committed_in_one_transaction(job: Job) -> None:
    await job.kafka.produce(job.topic, 0, BAD)
    async with job.running() as consumer:
        await eventually(lambda: consumer.committed(TopicPartition(job.topic, 0)), 3)
        assert consumer.metrics()["processing_dead_total"] == 1
    (letter,) = await job.letters()
    assert (letter.key, letter.value, letter.offset) == (b"k", b"bad", 0)
    async with AIOKafkaConsumer(bootstrap_servers=job.kafka.bootstrap_servers) as reader:
        tp = TopicPartition(job.dead, 0)
        assert (await reader.end_offsets([tp]))[tp] == 2  # the letter, and that it is committed


async def test_many_letters_share_a_transaction(job: Job) -> None:
    await job.kafka.produce(job.topic, 0, [(b"%d" % n, b"bad") for n in range(500)])
    async with job.running() as consumer:
        await eventually(lambda: consumer.committed(TopicPartition(job.topic, 0)), 500)
    assert Counter((await origins(job)).values()) == {1: 500}
    async with AIOKafkaConsumer(bootstrap_servers=job.kafka.bootstrap_servers) as reader:
        tp = TopicPartition(job.dead, 0)
        assert (await reader.end_offsets([tp]))[tp] < 550


async def test_a_letter_that_is_refused_keeps_no_other_one_back(kafka: KafkaHandle) -> None:
    job = await Job.of(kafka, configs={"max.message.bytes": "2000"})
    records = [(b"%d" % n, b"bad") for n in range(100)]
    records[1] = (b"1", b"bad" + b"x" * 5000)
    await kafka.produce(job.topic, 0, records)
    tp = TopicPartition(job.topic, 0)
    async with job.running() as consumer:
        async with timeout(5):
            await until(lambda: consumer.metrics()["processing_dead_total"] == 99)
        await until(lambda: "waits for its dead letter" in consumer.explain(tp))
        await until(lambda: "dead letters cannot be written" in str(consumer.health().reasons))
    assert await job.committed() == 1
    assert Counter((await origins(job)).values()) == {1: 99}


# --- What it needs -------------------------------------------------------------------------------
@pytest.mark.parametrize("settings", [{"group_id": None}, {"enable_auto_commit": False}])
async def test_a_consumer_that_commits_nothing_by_itself_cannot(
    job: Job, settings: dict[str, object]
) -> None:
    async with job.consumer(**settings) as consumer:
        with pytest.raises(IllegalStateError, match="a group_id and enable_auto_commit=True"):
            await job.run(consumer)


async def test_a_producer_that_is_given_has_its_own_id() -> None:
    producer = AIOKafkaProducer(bootstrap_servers="nowhere:1")
    with pytest.raises(ValueError, match="leave out `producer`"):
        DeadLetters("dead", producer=producer, transactional_id="t")


async def test_a_transaction_timeout_that_the_brokers_refuse_is_named_and_can_be_set(
    job: Job,
) -> None:
    await job.kafka.produce(job.topic, 0, BAD)

    def letters(timeout_ms: int) -> DeadLetters:
        return DeadLetters(
            job.dead, transactional_id=unique("letters"), transaction_timeout_ms=timeout_ms
        )

    async with timeout(PATIENCE_S), job.consumer() as consumer:
        with pytest.raises(
            InvalidTransactionTimeout, match="do not allow transaction_timeout_ms=18000000"
        ):
            await consumer.run(refuse, dead_letter=letters(5 * 3_600_000))
        assert consumer.health().verdict == "degraded"
        assert "run() ended with InvalidTransactionTimeout" in " ".join(consumer.health().reasons)
        task = asyncio.create_task(
            consumer.run(refuse, retry=Retry(dead=ValueError), dead_letter=letters(10_000))
        )
        await eventually(lambda: consumer.committed(TopicPartition(job.topic, 0)), 3)
        assert consumer.health().verdict == "ok"
        await consumer.stop()
        await task
    assert len(await job.letters()) == 1


async def test_a_transaction_timeout_is_positive() -> None:
    with pytest.raises(ValueError, match="positive number, not 0"):
        DeadLetters("dead", transactional_id="t", transaction_timeout_ms=0)


# --- What happens to transactions ----------------------------------------------------------------
def lose_the_answer(broker: Broker) -> None:
    broker.on("EndTxn").disconnect(handled=True)


def lose_the_request(broker: Broker) -> None:
    broker.on("EndTxn").disconnect()


def commit_and_say_it_failed(broker: Broker) -> None:
    broker.on("EndTxn").disconnect(handled=True)
    broker.on("EndTxn").fail(InvalidTxnState)


def end_for_good(broker: Broker) -> None:
    broker.on("EndTxn").fail(InvalidTxnState)


def refuse_offsets(broker: Broker) -> None:
    broker.on("TxnOffsetCommit").fail(InvalidTxnState)


def lose_the_offsets_answer(broker: Broker) -> None:
    broker.on("TxnOffsetCommit").disconnect(handled=True)


def lose_all_of_one_attempt(broker: Broker) -> None:
    broker.on("EndTxn").fail(InvalidTxnState)
    broker.on("InitProducerId").disconnect(times=3)
    broker.on("OffsetFetch").disconnect()


@pytest.mark.parametrize(
    "harm",
    [
        lose_the_answer,
        lose_the_request,
        commit_and_say_it_failed,
        end_for_good,
        refuse_offsets,
        lose_the_offsets_answer,
        lose_all_of_one_attempt,
    ],
)
async def test_whatever_becomes_of_a_transaction_there_is_one_letter(
    harm: Callable[[Broker], None],
) -> None:
    async with Broker() as broker:
        job = await Job.of(KafkaHandle("embedded", broker.bootstrap_servers))
        async with job.running() as consumer:
            await until(lambda: bool(consumer.assignment()))
            await eventually(lambda: consumer.committed(TopicPartition(job.topic, 0)), None)
            harm(broker)
            await job.kafka.produce(job.topic, 0, BAD)
            await eventually(lambda: consumer.committed(TopicPartition(job.topic, 0)), 3)
            await until(lambda: consumer.health().is_ok)
            assert consumer.metrics()["processing_dead_total"] == 1
        assert await origins(job) == {(b"0", b"1"): 1}
        assert await job.committed() == 3


@pytest.mark.virtual_time
@pytest.mark.parametrize("harm", [end_for_good, commit_and_say_it_failed, lose_the_answer])
@pytest.mark.parametrize("goes_back", ["by a seek", "by a truncation"])
async def test_a_letter_of_a_record_that_is_read_again_is_not_taken_for_the_one_before(
    goes_back: str, harm: Callable[[Broker], None]
) -> None:
    async with Broker() as broker:
        job = await Job.of(KafkaHandle("embedded", broker.bootstrap_servers))
        tp = TopicPartition(job.topic, 0)
        for value in (b"ok", b"bad"):
            broker.produce(job.topic, value)
        async with job.running() as consumer:
            await eventually(job.committed, 2)
            await until(lambda: consumer.metrics()["processing_dead_total"] == 1)
            harm(broker)
            if goes_back == "by a seek":
                consumer.seek(tp, 1)
            else:
                broker.truncate(tp, 1)
                broker.produce(job.topic, b"bad again")
            await until(lambda: consumer.metrics()["processing_dead_total"] == 2)
        assert await origins(job) == {(b"0", b"1"): 2}
        assert await job.committed() == 2


async def test_another_producer_with_its_id_is_fenced(kafka: KafkaHandle) -> None:
    job = await Job.of(kafka)
    transactional_id = unique("letters")
    letters = DeadLetters(job.dead, transactional_id=transactional_id)
    async with timeout(PATIENCE_S), job.consumer() as consumer:
        task = asyncio.create_task(
            consumer.run(refuse, retry=Retry(dead=ValueError), dead_letter=letters)
        )
        await kafka.produce(job.topic, 0, BAD)
        tp = TopicPartition(job.topic, 0)
        await eventually(lambda: consumer.committed(tp), 3)
        async with AIOKafkaProducer(
            bootstrap_servers=kafka.bootstrap_servers, transactional_id=transactional_id
        ) as other:
            async with other.transaction() as transaction:
                await transaction.send(job.dead, b"of somebody else", partition=0)
            await kafka.produce(job.topic, 0, BAD)
            await eventually(lambda: consumer.committed(tp), 6)
        await consumer.stop()
        await task
    assert len(await job.letters()) == 3


async def test_what_was_committed_for_a_run_that_is_cancelled_is_not_undone() -> None:
    async with Broker() as broker:
        job = await Job.of(KafkaHandle("embedded", broker.bootstrap_servers))
        await job.kafka.produce(job.topic, 0, BAD[1:2])
        async with timeout(PATIENCE_S), job.consumer() as consumer:
            with broker.on("EndTxn").hold() as held:
                task = job.run(consumer)
                await held.reached()
                task.cancel()
                await asyncio.sleep(0.05)
            await asyncio.wait([task])
        assert await job.committed() == 1
        assert await origins(job) == {(b"0", b"0"): 1}


@pytest.mark.virtual_time
@pytest.mark.parametrize("later", [0, 1, 2])
async def test_a_letter_is_not_undone_by_what_is_committed_of_a_partition_given_up_meanwhile(
    later: int,
) -> None:
    async with Broker() as broker:
        job = await Job.of(KafkaHandle("embedded", broker.bootstrap_servers))
        await job.kafka.produce(job.topic, 0, [(b"0", b"ok"), (b"1", b"bad"), (b"2", b"ok")])
        handled: list[int] = []
        may_finish = {offset: asyncio.Event() for offset in (0, 2)}

        async def handle(record: Record) -> None:
            handled.append(record.offset)
            if record.offset in may_finish:
                await may_finish[record.offset].wait()
            await refuse(record)

        letters = DeadLetters(job.dead, transactional_id=unique("letters"))
        async with timeout(PATIENCE_S), job.consumer() as consumer:
            with broker.on("EndTxn").hold() as held:
                task = asyncio.create_task(
                    consumer.run(handle, retry=Retry(dead=ValueError), dead_letter=letters)
                )
                await held.reached()
                for offset in (0, 2)[:later]:
                    may_finish[offset].set()
                await asyncio.sleep(0.05)
                consumer.unsubscribe()
                await asyncio.sleep(0.05)
            await asyncio.sleep(1)
            for each in may_finish.values():
                each.set()
            del handled[:]
            consumer.subscribe([job.topic])
            await eventually(job.committed, 3)
            await consumer.stop()
            await task
        assert sorted(handled) == [0, 2][later:]
        assert await origins(job) == {(b"0", b"1"): 1}


@pytest.mark.virtual_time
async def test_a_letter_is_not_undone_by_an_offset_that_a_handler_commits_meanwhile() -> None:
    async with Broker() as broker:
        job = await Job.of(KafkaHandle("embedded", broker.bootstrap_servers))
        tp = TopicPartition(job.topic, 0)
        await job.kafka.produce(job.topic, 0, [(b"0", b"ok"), (b"1", b"bad")])
        found: list[dict[TopicPartition, int]] = []

        async def handle(record: Record) -> None:
            if record.offset == 0:
                await held.reached()
                asyncio.get_running_loop().call_later(0.05, held.release)
                await consumer.commit({tp: 1})
                found.append(broker.committed(job.group))
            await refuse(record)

        letters = DeadLetters(job.dead, transactional_id=unique("letters"))
        settings = {"auto_commit_interval_ms": 60_000}
        async with timeout(PATIENCE_S), job.consumer(**settings) as consumer:
            held = broker.on("EndTxn").hold()
            task = asyncio.create_task(
                consumer.run(handle, retry=Retry(dead=ValueError), dead_letter=letters)
            )
            await until(lambda: found)
            await consumer.stop()
            await task
        assert found == [{tp: 2}]


@pytest.mark.virtual_time
async def test_what_a_transaction_has_committed_is_not_committed_once_more() -> None:
    async with Broker() as broker:
        job = await Job.of(KafkaHandle("embedded", broker.bootstrap_servers))
        await job.kafka.produce(job.topic, 0, BAD[:1])
        async with job.running(auto_commit_interval_ms=20) as consumer:
            await eventually(job.committed, 1)
            commits = broker.on("OffsetCommit").delay(0, times=None)
            await job.kafka.produce(job.topic, 0, BAD[1:2])
            # Its own committed() would tell the consumer.
            await eventually(job.committed, 2)
            await until(lambda: consumer.metrics()["processing_dead_total"] == 1)
            await asyncio.sleep(5)
        assert not commits.hits


@pytest.mark.virtual_time
async def test_the_end_of_a_run_does_not_wait_for_an_outcome_that_cannot_be_learned() -> None:
    async with Broker() as broker:
        job = await Job.of(KafkaHandle("embedded", broker.bootstrap_servers))
        async with timeout(600), job.consumer(request_timeout_ms=1_000) as consumer:
            task = job.run(consumer)
            await job.kafka.produce(job.topic, 0, BAD[:1])
            await until(lambda: consumer.metrics()["processing_finished_total"] == 1)
            failed = broker.on("EndTxn").fail(InvalidTxnState)
            unknown = broker.on("OffsetFetch").fail(CoordinatorNotAvailableError, times=None)
            await job.kafka.produce(job.topic, 0, BAD[1:2])
            await until(lambda: failed.hits)
            await asyncio.sleep(30)
            assert not task.done()
            task.cancel()
            await asyncio.wait([task], timeout=30)
            assert task.done()
            unknown.remove()


async def test_a_letter_that_waited_while_its_partition_was_lost_is_not_written() -> None:
    async with Broker() as broker:
        job = await Job.of(KafkaHandle("embedded", broker.bootstrap_servers))
        async with job.running(group_protocol="classic", group_instance_id="one") as consumer:
            await job.kafka.produce(job.topic, 0, BAD[1:2])
            with broker.on("EndTxn").hold() as held:
                await held.reached()
                await job.kafka.produce(job.topic, 0, [(b"of another key", b"bad")])
                await until(lambda: consumer.metrics()["processing_failed_total"] == 2)
                before = consumer.group_metadata()
                broker.on("Heartbeat").fail(UnknownMemberIdError)
                await until(lambda: bool(consumer.assignment()) and is_another(consumer, before))
            await eventually(lambda: consumer.committed(TopicPartition(job.topic, 0)), 2)
        assert await origins(job) == {(b"0", b"0"): 1, (b"0", b"1"): 1}


async def test_a_letter_whose_partition_is_lost_while_a_producer_starts_is_not_written() -> None:
    async with Broker() as broker:
        job = await Job.of(KafkaHandle("embedded", broker.bootstrap_servers))
        async with job.running(group_protocol="classic", group_instance_id="one") as consumer:
            await job.kafka.produce(job.topic, 0, BAD[:1])
            await until(lambda: consumer.metrics()["processing_finished_total"] == 1)
            broker.on("EndTxn").fail(InvalidTxnState)
            broker.on("InitProducerId").fail(TransactionalIdAuthorizationFailed)
            with broker.on("InitProducerId").hold() as held:
                await job.kafka.produce(job.topic, 0, BAD[1:2])
                await held.reached()
                before = consumer.group_metadata()
                broker.on("Heartbeat").fail(UnknownMemberIdError)
                await until(lambda: bool(consumer.assignment()) and is_another(consumer, before))
            await eventually(lambda: consumer.committed(TopicPartition(job.topic, 0)), 2)
            await until(lambda: consumer.metrics()["processing_dead_total"] == 1)
        assert await origins(job) == {(b"0", b"1"): 1}


def is_another(consumer: AIOKafkaConsumer, before: ConsumerGroupMetadata) -> bool:
    """Whether it is in the group as somebody else."""
    try:
        return consumer.group_metadata().member_id != before.member_id
    except CommitFailedError:
        return False


@pytest.mark.virtual_time
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_letter_of_a_partition_that_has_gone_meanwhile_is_not_committed(
    protocol: str,
) -> None:
    settings = {
        "group_protocol": protocol,
        "rebalance_hold_ms": 100,
        "rebalance_timeout_ms": 2000,
    }
    async with Broker(group_consumer_heartbeat_interval_ms=50) as broker:
        job = await Job.of(KafkaHandle("embedded", broker.bootstrap_servers), partitions=2)
        async with job.running(**settings) as first:
            await until(lambda: len(first.assignment()) == 2)
            with broker.on("Produce", topic=job.dead).hold() as held:
                for partition in range(2):
                    await job.kafka.produce(job.topic, partition, BAD[1:2])
                await held.reached()
                async with job.running(**settings) as second:
                    await until(lambda: len(second.assignment()) == len(first.assignment()) == 1)
                    held.release()
                    for member in (first, second):
                        (tp,) = member.assignment()
                        await eventually(lambda: member.committed(tp), 1)  # noqa: B023
        assert await origins(job) == {(b"0", b"0"): 1, (b"1", b"0"): 1}


@pytest.mark.real_if_long
@pytest.mark.virtual_time_if_embedded
@pytest.mark.parametrize("way", WAYS)
async def test_a_rebalance_during_a_letters_transaction_repeats_no_record(
    kafka: KafkaHandle, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "FIRST_PAUSE_S", 1.0)  # long enough to look at health
    job = await Job.of(kafka, partitions=2)
    settings = {**WAYS[way], "rebalance_timeout_ms": 10_000}
    handled: Counter[tuple[int, int]] = Counter()
    may_fail = asyncio.Event()

    async def handle(record: Record) -> None:
        handled[record.partition, record.offset] += 1
        if record.value != b"bad at once":
            await may_fail.wait()
        await refuse(record)

    async def live(consumer: AIOKafkaConsumer) -> None:
        letters = DeadLetters(job.dead, transactional_id=unique("letters"))
        await consumer.run(handle, retry=Retry(dead=ValueError), dead_letter=letters)

    for partition in range(2):
        await kafka.produce(job.topic, partition, [(b"0", b"bad at once")])
        await kafka.produce(job.topic, partition, [(b"%d" % n, b"bad") for n in range(1, 9)])
    async with (
        timeout(2 * PATIENCE_S),
        Proxy(parse_address(kafka.bootstrap_servers)) as proxy,
        job.consumer(**settings) as first,
    ):
        send_through(monkeypatch, proxy)
        tasks = [asyncio.create_task(live(first))]
        await until(lambda: handled.total() == 18)
        await until(lambda: first.metrics()["processing_dead_total"] == 2)
        before = first.group_metadata().generation_id
        # Offsets follow the answer to Produce: they are of the generation that was before it.
        (producing,) = proxy.links_of(ProduceRequest.api_key)
        producing.held.hold()
        may_fail.set()
        await until(lambda: first.metrics()["processing_failed_total"] == 18)
        if way != "cooperative":  # the rebalance waits for the transaction
            asyncio.get_running_loop().call_later(0.5, producing.held.release)
        async with job.consumer(**settings) as second:
            tasks.append(asyncio.create_task(live(second)))
            if way == "cooperative":
                await until(lambda: first.group_metadata().generation_id > before)
                producing.held.release()
                # The brokers refuse offsets of the generation before.
                refused = "transactions cannot be committed, and 16 records wait for a commit"
                await until(lambda: refused in str(first.health().reasons))
            await until(lambda: len(second.assignment()) == len(first.assignment()) == 1)
            for partition in range(2):
                await eventually(partial(job.committed, partition), 9)
            await second.stop()
        await first.stop()
        await asyncio.gather(*tasks)
        letters = await origins(job)
    assert set(handled.values()) == set(letters.values()) == {1}
    assert len(handled) == len(letters) == 18


@pytest.mark.few_rows(4)
@pytest.mark.virtual_time
@pytest.mark.parametrize("cancellations", [1, 2, 3])
@pytest.mark.parametrize("held_up", ["EndTxn", "TxnOffsetCommit", "Produce"])
async def test_a_run_cancelled_while_a_transaction_ends_and_begun_again_writes_one_letter(
    cancellations: int, held_up: str
) -> None:
    async with Broker() as broker:
        job = await Job.of(KafkaHandle("embedded", broker.bootstrap_servers))
        async with timeout(PATIENCE_S), job.consumer() as consumer:
            topic = job.dead if held_up == "Produce" else None
            with broker.on(held_up, topic=topic).hold() as held:
                running = job.run(consumer)
                await job.kafka.produce(job.topic, 0, [*BAD, (b"good", b"good")])
                await held.reached()
                for _ in range(cancellations):
                    running.cancel()
                    await asyncio.wait([running], timeout=0.1)
                asyncio.get_running_loop().call_later(0.5, held.release)
                await asyncio.wait([running])
            running = job.run(consumer)
            await eventually(lambda: consumer.committed(TopicPartition(job.topic, 0)), len(BAD) + 1)
            running.cancel()
            await asyncio.wait([running])
        assert set((await origins(job)).values()) == {1}
