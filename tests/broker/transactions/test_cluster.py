"""Transactions in a cluster of several nodes, whose leaders and coordinators move."""

from __future__ import annotations

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.topics import TRANSACTION_STATE_TOPIC, partition_for
from aiokafka_lite.errors import (
    ConcurrentTransactions,
    KafkaStorageError,
    NotCoordinatorError,
    NotEnoughReplicasError,
)
from aiokafka_lite.protocol.messages.metadata import FindCoordinatorRequest
from aiokafka_lite.protocol.messages.transactions import EndTxnRequest
from aiokafka_lite.structs import TopicPartition
from tests.broker.transactions.offsets import commit, settled
from tests.broker.transactions.requests import TRANSACTION, VERSION_2, Producer
from tests.broker.wire import eventually
from tests.support.cluster import KafkaHandle
from tests.support.group_requests import GroupRequests, await_coordinator
from tests.support.wire import RawClient


def coordinating_partition(broker: Broker, transactional_id: str) -> TopicPartition:
    count = broker.catalog.coordinators(TRANSACTION_STATE_TOPIC)
    return TopicPartition(TRANSACTION_STATE_TOPIC, partition_for(transactional_id, count))


async def connect(broker: Broker, transactional_id: str) -> RawClient:
    """Return a client of the node that coordinates an id."""
    async with RawClient(broker.bootstrap_servers) as client:
        find = FindCoordinatorRequest(coordinator_keys=[transactional_id], key_type=TRANSACTION)
        (found,) = (await client.request(find)).coordinators
    assert found.error_code == 0
    return RawClient(f"{found.host}:{found.port}")


async def test_transaction_goes_on_at_the_next_coordinator() -> None:
    async with Broker(nodes=3) as broker:
        broker.create_topic("t", 1)
        log = broker.topics["t"].partitions[0].log
        async with await connect(broker, "p") as client:
            producer = await Producer(client, "p").init()
            await producer.add("t")
            old = broker.catalog.coordinator_of(TRANSACTION_STATE_TOPIC, "p")
            new = broker.move_leader(coordinating_partition(broker, "p"))
            refused = await client.request(_end_request(producer), 4)
            assert refused.error_code == NotCoordinatorError.errno
        assert new != old
        async with await connect(broker, "p") as client:
            producer.client = client
            await producer.end(commit=True, version=VERSION_2)
            await producer.until_state("CompleteCommit")
            assert "p" not in broker.nodes[old].transactions.transactions
            assert "p" in broker.nodes[new].transactions.transactions
        (ended,) = log.producers.describe()
        assert ended.coordinator_epoch == 1  # of the second term
    assert broker.failure is None


def _end_request(producer: Producer) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=True,
    )


@pytest.mark.parametrize("is_commit", [True, False])
async def test_decided_transaction_is_completed_by_the_next_coordinator(is_commit: bool) -> None:
    async with Broker(nodes=2) as broker:
        broker.create_topic("t", 1)
        log = broker.topics["t"].partitions[0].log
        async with await connect(broker, "p") as client:
            producer = await Producer(client, "p").init()
            await producer.add("t")
            broker.transactions.hold_markers()
            await producer.end(commit=is_commit)
            assert log.log_end_offset == 0
        new = broker.move_leader(coordinating_partition(broker, "p"))
        broker.transactions.release_markers()
        state = "CompleteCommit" if is_commit else "CompleteAbort"

        def is_completed() -> bool:
            found = broker.nodes[new].transactions.transactions.get("p")
            return found is not None and found.state.name == state

        await eventually(is_completed)
        assert log.log_end_offset == log.last_stable_offset == 1
    assert broker.failure is None


async def test_marker_waits_for_a_partition_without_a_leader() -> None:
    async with Broker(nodes=2) as broker:
        broker.create_topic("t", 1, replication_factor=1)
        partition = broker.topics["t"].partitions[0]
        tp = TopicPartition("t", 0)
        await broker.open_internal_topic("__transaction_state")
        transactional_id = next(
            name
            for name in (f"p{number}" for number in range(100))
            if broker.catalog.coordinator_of(TRANSACTION_STATE_TOPIC, name) != partition.leader_id
        )
        leader = broker.leader_of(tp)
        async with await connect(broker, transactional_id) as client:
            producer = await Producer(client, transactional_id).init()
            await producer.add("t")
            await broker.stop_node(leader)
            assert broker.leader_of(tp) == -1
            answer = await producer.try_end(commit=True)
            assert answer.error_code == 0
            assert (await producer.describe()).transaction_state == "PrepareCommit"
            await broker.start_node(leader)
            await producer.until_state("CompleteCommit")
        assert partition.log.log_end_offset == 1
    assert broker.failure is None


async def test_only_first_records_are_refused_while_their_id_has_no_coordinator() -> None:
    async with Broker(nodes=2, default_replication_factor=1) as broker:
        topic = broker.create_topic("t", 4)
        await broker.open_internal_topic("__transaction_state")
        here = broker.catalog.coordinator_of(TRANSACTION_STATE_TOPIC, "p")
        opened, other = (p for p in topic.partitions if p.leader_id != here)
        async with await connect(broker, "p") as client:
            producer = await Producer(client, "p").init()
            await producer.add("t", opened.index)
        async with RawClient(broker.nodes[other.leader_id].bootstrap_servers) as client:
            producer.client = client
            await producer.produce("t", partition=opened.index)
            await broker.stop_node(here)
            assert await producer.produce("t", partition=opened.index) == 1
            refused = await producer.try_produce("t", producer.batch(), partition=other.index)
        assert refused.error_code == NotEnoughReplicasError.errno
        assert other.log.log_end_offset == 0
    assert broker.failure is None


async def test_partition_of_a_deleted_topic_needs_no_marker() -> None:
    async with Broker() as broker:
        broker.create_topic("gone", 1)
        broker.create_topic("stays", 1)
        async with await connect(broker, "p") as client:
            producer = await Producer(client, "p").init()
            await producer.add("gone")
            await producer.add("stays")
            broker.delete_topic("gone")
            await producer.end(commit=True)
            await producer.until_state("CompleteCommit")
        assert broker.topics["stays"].partitions[0].log.log_end_offset == 1
    assert broker.failure is None


async def test_transaction_of_very_many_partitions_ends() -> None:
    async with Broker() as broker:
        broker.create_topic("wide", 1_000)
        async with await connect(broker, "p") as client:
            producer = await Producer(client, "p").init()
            await producer.add("wide", *range(1_000))
            await producer.end(commit=True)
            await producer.until_state("CompleteCommit")
        ends = {partition.log.log_end_offset for partition in broker.topics["wide"].partitions}
        assert ends == {1}
    assert broker.failure is None


async def test_held_markers_keep_a_transaction_undecided() -> None:
    async with Broker() as broker:
        broker.create_topic("t", 1)
        log = broker.topics["t"].partitions[0].log
        async with await connect(broker, "p") as client:
            producer = await Producer(client, "p").init()
            await producer.add("t")
            await producer.produce("t")
            broker.transactions.hold_markers()
            await producer.end(commit=True)
            assert await producer.try_add({"t": [0]}) == [ConcurrentTransactions.errno]
            again = await producer.try_end(commit=True, settles=False)
            assert again.error_code == ConcurrentTransactions.errno
            started = await producer.try_init()
            assert started.error_code == ConcurrentTransactions.errno
            assert (log.last_stable_offset, log.log_end_offset) == (0, 1)
            broker.create_topic("other", 1)
            # Producers that leave it to the leader to add partitions know the error.
            for version, error in ((11, NotEnoughReplicasError), (12, ConcurrentTransactions)):
                late = await producer.try_produce("other", producer.batch(), version=version)
                assert late.error_code == error.errno
            broker.transactions.release_markers()
            assert log.last_stable_offset == log.log_end_offset == 2
            await producer.add("t")
    assert broker.failure is None


async def test_deleted_topic_takes_pending_offsets_along() -> None:
    async with Broker() as broker:
        handle = KafkaHandle("embedded", broker.bootstrap_servers)
        await await_coordinator(handle)
        group = GroupRequests(handle, "g")
        broker.create_topic("t", 1)
        async with await connect(broker, "p") as client:
            producer = await Producer(client, "p").init()
            await commit(producer, group, "t", 7)
            broker.delete_topic("t")
            broker.create_topic("t", 1)
            await producer.end(commit=True)
            assert await settled(client, group, "t") == -1


async def test_producer_id_is_given_when_it_is_on_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail() -> None:
        raise KafkaStorageError("disk full")

    async with Broker() as broker:
        assert broker.catalog.coordinator_of(TRANSACTION_STATE_TOPIC, "p") == -1
        with monkeypatch.context() as patch:
            patch.setattr(broker.disk, "settled", fail)
            with pytest.raises(KafkaStorageError):
                await broker.transactions.new_producer_id()


async def test_transactional_ids_begin_anew_when_their_topic_is_deleted() -> None:
    async with Broker(nodes=2, transaction_topic_partitions=7) as broker:
        broker.create_topic("t", 1)
        for _ in range(2):
            async with await connect(broker, "p") as client:
                producer = await Producer(client, "p").init()
                assert producer.epoch == 0
                await producer.add("t")
                broker.delete_topic(TRANSACTION_STATE_TOPIC)
                refused = await client.request(_end_request(producer), 4)
                assert refused.error_code == NotCoordinatorError.errno
    assert broker.failure is None
