"""Changes between two steps of a large request, and the number of its steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from types import SimpleNamespace
from typing import cast

import pytest

from aiokafka_lite.broker import Broker, slices
from aiokafka_lite.broker.handlers.base import RequestContext
from aiokafka_lite.broker.handlers.cluster import describe_topic_partitions, metadata
from aiokafka_lite.broker.handlers.groups import (
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    txn_offset_commit,
)
from aiokafka_lite.broker.handlers.security import alter_user_scram_credentials
from aiokafka_lite.broker.handlers.transactions import list_transactions
from aiokafka_lite.broker.network.processor import Processor
from aiokafka_lite.errors import (
    CoordinatorLoadInProgressError,
    NotCoordinatorError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.cluster import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from aiokafka_lite.protocol.messages.groups import ListGroupsRequest, ListGroupsResponse
from aiokafka_lite.protocol.messages.list_transactions import ListTransactionsRequest
from aiokafka_lite.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from aiokafka_lite.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from aiokafka_lite.protocol.messages.sasl import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from aiokafka_lite.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from aiokafka_lite.protocol.source import Steps, run_to_end
from aiokafka_lite.sasl.scram import ScramMechanism, credential
from aiokafka_lite.structs import TopicPartition

GROUPS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
WIDE = range(250)
NOT_COORDINATOR = NotCoordinatorError.errno


@pytest.fixture(autouse=True)
def is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every slice be over at once."""
    monkeypatch.setattr(slices, "TIME_SLICE_S", 0.0)


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(nodes=2) as broker:
        broker.create_topic("wide", partitions=len(WIDE))
        await broker.open_internal_topic(GROUPS)
        yield broker
        assert broker.failure is None


def context(broker: Broker, version: int, node_id: int) -> RequestContext:
    connection = cast("Processor", SimpleNamespace(listener_name="PLAINTEXT", peer_host="/::1"))
    return RequestContext(broker, broker.nodes[node_id], version, "raw", connection)


def steps_of(given: object) -> Steps[object]:
    return cast("Generator[None, None, object]", given)


def commit_request() -> OffsetCommitRequest:
    partitions = [OffsetCommitRequestPartition(partition_index=n, committed_offset=7) for n in WIDE]
    topic = OffsetCommitRequestTopic(name="wide", partitions=partitions)
    return OffsetCommitRequest(group_id="g", topics=[topic])


def move(broker: Broker) -> None:
    broker.move_coordinator("g")


async def stop(broker: Broker) -> None:
    await broker.stop_node(broker.coordinator_of("g"))


def delete_groups(broker: Broker) -> None:
    broker.delete_topic(GROUPS)


def delete_wide(broker: Broker) -> None:
    broker.delete_topic("wide")


@pytest.mark.parametrize("change", [move, stop, delete_groups])
async def test_offsets_are_fetched_from_the_coordinator_of_this_moment(
    broker: Broker, change: Callable[[Broker], Awaitable[None] | None]
) -> None:
    at = broker.coordinator_of("g")
    run_to_end(steps_of(offset_commit(context(broker, 9, at), commit_request())))
    topic_id = broker.topics["wide"].topic_id
    wanted = OffsetFetchRequestTopics(name="wide", topic_id=topic_id, partition_indexes=[*WIDE])
    begun = []
    # Two steps end before the coordinator is checked, three after it, four after the first offsets.
    for version, is_stable, topics, step_counts in (
        (1, False, [wanted], (2, 3)),
        (9, False, [wanted], (2, 3, 4)),
        (9, True, [wanted], (2, 3, 4)),
        (10, False, [wanted], (2, 3, 4)),
        (9, False, None, (1, 2)),
    ):
        groups = [OffsetFetchRequestGroup(group_id="g", topics=each) for each in ([], topics)]
        request = OffsetFetchRequest(groups=groups, require_stable=is_stable)
        for count in step_counts:
            steps = steps_of(offset_fetch(context(broker, version, at), request))
            for _ in range(count):
                next(steps)
            begun.append((version, steps))
    changed = change(broker)
    if changed is not None:
        await changed
    for version, steps in begun:
        answer = cast("OffsetFetchResponse", run_to_end(steps))
        _, group = answer.groups
        found = [part for topic in group.topics for part in topic.partitions]
        assert group.error_code == NOT_COORDINATOR
        assert [part.error_code for part in found] == ([NOT_COORDINATOR] * len(WIDE))[
            : 0 if version > 1 else None
        ]


async def test_offsets_of_a_topic_that_is_deleted_between_steps_are_refused(
    broker: Broker,
) -> None:
    at = broker.coordinator_of("g")
    ctx = context(broker, 10, at)
    topic_id = broker.topics["wide"].topic_id
    wanted = OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[*WIDE])
    groups = [OffsetFetchRequestGroup(group_id="g", topics=[wanted])]
    run_to_end(steps_of(offset_commit(context(broker, 9, at), commit_request())))
    steps = steps_of(offset_fetch(ctx, OffsetFetchRequest(groups=groups)))
    for _ in range(3):
        next(steps)
    broker.delete_topic("wide")
    (group,) = cast("OffsetFetchResponse", run_to_end(steps)).groups
    (topic,) = group.topics
    assert [(part.committed_offset, part.error_code) for part in topic.partitions] == [
        (7, 0) if n < 100 else (-1, UnknownTopicIdError.errno) for n in WIDE
    ]


@pytest.mark.parametrize("is_transactional", [False, True])
async def test_offsets_of_a_topic_that_is_deleted_between_steps_are_not_committed(
    broker: Broker, is_transactional: bool
) -> None:
    ctx = context(broker, 5 if is_transactional else 9, broker.coordinator_of("g"))
    steps = steps_of(offset_commit(ctx, commit_request()))
    if is_transactional:
        await broker.open_internal_topic(TRANSACTIONS)
        coordinator = broker.nodes[broker.catalog.coordinator_of(TRANSACTIONS, "p")].transactions
        begun = await coordinator.init_producer("p", 60_000, None)
        partitions = [
            TxnOffsetCommitRequestPartition(partition_index=n, committed_offset=7) for n in WIDE
        ]
        request = TxnOffsetCommitRequest(
            transactional_id="p",
            group_id="g",
            producer_id=begun.producer.producer_id,
            producer_epoch=begun.producer.epoch,
            topics=[TxnOffsetCommitRequestTopic(name="wide", partitions=partitions)],
        )
        steps = steps_of(txn_offset_commit(ctx, request))
    for _ in range(2):  # the topic, and its first hundred partitions
        next(steps)
    broker.delete_topic("wide")
    answer = cast("OffsetCommitResponse | TxnOffsetCommitResponse", run_to_end(steps))
    (topic,) = answer.topics
    assert [part.error_code for part in topic.partitions] == [
        0 if n < 100 else UnknownTopicOrPartitionError.errno for n in WIDE
    ]
    assert broker.committed("g") == {}
    offsets = ctx.groups.offsets
    assert not any(offsets.is_unstable("g", TopicPartition("wide", n)) for n in WIDE)


async def test_topics_without_partitions_take_steps_too(broker: Broker) -> None:
    ctx = context(broker, 9, broker.coordinator_of("g"))
    fetched = OffsetFetchRequestGroup(
        group_id="g", topics=[OffsetFetchRequestTopics(name="t")] * 300
    )
    run_to_end(steps_of(offset_commit(ctx, commit_request())))
    for steps in (
        offset_fetch(ctx, OffsetFetchRequest(groups=[fetched])),
        offset_commit(ctx, OffsetCommitRequest(topics=[OffsetCommitRequestTopic()] * 300)),
        offset_delete(
            ctx, OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic()] * 300)
        ),
    ):
        assert sum(1 for _ in steps_of(steps)) >= 300


async def test_lists_of_a_coordinator_that_begins_to_load_are_refused() -> None:
    for handle, request in (
        (list_groups, ListGroupsRequest(states_filter=["empty"])),
        (list_transactions, ListTransactionsRequest(state_filters=["EMPTY"])),
    ):
        coordinator = SimpleNamespace(is_loading=False, groups={}, transactions={})
        ctx = SimpleNamespace(groups=coordinator, transactions=coordinator)
        given = cast("Callable[[object, object], Awaitable[ListGroupsResponse]]", handle)
        listing = asyncio.ensure_future(given(ctx, request))
        await asyncio.sleep(0)
        coordinator.is_loading = True
        assert (await listing).error_code == CoordinatorLoadInProgressError.errno


async def test_topic_is_created_on_the_disk_whatever_is_deleted_meanwhile(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[str] = []

    async def settle() -> None:
        settled.append("settled")

    monkeypatch.setattr(broker.disk, "settled", settle)
    request = MetadataRequest(topics=[MetadataRequestTopic(name="new")])
    answer = asyncio.ensure_future(
        cast("Awaitable[object]", metadata(context(broker, 9, 1), request))
    )
    await asyncio.sleep(0)
    broker.delete_topic("wide")
    await answer
    assert "new" in broker.topics
    assert settled


async def test_topic_that_is_deleted_between_steps_is_not_described(broker: Broker) -> None:
    given = describe_topic_partitions(context(broker, 0, 1), DescribeTopicPartitionsRequest())
    answer = asyncio.ensure_future(cast("Awaitable[DescribeTopicPartitionsResponse]", given))
    for _ in range(3):  # the names are sorted then
        await asyncio.sleep(0)
    broker.delete_topic("wide")
    assert [topic.name for topic in (await answer).topics] == [GROUPS]


async def test_credentials_may_be_deleted_by_two_at_a_time(broker: Broker) -> None:
    mechanism = ScramMechanism.SHA_256
    broker.security.credentials.put("u", mechanism, credential(mechanism, b"p", b"s", 4_096))
    deletion = ScramCredentialDeletion(name="u", mechanism=mechanism.code)
    request = AlterUserScramCredentialsRequest(deletions=[deletion])
    answers = [
        cast("Awaitable[object]", alter_user_scram_credentials(context(broker, 0, 1), request))
        for _ in range(2)
    ]
    await asyncio.gather(*answers)
    assert broker.security.credentials.mechanisms_of("u") == {}
