"""The requests of transactions: the same answers from the embedded broker and a real one."""

from __future__ import annotations

import asyncio
import re

import pytest

from aiokafka_lite.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRegularExpressionError,
    InvalidRequestError,
    InvalidTransactionTimeout,
    InvalidTxnState,
    NoError,
    OperationNotAttempted,
    OutOfOrderSequenceNumber,
    ProducerFencedError,
    TopicAuthorizationFailedError,
    TransactionAbortableError,
    TransactionalIdAuthorizationFailed,
    TransactionalIdNotFoundError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.list_transactions import ListTransactionsRequest
from aiokafka_lite.protocol.messages.metadata import FindCoordinatorRequest
from aiokafka_lite.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from aiokafka_lite.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    TopicRequest,
    WritableTxnMarker,
    WriteTxnMarkersRequest,
)
from aiokafka_lite.records import iter_batches
from tests.broker.admin.requests import BROKER, describing
from tests.broker.transactions.requests import (
    BEFORE_ADDING,
    GROUP,
    NOT_READY,
    PRODUCE_THAT_ADDS,
    TRANSACTION,
    VERSION_1,
    VERSION_2,
    Producer,
    await_transactions,
    describe_producers,
    once_settled,
)
from tests.broker.wire import fetch, fetch_partition, list_offset
from tests.support.cluster import KafkaHandle, unique
from tests.support.wire import RawClient

OK = 0
LATEST = -1
COMMITTED = 1


# -- finding the coordinator, starting -------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 3, 4, 6])
async def test_a_node_coordinates_transactional_ids(client: RawClient, version: int) -> None:
    request = FindCoordinatorRequest(coordinator_keys=["some"], key_type=TRANSACTION)
    (found,) = (await client.request(request, version)).coordinators
    assert found.error_code == OK
    assert found.node_id >= 0


async def test_producers_epoch_grows_with_each_start(client: RawClient) -> None:
    producer = Producer(client)
    first = await producer.try_init()
    again = await producer.try_init()
    other = await Producer(client).try_init()
    assert (first.error_code, first.producer_epoch) == (OK, 0)
    assert (again.producer_id, again.producer_epoch) == (first.producer_id, 1)
    assert (other.producer_id != first.producer_id, other.producer_epoch) == (True, 0)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"transactional_id": ""}, InvalidRequestError),
        ({"transaction_timeout_ms": 0}, InvalidTransactionTimeout),
        ({"transaction_timeout_ms": -1}, InvalidTransactionTimeout),
        ({"transaction_timeout_ms": 1}, NoError),
        ({"producer_id": 5}, InvalidRequestError),
        ({"producer_epoch": 5}, InvalidRequestError),
        # A producer that the coordinator has forgotten gets a new id.
        ({"producer_id": 5, "producer_epoch": 5}, NoError),
    ],
)
async def test_start_is_checked(
    client: RawClient, changes: dict[str, str | int], error: type[NoError]
) -> None:
    request = InitProducerIdRequest(transactional_id=unique("txn"), transaction_timeout_ms=1000)
    for name, value in changes.items():
        setattr(request, name, value)
    # Kafka's coordinator of this id may come later than that of the id that was waited for.
    answer = await once_settled(
        lambda: client.request(request), lambda answer: answer.error_code, NOT_READY
    )
    assert answer.error_code == error.errno
    if error is not NoError:
        assert (answer.producer_id, answer.producer_epoch) == (-1, -1)


@pytest.mark.parametrize(("beyond", "error"), [(0, NoError), (1, InvalidTransactionTimeout)])
async def test_transactions_may_take_as_long_as_the_broker_says(
    client: RawClient, beyond: int, error: type[NoError]
) -> None:
    settings = await client.request(describing(BROKER, "1", ["transaction.max.timeout.ms"]))
    (longest,) = settings.results[0].configs
    assert longest.value is not None
    request = InitProducerIdRequest(
        transactional_id=unique("txn"), transaction_timeout_ms=int(longest.value) + beyond
    )
    answer = await once_settled(
        lambda: client.request(request), lambda answer: answer.error_code, NOT_READY
    )
    assert answer.error_code == error.errno


async def test_producer_that_goes_on_is_fenced_by_one_that_started(client: RawClient) -> None:
    producer = await Producer(client).init()
    mine = (producer.producer_id, producer.epoch)
    bumped = await producer.try_init(mine)
    assert (bumped.error_code, bumped.producer_id, bumped.producer_epoch) == (OK, mine[0], 1)
    # The answer may have got lost: asked again, it is the same.
    assert (await producer.try_init(mine)).producer_epoch == 1
    assert (await producer.try_init((mine[0], 1))).producer_epoch == 2
    assert (await producer.try_init(mine)).error_code == ProducerFencedError.errno
    assert (await producer.try_init(mine, version=4)).error_code == ProducerFencedError.errno
    assert (await producer.try_init(mine, version=3)).error_code == InvalidProducerEpoch.errno
    assert (await producer.try_init()).producer_epoch == 3
    assert (await producer.try_init((mine[0], 2))).error_code == ProducerFencedError.errno
    assert (await producer.try_init((mine[0] + 1, 3))).error_code == ProducerFencedError.errno


async def test_start_aborts_the_open_transaction_first(
    client: RawClient, producer: Producer, topic: str
) -> None:
    await producer.add(topic)
    await producer.produce(topic)
    answer = await producer.try_init()
    assert answer.error_code == ConcurrentTransactions.errno
    assert (answer.producer_id, answer.producer_epoch) == (-1, -1)
    old = (producer.producer_id, producer.epoch)
    await producer.init()
    # The abort shuts the old producer out with an epoch of its own.
    assert (producer.producer_id, producer.epoch) == (old[0], old[1] + 2)
    data = await fetch(client, topic, fetch_partition(), isolation_level=COMMITTED)
    assert [(a.producer_id, a.first_offset) for a in data.aborted_transactions or ()] == [
        (old[0], 0)
    ]


# -- partitions ------------------------------------------------------------------------------------


async def test_partitions_are_added_once(producer: Producer, topic: str) -> None:
    for version in range(4):
        assert await producer.try_add({topic: [0, 1]}, version=version) == [OK, OK]
    described = await producer.describe()
    assert described.transaction_state == "Ongoing"
    assert [(t.topic, sorted(t.partitions)) for t in described.topics] == [(topic, [0, 1])]


async def test_no_partition_is_added_when_one_is_unknown(producer: Producer, topic: str) -> None:
    missing = unique("missing")
    wanted = {topic: [0, 7], missing: [0], "__transaction_state": [0]}
    assert sorted(await producer.try_add(wanted)) == [
        UnknownTopicOrPartitionError.errno,
        UnknownTopicOrPartitionError.errno,
        TopicAuthorizationFailedError.errno,
        OperationNotAttempted.errno,
    ]
    assert (await producer.describe()).transaction_state == "Empty"


@pytest.mark.parametrize(
    ("transactional_id", "id_change", "epoch_change", "version", "error"),
    [
        ("", 0, 0, 3, InvalidRequestError),
        ("nobody's", 0, 0, 3, InvalidProducerIdMapping),
        (None, 1, 0, 3, InvalidProducerIdMapping),
        (None, 0, 1, 3, ProducerFencedError),
        (None, 0, -1, 3, ProducerFencedError),
        (None, 0, 1, 2, ProducerFencedError),
        (None, 0, 1, 1, InvalidProducerEpoch),
    ],
)
async def test_only_the_producer_itself_may_add(
    cluster: KafkaHandle,
    producer: Producer,
    topic: str,
    transactional_id: str | None,
    id_change: int,
    epoch_change: int,
    version: int,
    error: type[NoError],
) -> None:
    await producer.init()
    if transactional_id is not None:
        producer.transactional_id = transactional_id
    producer.take(producer.producer_id + id_change, producer.epoch + epoch_change)
    assert await producer.try_add({topic: [0]}, version=version) == [error.errno]
    assert (await producer.try_end(commit=True, version=version)).error_code == error.errno
    await await_transactions(cluster, GROUP)
    assert await producer.add_offsets("g", version=version) == error.errno


async def test_brokers_may_ask_whether_partitions_were_added(
    client: RawClient, producer: Producer, topic: str
) -> None:
    await producer.add(topic, 0)
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        verify_only=True,
        topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0, 1])],
    )
    request = AddPartitionsToTxnRequest(transactions=[transaction])
    answer = await client.request(request, 5)
    codes = {
        partition.partition_index: partition.partition_error_code
        for partition in answer.results_by_transaction[0].topic_results[0].results_by_partition
    }
    assert (answer.error_code, codes) == (OK, {0: OK, 1: TransactionAbortableError.errno})


# -- the end ---------------------------------------------------------------------------------------

# What is done first, then for EndTxn (commit, epoch relative to the current one) the answers.
ENDS_OF_VERSION_1 = [
    ("nothing", True, 0, InvalidTxnState),
    ("nothing", False, 0, InvalidTxnState),
    ("added", True, 0, NoError),
    ("added", False, 0, NoError),
    ("added", True, 1, ProducerFencedError),
    ("committed", True, 0, NoError),
    ("committed", False, 0, InvalidTxnState),
    ("committed", True, -1, ProducerFencedError),
    ("aborted", False, 0, NoError),
    ("aborted", True, 0, InvalidTxnState),
]
ENDS_OF_VERSION_2 = [
    ("nothing", True, 0, InvalidTxnState),
    ("nothing", False, 0, NoError),
    ("added", True, 0, NoError),
    ("added", False, 0, NoError),
    ("added", True, -1, ProducerFencedError),
    ("added", True, 1, ProducerFencedError),
    # The epoch is another one now; with that before, the request is a repeated one.
    ("committed", True, -1, NoError),
    ("committed", False, -1, InvalidTxnState),
    ("committed", True, 0, InvalidTxnState),
    ("committed", False, 0, NoError),
    ("committed", True, -2, ProducerFencedError),
    ("aborted", False, -1, NoError),
    ("aborted", True, -1, InvalidTxnState),
    ("aborted", False, 0, NoError),
    ("aborted", True, 0, InvalidTxnState),
]


@pytest.mark.parametrize(
    ("version", "first", "commit", "epoch_change", "error"),
    [(VERSION_1, *row) for row in ENDS_OF_VERSION_1]
    + [(VERSION_2, *row) for row in ENDS_OF_VERSION_2],
)
async def test_end_depends_on_what_was_before(
    producer: Producer,
    topic: str,
    version: int,
    first: str,
    commit: bool,
    epoch_change: int,
    error: type[NoError],
) -> None:
    await producer.init()
    await producer.init()  # so that there are epochs before
    if first != "nothing":
        await producer.add(topic)
    if first in ("committed", "aborted"):
        await producer.end(commit=first == "committed", version=version)
        await producer.until_state("CompleteCommit" if first == "committed" else "CompleteAbort")
    current = producer.epoch
    producer.take(producer.producer_id, current + epoch_change)
    answer = await producer.try_end(commit=commit, version=version)
    assert answer.error_code == error.errno
    if version == VERSION_2 and error is NoError:
        is_repeated = epoch_change < 0
        assert answer.producer_id == producer.producer_id
        assert answer.producer_epoch == (current if is_repeated else current + 1)


async def test_no_transaction_of_version_2_meets_records_of_the_one_before(
    producer: Producer, topic: str
) -> None:
    await producer.produce(topic, version=PRODUCE_THAT_ADDS)
    late = producer.batch(sequence=1)
    await producer.end(commit=True, version=VERSION_2)
    await producer.until_state("CompleteCommit")
    refused = await producer.try_produce(topic, late, version=PRODUCE_THAT_ADDS)
    assert refused.error_code == InvalidProducerEpoch.errno
    assert await producer.produce(topic, version=PRODUCE_THAT_ADDS) == 2


# -- Produce ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "error"),
    [(9, InvalidTxnState), (10, InvalidTxnState), (11, TransactionAbortableError), (12, NoError)],
)
async def test_records_need_a_partition_that_was_added(
    client: RawClient, producer: Producer, topic: str, version: int, error: type[NoError]
) -> None:
    await producer.add(topic, 1)
    result = await producer.try_produce(topic, producer.batch(), version=version)
    assert result.error_code == error.errno
    end = (await list_offset(client, topic, LATEST)).offset
    assert end == (1 if error is NoError else 0)


@pytest.mark.parametrize("version", [BEFORE_ADDING, PRODUCE_THAT_ADDS])
async def test_records_of_a_fenced_producer_are_refused(
    client: RawClient, producer: Producer, topic: str, version: int
) -> None:
    newer = await Producer(client, producer.transactional_id).init()
    await newer.add(topic)
    result = await producer.try_produce(topic, producer.batch(), version=version)
    assert result.error_code == InvalidProducerEpoch.errno
    await newer.produce(topic, version=version)
    result = await producer.try_produce(topic, producer.batch(), version=version)
    assert result.error_code == InvalidProducerEpoch.errno


@pytest.mark.parametrize("version", [BEFORE_ADDING, PRODUCE_THAT_ADDS])
async def test_records_of_an_unknown_producer_are_refused(
    client: RawClient, topic: str, version: int
) -> None:
    producer = Producer(client)
    producer.take(123_456_789_012, 0)
    result = await producer.try_produce(topic, producer.batch(), version=version)
    assert result.error_code == InvalidProducerIdMapping.errno


async def test_transactional_records_need_the_transactional_id(
    producer: Producer, topic: str
) -> None:
    await producer.add(topic)
    result = await producer.try_produce(topic, producer.batch(), has_id=False)
    assert result.error_code == TransactionalIdAuthorizationFailed.errno


async def test_records_outside_of_the_open_transaction_are_refused(
    producer: Producer, topic: str
) -> None:
    await producer.add(topic)
    await producer.produce(topic)
    plain = producer.batch(sequence=1, is_transactional=False)
    assert (await producer.try_produce(topic, plain)).error_code == InvalidTxnState.errno
    await producer.end(commit=True)
    await producer.until_state("CompleteCommit")
    assert (await producer.try_produce(topic, plain)).error_code == OK


async def test_request_with_records_of_two_producers_is_refused(
    client: RawClient, producer: Producer, topic: str
) -> None:
    other = await Producer(client).init()
    request = ProduceRequest(
        transactional_id=producer.transactional_id,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[
            TopicProduceData(
                name=topic,
                partition_data=[
                    PartitionProduceData(index=0, records=producer.batch()),
                    PartitionProduceData(index=1, records=other.batch()),
                ],
            )
        ],
    )
    answer = await client.request(request, BEFORE_ADDING)
    assert [each.error_code for each in answer.responses[0].partition_responses] == [
        InvalidProducerIdMapping.errno
    ] * 2


async def test_first_record_of_a_transaction_of_version_2_has_number_0(
    producer: Producer, topic: str
) -> None:
    late = producer.batch(sequence=3)
    result = await producer.try_produce(topic, late, version=PRODUCE_THAT_ADDS)
    assert result.error_code == OutOfOrderSequenceNumber.errno
    assert await producer.produce(topic, version=PRODUCE_THAT_ADDS) == 0


# -- reading ---------------------------------------------------------------------------------------


async def test_committed_records_end_at_the_first_open_transaction(
    client: RawClient, topic: str
) -> None:
    first, second = await Producer(client).init(), await Producer(client).init()
    for producer in (first, second):
        await producer.add(topic)
        await producer.produce(topic, 2)

    async def stable() -> tuple[int, int, int, int]:
        data = await fetch(client, topic, fetch_partition(), isolation_level=COMMITTED)
        latest = await list_offset(client, topic, LATEST, isolation_level=COMMITTED)
        by_time = await list_offset(client, topic, 0, isolation_level=COMMITTED)
        read = [h.last_offset for h, _ in iter_batches(memoryview(data.records or b""))]
        assert (data.error_code, data.last_stable_offset) == (OK, latest.offset)
        return data.high_watermark, latest.offset, by_time.offset, max(read, default=-1)

    assert await stable() == (4, 0, -1, -1)
    await first.end(commit=True)
    await first.until_state("CompleteCommit")
    assert await stable() == (5, 2, 0, 1)
    await second.end(commit=False)
    await second.until_state("CompleteAbort")
    assert await stable() == (6, 6, 0, 5)
    everything = await fetch(client, topic, fetch_partition())
    assert everything.aborted_transactions is None


async def test_offset_behind_the_stable_one_can_be_asked_for(
    client: RawClient, producer: Producer, topic: str
) -> None:
    await producer.add(topic)
    await producer.produce(topic, 3)
    for offset in (0, 1, 3):
        data = await fetch(client, topic, fetch_partition(offset=offset), isolation_level=COMMITTED)
        assert (data.error_code, data.records or b"") == (OK, b"")


async def test_aborted_transactions_are_told_with_their_records(
    client: RawClient, producer: Producer, topic: str
) -> None:
    for commit in (True, False, True, False):
        await producer.add(topic)
        await producer.produce(topic)
        await producer.end(commit=commit)
    await producer.until_state("CompleteAbort")

    async def aborted(offset: int) -> list[int]:
        data = await fetch(client, topic, fetch_partition(offset=offset), isolation_level=COMMITTED)
        assert data.aborted_transactions is not None
        assert {a.producer_id for a in data.aborted_transactions} <= {producer.producer_id}
        return [a.first_offset for a in data.aborted_transactions]

    assert [await aborted(offset) for offset in (0, 3, 4, 8)] == [[2, 6], [2, 6], [6], []]


async def test_long_poll_for_committed_records_ends_with_the_transaction(
    cluster: KafkaHandle, producer: Producer, topic: str
) -> None:
    await producer.add(topic)
    await producer.produce(topic)
    async with cluster.raw() as reader:
        poll = asyncio.ensure_future(
            fetch(reader, topic, fetch_partition(), max_wait_ms=30_000, isolation_level=COMMITTED)
        )
        await asyncio.sleep(0)
        await producer.describe()  # a round trip later the poll is there
        await producer.end(commit=True)
        data = await asyncio.wait_for(poll, 15)
    kinds = [header.is_control for header, _ in iter_batches(memoryview(data.records or b""))]
    assert kinds[:1] == [False]


async def test_markers_are_control_batches_with_the_coordinators_epoch(
    client: RawClient, producer: Producer, topic: str
) -> None:
    for commit, version in ((True, VERSION_1), (False, VERSION_2)):
        await producer.add(topic)
        await producer.produce(topic)
        await producer.end(commit=commit, version=version)
    await producer.until_state("CompleteAbort")
    data = await fetch(client, topic, fetch_partition())
    batches = list(iter_batches(memoryview(data.records or b"")))
    markers = [(header, bytes(batch)) for header, batch in batches if header.is_control]
    assert [header.is_control for header, _ in batches] == [False, True] * 2
    for header, _ in markers:
        assert (header.is_transactional, header.base_sequence, header.count) == (True, -1, 1)
        assert header.producer_id == producer.producer_id
    # Version 2 ends a transaction with the next epoch.
    assert [header.producer_epoch for header, _ in markers] == [0, 1]
    # Key: version 0, 1 commits and 0 aborts; value: version 0, the coordinator's epoch.
    record = re.compile(rb"\x00\x00\x00\x08\x00\x00\x00(.)\x0c\x00\x00(....)\x00$", re.DOTALL)
    found = [record.search(batch) for _, batch in markers]
    assert [match and match[1] for match in found] == [b"\x01", b"\x00"]


# -- administration --------------------------------------------------------------------------------


async def test_transaction_is_described_through_its_life(
    client: RawClient, producer: Producer, topic: str
) -> None:
    states = [await producer.describe()]
    await producer.add(topic)
    states.append(await producer.describe())
    await producer.end(commit=True)
    states.append(await producer.until_state("CompleteCommit"))
    assert [state.transaction_state for state in states] == ["Empty", "Ongoing", "CompleteCommit"]
    assert [len(state.topics) for state in states] == [0, 1, 0]
    assert [state.transaction_start_time_ms > 0 for state in states] == [False, True, True]
    for state in states:
        assert (state.error_code, state.transaction_timeout_ms) == (OK, 60_000)
        assert (state.producer_id, state.producer_epoch) == (producer.producer_id, producer.epoch)
    unknown = await client.request(DescribeTransactionsRequest(transactional_ids=["", "nobody's"]))
    assert [state.error_code for state in unknown.transaction_states] == [
        InvalidRequestError.errno,
        TransactionalIdNotFoundError.errno,
    ]


async def test_transactions_are_listed_by_filters(
    client: RawClient, producer: Producer, topic: str
) -> None:
    await producer.add(topic)
    mine = producer.transactional_id

    async def listed(**filters: object) -> list[str]:
        request = ListTransactionsRequest()
        for name, value in filters.items():
            setattr(request, name, value)
        answer = await client.request(request)
        assert answer.error_code == OK
        return [state.transactional_id for state in answer.transaction_states]

    assert mine in await listed()
    assert mine in await listed(state_filters=["Ongoing"])
    await asyncio.sleep(0.01)  # it has run for longer than nothing, by a clock of milliseconds
    assert mine in await listed(duration_filter=0)
    assert mine not in await listed(state_filters=["Empty"])
    assert mine not in await listed(duration_filter=600_000)
    assert await listed(producer_id_filters=[producer.producer_id]) == [mine]
    assert await listed(transactional_id_pattern=re.escape(mine)) == [mine]
    assert await listed(transactional_id_pattern=re.escape(mine[:-1])) == []
    request = ListTransactionsRequest(state_filters=["Ongoing", "Nonsense"])
    assert (await client.request(request)).unknown_state_filters == ["Nonsense"]
    refused = await client.request(ListTransactionsRequest(transactional_id_pattern="("))
    assert refused.error_code == InvalidRegularExpressionError.errno


async def test_producers_of_a_partition_are_described(
    client: RawClient, producer: Producer, topic: str
) -> None:
    assert (await describe_producers(client, topic)).active_producers == []
    await producer.add(topic)
    await producer.produce(topic, 3)
    (open_one,) = (await describe_producers(client, topic)).active_producers
    await producer.end(commit=True)
    await producer.until_state("CompleteCommit")
    (ended,) = (await describe_producers(client, topic)).active_producers
    assert (open_one.producer_id, open_one.producer_epoch) == (producer.producer_id, 0)
    assert (open_one.last_sequence, open_one.current_txn_start_offset) == (2, 0)
    assert (open_one.coordinator_epoch, ended.coordinator_epoch >= 0) == (-1, True)
    assert (ended.last_sequence, ended.current_txn_start_offset) == (2, -1)
    beyond = await describe_producers(client, topic, 7)
    assert beyond.error_code == UnknownTopicOrPartitionError.errno


async def test_administrator_ends_a_transaction_by_a_marker(
    client: RawClient, producer: Producer, topic: str
) -> None:
    # The first one's id may be 0, the default of the response.
    producer = await Producer(client).init()
    await producer.init()
    await producer.add(topic)
    await producer.produce(topic)

    async def write(epoch: int, partition: int = 0) -> int:
        marker = WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=epoch,
            transaction_result=False,
            topics=[TopicRequest(name=topic, partition_indexes=[partition])],
            coordinator_epoch=0,
        )
        (answer,) = (await client.request(WriteTxnMarkersRequest(markers=[marker]))).markers
        assert answer.producer_id == producer.producer_id
        return answer.topics[0].partitions[0].error_code

    assert await write(producer.epoch, 7) == UnknownTopicOrPartitionError.errno
    assert await write(producer.epoch - 1) == InvalidProducerEpoch.errno
    assert (await list_offset(client, topic, LATEST, isolation_level=COMMITTED)).offset == 0
    assert await write(producer.epoch) == OK
    assert (await list_offset(client, topic, LATEST, isolation_level=COMMITTED)).offset == 2


async def test_transaction_that_takes_too_long_is_aborted(
    cluster: KafkaHandle, client: RawClient, topic: str
) -> None:
    if cluster.kind == "real":
        pytest.skip("Kafka looks for such transactions every 10 s")
    producer = await Producer(client, timeout_ms=50).init()
    await producer.add(topic)
    await producer.produce(topic)
    described = await producer.until_state("CompleteAbort")
    assert described.producer_epoch == producer.epoch + 1
    assert (await producer.try_end(commit=True)).error_code == ProducerFencedError.errno
    assert await producer.try_add({topic: [0]}) == [ProducerFencedError.errno]
    result = await producer.try_produce(topic, producer.batch(sequence=1))
    assert result.error_code == InvalidProducerEpoch.errno
    assert (await list_offset(client, topic, LATEST, isolation_level=COMMITTED)).offset == 2
