"""Answers of a broker that nobody uses yet: what is checked first, when it waits, and for whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import cast

import pytest

from aiokafka_lite.broker import Broker, slices
from aiokafka_lite.broker.groups.offsets import Committer, OffsetCommitEntry
from aiokafka_lite.broker.handlers.base import HANDLERS, Delayed, RequestContext, handler
from aiokafka_lite.broker.handlers.fetch import fetch
from aiokafka_lite.broker.handlers.logs import why_refused
from aiokafka_lite.broker.handlers.transactions import add_partitions_to_txn
from aiokafka_lite.broker.network.processor import Processor
from aiokafka_lite.errors import (
    InconsistentGroupProtocolError,
    InvalidRequestError,
    NotCoordinatorForGroupError,
    RebootstrapRequiredError,
)
from aiokafka_lite.protocol.messages.fetch import FetchRequest, FetchTopic, ForgottenTopic
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerGroupHeartbeatRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    TopicPartitions,
)
from aiokafka_lite.protocol.messages.metadata import ApiVersionsRequest
from aiokafka_lite.protocol.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from aiokafka_lite.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from aiokafka_lite.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    WritableTxnMarker,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.protocol.source import ELEMENTS_PER_STEP, Steps, run_to_end
from aiokafka_lite.structs import TopicPartition
from tests.broker.wire import fetch_partition, fetch_request
from tests.support.wire import RawClient

NOT_COORDINATOR = NotCoordinatorForGroupError.errno


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker() as broker:
        yield broker
    assert broker.failure is None


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[RawClient]:
    async with RawClient(broker.bootstrap_servers) as client:
        yield client


def context(broker: Broker, version: int) -> RequestContext:
    nobody = cast("Processor", None)
    return RequestContext(broker, broker.node, version, "raw", nobody)


def taken(given: object) -> tuple[int, object]:
    """Take all steps; return how many there are before the last, and the result."""
    steps, count = cast("Steps[object]", given), 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1


# --- Work that is done in steps ----------------------------------------------------------------
N = ELEMENTS_PER_STEP


@pytest.mark.parametrize(
    ("transactions", "topics", "partitions"), [(1, 1, 20), (1, 20, 0), (20, 0, 0), (2, 3, 4)]
)
async def test_transactions_are_added_to_in_slices(
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    transactions: int,
    topics: int,
    partitions: int,
) -> None:
    """Every pass over transactions, topics and partitions lets other tasks run."""
    monkeypatch.setattr(slices, "TIME_SLICE_S", 0.0)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    transaction = AddPartitionsToTxnTransaction(
        topics=[AddPartitionsToTxnTopic(name="t", partitions=[*range(partitions)])] * topics
    )
    request = AddPartitionsToTxnRequest(transactions=[transaction] * transactions)
    counting = asyncio.create_task(count_turns())
    adding = add_partitions_to_txn(context(broker, 4), request)
    answer = await cast("Awaitable[object]", adding)
    counting.cancel()
    assert turns >= transactions * (1 + topics * (2 + 3 * partitions))
    assert isinstance(answer, AddPartitionsToTxnResponse)
    assert len(answer.results_by_transaction) == transactions


@pytest.mark.parametrize(
    ("topics", "partitions", "forgotten", "expected"),
    [
        (1, N - 1, (0, 0), 0),
        (1, N, (0, 0), 2),  # the partitions are read in steps, too
        (N - 1, 0, (0, 0), 0),
        (N, 0, (0, 0), 1),
        (0, 0, (1, N - 1), 0),
        (0, 0, (1, N), 1),
        (0, 0, (N - 1, 0), 0),
        (0, 0, (N, 0), 1),
    ],
)
async def test_partitions_are_fetched_in_steps(
    broker: Broker, topics: int, partitions: int, forgotten: tuple[int, int], expected: int
) -> None:
    parts = [fetch_partition(number) for number in range(partitions)]
    request = FetchRequest(
        session_epoch=-1,
        topics=[FetchTopic(topic=f"t{n}", partitions=parts) for n in range(topics)],
        forgotten_topics_data=[
            ForgottenTopic(topic=f"t{n}", partitions=[*range(forgotten[1])])
            for n in range(forgotten[0])
        ],
    )
    count, _ = taken(fetch(context(broker, 12), request))
    assert count == expected


async def test_whole_requests_are_looked_through_in_steps(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topics, partitions in ((2 * N, 0), (1, 2 * N)):
        data = TopicProduceData(partition_data=[PartitionProduceData()] * partitions)
        assert taken(why_refused(ProduceRequest(topic_data=[data] * topics))) == (2, None)
    request = WriteTxnMarkersRequest(
        markers=[WritableTxnMarker(producer_id=n) for n in range(2 * N)]
    )
    monkeypatch.setattr(slices, "TIME_SLICE_S", 0.0)  # or all markers are one short step
    count, answer = taken(HANDLERS[request.api_key].handle(context(broker, 1), request))
    assert count >= 2
    assert isinstance(answer, WriteTxnMarkersResponse)
    assert [marker.producer_id for marker in answer.markers] == [*range(2 * N)]


# --- Fetch ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("max_wait_ms", "offset", "min_bytes", "waits"),
    [
        (0, 1, 1, False),
        (1, 1, 1, True),
        (3_000, 1, 1, True),
        (3_000, 0, "all", False),
        (3_000, 0, "more", True),
        (3_000, 2, 1, False),  # it is out of range
    ],
)
async def test_fetch_waits_until_there_is_enough_or_its_time_is_over(
    broker: Broker, max_wait_ms: int, offset: int, min_bytes: int | str, waits: bool
) -> None:
    broker.create_topic("t")
    broker.produce("t", "value")
    size = broker.partition("t", 0).log.size
    least = {"all": size, "more": size + 1}.get(str(min_bytes), 1)
    request = fetch_request(
        {"t": [fetch_partition(offset=offset)]}, max_wait_ms=max_wait_ms, min_bytes=least
    )
    now = asyncio.get_running_loop().time()
    _, answer = taken(fetch(context(broker, 12), request))
    assert isinstance(answer, Delayed) is waits
    if isinstance(answer, Delayed):
        assert answer.deadline - now == pytest.approx(max_wait_ms / 1000, abs=0.5)
        assert not run_to_end(answer.is_ready())


# --- Features ---------------------------------------------------------------------------------
@pytest.mark.parametrize("level", [0, 2])
async def test_features_are_told_with_their_levels(level: int) -> None:
    asked = ApiVersionsRequest(client_software_name="raw", client_software_version="1.0")
    async with (
        Broker(transaction_version=level) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        old, new = [await client.request(asked, version) for version in (3, 4)]
    assert old.supported_features == []
    assert [(each.name, each.min_version, each.max_version) for each in new.supported_features] == [
        ("group.version", 0, 1),
        ("share.version", 0, 2),
        ("transaction.version", 0, 2),
    ]
    finalized = [("group.version", 1, 1), ("share.version", 2, 2), ("transaction.version", 2, 2)]
    for answer in (old, new):
        assert answer.finalized_features_epoch == 0
        assert [
            (each.name, each.min_version_level, each.max_version_level)
            for each in answer.finalized_features
        ] == finalized[: 2 if level == 0 else 3]


async def test_client_that_means_another_cluster_or_node_is_told_to_bootstrap_again(
    broker: Broker, client: RawClient
) -> None:
    for cluster_id, node_id, error in (
        (None, -1, 0),
        (broker.cluster_id, -1, 0),
        (None, 1, 0),
        (broker.cluster_id, 1, 0),
        ("another", -1, RebootstrapRequiredError.errno),
        ("another", 1, RebootstrapRequiredError.errno),
        (None, 2, RebootstrapRequiredError.errno),
        (broker.cluster_id, 2, RebootstrapRequiredError.errno),
    ):
        request = ApiVersionsRequest(
            client_software_name="raw",
            client_software_version="1.0",
            cluster_id=cluster_id,
            node_id=node_id,
        )
        assert (await client.request(request, 5)).error_code == error


def test_api_has_one_handler_for_all_its_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    beat, produce = HANDLERS[HeartbeatRequest.api_key], HANDLERS[ProduceRequest.api_key]
    with pytest.raises(ValueError, match="HeartbeatRequest already has a handler"):
        handler(HeartbeatRequest)(beat.handle)
    for entry in (beat, produce):
        monkeypatch.delitem(HANDLERS, entry.request.api_key)
    handler(HeartbeatRequest)(beat.handle)
    handler(ProduceRequest, advertised_min_version=0)(produce.handle)
    assert (HANDLERS[HeartbeatRequest.api_key], HANDLERS[ProduceRequest.api_key]) == (beat, produce)
    assert (beat.advertised_min_version, produce.advertised_min_version) == (
        beat.request.min_version,
        0,
    )


# --- Groups -----------------------------------------------------------------------------------
JOIN = {
    "group_id": "g", "member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 0,
    "subscribed_topic_names": ["t"], "topic_partitions": [],
}  # fmt: skip
OWNED = [TopicPartitions(topic_id=b"x" * 16, partitions=[0])]
OK = None


@pytest.mark.parametrize(
    ("version", "said", "message"),
    [
        (1, {}, OK),
        (1, {"member_id": " "}, "MemberId can't be empty."),
        (0, {"member_id": ""}, OK),
        (0, {"member_id": "", "member_epoch": 1}, "MemberId can't be empty."),
        (0, {"member_id": "", "member_epoch": -1}, "MemberId can't be empty."),
        (1, {"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
        (1, {"topic_partitions": None}, "TopicPartitions must be empty when (re-)joining."),
        (1, {"topic_partitions": OWNED}, "TopicPartitions must be empty when (re-)joining."),
        (1, {"member_epoch": 1, "topic_partitions": None, "rebalance_timeout_ms": -1}, OK),
        (1, {"subscribed_topic_names": None, "subscribed_topic_regex": "t"}, OK),
        (1, {"member_epoch": 1, "subscribed_topic_names": None}, OK),
        (1, {"member_epoch": -2, "instance_id": "i"}, OK),
        (1, {"rack_id": "r", "server_assignor": "range"}, OK),
        (1, {"rack_id": " "}, "RackId can't be empty."),
    ],
)
async def test_heartbeat_is_checked_before_the_coordinator_is(
    client: RawClient, version: int, said: dict[str, object], message: str | None
) -> None:
    request = ConsumerGroupHeartbeatRequest()
    for name, value in {**JOIN, **said}.items():
        setattr(request, name, value)
    answer = await client.request(request, version)
    refused = InvalidRequestError.errno
    assert answer.error_code == (NOT_COORDINATOR if message is OK else refused)
    if message is not OK:
        assert answer.error_message == message


async def test_members_that_leave_are_told_of_the_coordinator_only(client: RawClient) -> None:
    request = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="m")])
    answer = await client.request(request)
    assert (answer.error_code, answer.members) == (NOT_COORDINATOR, [])


@pytest.mark.parametrize(
    ("version", "protocol_type", "name", "error"),
    [
        (5, "consumer", None, InconsistentGroupProtocolError.errno),
        (5, None, "range", InconsistentGroupProtocolError.errno),
        (5, "consumer", "range", NOT_COORDINATOR),
        (4, None, None, NOT_COORDINATOR),
    ],
)
async def test_member_that_syncs_names_the_protocol(
    client: RawClient, version: int, protocol_type: str | None, name: str | None, error: int
) -> None:
    request = SyncGroupRequest(
        group_id="g", member_id="m", protocol_type=protocol_type, protocol_name=name
    )
    assert (await client.request(request, version)).error_code == error


@pytest.mark.parametrize("version", [1, 2, 8])
async def test_offsets_are_refused_by_partition_or_by_group(
    client: RawClient, version: int
) -> None:
    wanted = OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1])
    asked = OffsetFetchRequestGroup(group_id="g", topics=[wanted])
    answer = await client.request(OffsetFetchRequest(groups=[asked]), version)
    (group,) = answer.groups
    found = [
        (partition.partition_index, partition.committed_offset, partition.error_code)
        for topic in group.topics
        for partition in topic.partitions
    ]
    if version == 1:
        assert found == [(0, -1, NOT_COORDINATOR), (1, -1, NOT_COORDINATOR)]
    else:
        assert (group.error_code, found) == (NOT_COORDINATOR, [])


async def test_offsets_of_a_topic_without_an_id_are_told_by_name_only(
    broker: Broker, client: RawClient
) -> None:
    topic_id = broker.create_topic("t").topic_id
    await broker.open_internal_topic("__consumer_offsets")

    def commit(topic: str, offset: int, id_: bytes) -> None:
        entry = OffsetCommitEntry(TopicPartition(topic, 0), id_, offset, -1, "")
        broker.node.groups.commit("g", [entry], Committer())

    commit("gone", 5, ZERO_UUID)
    commit("t", 6, topic_id)
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])

    async def fetched(version: int) -> Sequence[tuple[str | bytes, int]]:
        (group,) = (await client.request(request, version)).groups
        return [
            (topic.name if version < 10 else topic.topic_id, topic.partitions[0].committed_offset)
            for topic in group.topics
        ]

    assert await fetched(9) == [("gone", 5), ("t", 6)]
    assert await fetched(10) == [(topic_id, 6)]
