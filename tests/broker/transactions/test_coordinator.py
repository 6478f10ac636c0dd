"""The transaction coordinator and its markers on logs in memory, in invented time."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from typing import cast

import pytest

from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.broker.catalog import TopicCatalog
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.groups.coordinator_log import ErrorType
from aiokafka_lite.broker.log.disk import DiskQueue
from aiokafka_lite.broker.log.producers import NO_PRODUCER, ProducerIdentity
from aiokafka_lite.broker.topics import Partition
from aiokafka_lite.broker.transactions.coordinator import (
    ClusterTransactions,
    TransactionCoordinator,
    TransactionLog,
    TransactionRecord,
)
from aiokafka_lite.broker.transactions.machine import (
    EXHAUSTED_EPOCH,
    ONGOING,
    Marker,
    TransactionValue,
    TransactionVersion,
)
from aiokafka_lite.errors import (
    CoordinatorNotAvailableError,
    KafkaProtocolError,
    LeaderNotAvailableError,
    NoError,
    NotCoordinatorError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.structs import TopicPartition
from tests.broker.groups.fakes import MemoryLog, run_in_virtual_time

V1, V2 = TransactionVersion.ORIGINAL, TransactionVersion.EPOCH_PER_TRANSACTION
TP = TopicPartition("t", 0)
TIMEOUT_MS = 10_000


class Services(ClusterTransactions):
    """A cluster whose topic has one partition, and whose markers all go to one function."""

    def __init__(self) -> None:
        self.started_at = asyncio.get_running_loop().time()
        self.scope = TaskScope("test")
        self.config = BrokerConfig(transaction_topic_partitions=1)
        self.catalog = TopicCatalog(
            self.config, DiskQueue(), random.Random(1), lambda key: None, list
        )
        self.log = MemoryLog()
        self.written: list[tuple[float, TopicPartition]] = []
        self.refusals: dict[TopicPartition, ErrorType] = {}
        self.producer_ids = iter(range(100, 200))
        self.while_reserving: Callable[[], None] = lambda: None

    def now_s(self) -> float:
        return asyncio.get_running_loop().time() - self.started_at

    def clock(self) -> int:
        return 1_000_000 + round(self.now_s() * 1000)

    def partition(self, topic: str, index: int) -> Partition:
        return cast("Partition", self.log)

    def leader_epoch(self, index: int) -> int:
        return 0

    async def new_producer_id(self) -> int:
        self.while_reserving()
        return next(self.producer_ids)

    def write_marker(self, tp: TopicPartition, marker: Marker) -> ErrorType:
        self.written.append((round(self.now_s(), 3), tp))
        return self.refusals.get(tp, NoError)

    def store(self, *values: TransactionValue) -> None:
        """Store transactional ids "0", "1", ... as another coordinator has left them."""
        log = TransactionLog(lambda _: self.log, partition_count=lambda: 1, clock=self.clock)
        for number, value in enumerate(values):
            log.append(TransactionRecord(str(number), value), V2)


async def elected(services: Services) -> TransactionCoordinator:
    coordinator = TransactionCoordinator(services)
    coordinator.elect([0])
    await coordinator.until_loaded()
    return coordinator


async def begun(coordinator: TransactionCoordinator, *partitions: int) -> ProducerIdentity:
    """Begin a transaction, by default in one partition."""
    started = await coordinator.init_producer("p", TIMEOUT_MS, None)
    assert started.error is NoError
    tps = [TopicPartition("t", partition) for partition in partitions or (0,)]
    assert coordinator.add_partitions("p", started.producer, tps, V1) is NoError
    return started.producer


def in_virtual_time(
    scenario: Callable[[Services], Coroutine[object, None, None]],
) -> Callable[[], None]:
    async def run() -> None:
        services = Services()
        await scenario(services)
        await services.scope.close()

    def test() -> None:
        run_in_virtual_time(run())

    test.__doc__ = scenario.__doc__
    return test


def state_of(coordinator: TransactionCoordinator, transactional_id: str = "p") -> str:
    return coordinator.transactions[transactional_id].state.name


# -- time ---------------------------------------------------------------------------------------


@in_virtual_time
async def test_transaction_is_aborted_when_its_time_is_up(services: Services) -> None:
    coordinator = await elected(services)
    producer = await begun(coordinator)
    await asyncio.sleep(TIMEOUT_MS / 1000 - 0.1)
    more = TopicPartition("t", 1)
    assert coordinator.add_partitions("p", producer, [more], V1) is NoError
    assert state_of(coordinator) == "Ongoing"
    await asyncio.sleep(0.2)
    assert state_of(coordinator) == "CompleteAbort"
    assert services.written == [(10.0, TP), (10.0, more)]
    coordinator.close()


@in_virtual_time
async def test_transaction_that_has_ended_does_not_time_out(services: Services) -> None:
    coordinator = await elected(services)
    producer = await begun(coordinator)
    await coordinator.end("p", producer, V1, is_commit=True)
    await asyncio.sleep(1)
    assert coordinator.add_partitions("p", producer, [TP], V1) is NoError
    await asyncio.sleep(9.9)
    assert state_of(coordinator) == "Ongoing"
    await asyncio.sleep(0.2)
    assert state_of(coordinator) == "CompleteAbort"
    coordinator.close()


@in_virtual_time
async def test_abort_that_cannot_be_stored_is_tried_again(services: Services) -> None:
    coordinator = await elected(services)
    await begun(coordinator)
    services.log.failure = OSError("disk full")
    await asyncio.sleep(12.5)
    assert state_of(coordinator) == "Ongoing"
    services.log.failure = None
    await asyncio.sleep(0.4)
    assert state_of(coordinator) == "Ongoing"
    await asyncio.sleep(0.2)
    assert state_of(coordinator) == "CompleteAbort"
    coordinator.close()


@in_virtual_time
async def test_loaded_transaction_has_the_rest_of_its_time(services: Services) -> None:
    now_ms = services.clock()
    starts = (now_ms - 20_000, now_ms - 4_000, now_ms + 99_000)  # a clock that was put back
    services.store(
        *(
            TransactionValue(
                producer_id=7, epoch=1, timeout_ms=TIMEOUT_MS, state=ONGOING, started_ms=started_ms
            )
            for started_ms in starts
        )
    )
    coordinator = await elected(services)
    seen = []
    for seconds in (0.1, 5.8, 0.2, 3.8, 0.2):
        await asyncio.sleep(seconds)
        seen.append([number for number in "012" if state_of(coordinator, number) == "Ongoing"])
    assert seen == [["1", "2"], ["1", "2"], ["2"], ["2"], []]
    coordinator.close()


@pytest.mark.parametrize("how", ["resigns", "closes"])
def test_coordinator_that_is_none_any_more_writes_nothing(how: str) -> None:
    @in_virtual_time
    async def scenario(services: Services) -> None:
        services.refusals[TP] = LeaderNotAvailableError
        coordinator = await elected(services)
        await begun(coordinator)
        other = await coordinator.init_producer("q", TIMEOUT_MS, None)
        coordinator.add_partitions("q", other.producer, [TP], V1)
        await coordinator.end("q", other.producer, V1, is_commit=True)
        before = len(services.log.batches), len(services.written)
        if how == "resigns":
            coordinator.resign([0])
        else:
            coordinator.close()
            started = await coordinator.init_producer("p", TIMEOUT_MS, None)
            assert started.error is CoordinatorNotAvailableError
        await asyncio.sleep(60)
        assert (len(services.log.batches), len(services.written)) == before

    scenario()


# -- what is not stored was not decided -----------------------------------------------------------


@in_virtual_time
async def test_decision_that_cannot_be_stored_has_no_effect(services: Services) -> None:
    coordinator = await elected(services)
    producer = await begun(coordinator)
    services.log.failure = OSError("disk full")
    more = TopicPartition("t", 1)
    assert coordinator.add_partitions("p", producer, [more], V1) is NotCoordinatorError
    assert coordinator.verify_partition("p", producer, more) is not NoError
    ended = await coordinator.end("p", producer, V1, is_commit=True)
    assert ended == (NotCoordinatorError, NO_PRODUCER)
    assert (await coordinator.init_producer("q", 1, None)).error is NotCoordinatorError
    assert (list(coordinator.transactions), state_of(coordinator)) == (["p"], "Ongoing")
    coordinator.close()


@in_virtual_time
async def test_partitions_that_are_known_are_not_stored_again(services: Services) -> None:
    coordinator = await elected(services)
    producer = await begun(coordinator)
    before = len(services.log.batches)
    assert coordinator.add_partitions("p", producer, [TP], V1) is NoError
    assert len(services.log.batches) == before
    coordinator.close()


@in_virtual_time
async def test_coordinator_that_resigns_while_an_id_is_reserved_decides_nothing(
    services: Services,
) -> None:
    coordinator = await elected(services)
    services.while_reserving = lambda: coordinator.resign([0])
    started = await coordinator.init_producer("p", 1, None)
    assert started == (NotCoordinatorError, NO_PRODUCER)
    assert not services.log.batches


@in_virtual_time
async def test_another_producer_id_is_reserved_when_epochs_run_out(services: Services) -> None:
    value = TransactionValue(
        producer_id=7,
        epoch=EXHAUSTED_EPOCH,
        timeout_ms=TIMEOUT_MS,
        state=ONGOING,
        partitions=(TP,),
        started_ms=services.clock(),
        client_version=V2,
    )
    services.store(value)
    coordinator = await elected(services)
    ended = await coordinator.end("0", value.producer, V2, is_commit=True)
    assert ended == (NoError, (100, 0))
    started = await coordinator.init_producer("0", TIMEOUT_MS, None)
    assert started == (NoError, (100, 1))
    coordinator.close()


# -- markers ------------------------------------------------------------------------------------


@in_virtual_time
async def test_markers_are_written_in_pieces_without_a_pause(services: Services) -> None:
    coordinator = await elected(services)
    producer = await begun(coordinator, *range(450))
    await coordinator.end("p", producer, V1, is_commit=True)
    assert len(services.written) == 200
    await asyncio.sleep(0.01)
    assert [tp.partition for _, tp in services.written] == [*range(450)]
    assert {at for at, _ in services.written} == {0.0}
    assert state_of(coordinator) == "CompleteCommit"
    coordinator.close()


@in_virtual_time
async def test_marker_that_is_refused_is_tried_again_by_one_timer(services: Services) -> None:
    services.refusals[TP] = LeaderNotAvailableError
    coordinator = await elected(services)
    producer = await begun(coordinator, 0, 1)
    await coordinator.end("p", producer, V1, is_commit=False)
    await asyncio.sleep(0.15)
    coordinator.release_markers()
    await asyncio.sleep(0.14)
    services.refusals.clear()
    await asyncio.sleep(0.1)
    assert state_of(coordinator) == "CompleteAbort"
    times = [at for at, tp in services.written if tp == TP]
    assert times == [0.0, 0.1, 0.15, 0.25, 0.35]
    assert len(services.written) == len(times) + 1
    coordinator.release_markers()
    assert len(services.written) == len(times) + 1
    coordinator.close()


@in_virtual_time
async def test_end_that_cannot_be_stored_is_tried_again(services: Services) -> None:
    coordinator = await elected(services)
    producer = await begun(coordinator)
    coordinator.hold_markers()
    await coordinator.end("p", producer, V1, is_commit=True)
    services.log.failure = OSError("disk full")
    coordinator.release_markers()
    assert (services.written, state_of(coordinator)) == ([(0.0, TP)], "PrepareCommit")
    services.log.failure = None
    await asyncio.sleep(0.11)
    assert (services.written, state_of(coordinator)) == ([(0.0, TP)], "CompleteCommit")
    coordinator.close()


def test_only_markers_that_were_not_written_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    @in_virtual_time
    async def scenario(services: Services) -> None:
        services.refusals[TP] = UnknownTopicOrPartitionError
        coordinator = await elected(services)
        producer = await begun(coordinator, 0, 1)
        await coordinator.end("p", producer, V1, is_commit=True)
        assert state_of(coordinator) == "CompleteCommit"
        coordinator.close()

    with caplog.at_level(logging.INFO):
        scenario()
    (record,) = [one for one in caplog.records if "marker" in one.getMessage()]
    assert str(TP) in record.getMessage()


# -- ids that are not used, and the log -----------------------------------------------------------


@in_virtual_time
async def test_ids_expire_in_steps(services: Services) -> None:
    idle = TransactionValue(producer_id=7, epoch=1, timeout_ms=1, updated_ms=0)
    services.store(*[idle] * 250)
    services.config = BrokerConfig(transactional_id_expiration_ms=1)
    coordinator = await elected(services)
    assert len(list(coordinator.expire_ids())) == 3
    assert not coordinator.transactions
    coordinator.close()


async def test_log_that_ends_early_is_an_error() -> None:
    services = Services()
    services.store(TransactionValue(producer_id=7, epoch=1, timeout_ms=1))
    services.log.high_watermark += 1
    log = TransactionLog(lambda _: services.log, partition_count=lambda: 1, clock=services.clock)
    with pytest.raises(
        KafkaProtocolError, match=r"at offset 1, which is below the high watermark \(2\)"
    ):
        list(log.read(0))
    await services.scope.close()
