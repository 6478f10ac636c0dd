"""Consumers with nothing set join groups that others are in: by which protocol, and who says so."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import aiokafka
import pytest
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.roundrobin import (
    RoundRobinPartitionAssignor as TheirRoundRobin,
)
from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)

from aiokafka_lite.broker import Broker
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import (
    BrokerResponseError,
    GroupIdNotFound,
    IncompatibleBrokerVersion,
    InconsistentGroupProtocolError,
    UnsupportedVersionError,
)
from aiokafka_lite.events import GroupProtocolChanged
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.events import events_so_far
from tests.support.protocols import classic_only, offering
from tests.support.real_kafka import KafkaUnavailableError, RealKafka
from tests.support.required import unavailable
from tests.support.waiting import until

PARTITIONS: Final = 4
# Policies by which a group that has members does not go over to the consumer protocol.
STAYS_CLASSIC: Final = ("disabled", "downgrade")
JOINED_CLASSIC: Final = "is joined with the classic protocol"


class WithData(TheirRoundRobin):  # type: ignore[misc] # it has no types
    """Gives members data beside partitions: Kafka has no place for that in the other protocol."""

    @classmethod
    def assign(
        cls, cluster: ClusterMetadata, members: Mapping[str, ConsumerProtocolMemberMetadata]
    ) -> dict[str, ConsumerProtocolMemberAssignment]:
        return {
            member_id: ConsumerProtocolMemberAssignment(share.version, share.assignment, b"data")
            for member_id, share in super().assign(cluster, members).items()
        }


@asynccontextmanager
async def ours(
    kafka: KafkaHandle, topic: str, group: str, **settings: object
) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer of this package, with nothing set but what is given."""
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=group,
        **settings,  # type: ignore[arg-type]
    )
    try:
        await consumer.start()
        yield consumer
    finally:
        await consumer.stop()


@asynccontextmanager
async def theirs(
    kafka: KafkaHandle, topic: str, group: str, **settings: object
) -> AsyncIterator[aiokafka.AIOKafkaConsumer]:
    """One of aiokafka's, whose only protocol is the classic one."""
    consumer = aiokafka.AIOKafkaConsumer(
        topic,
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=group,
        heartbeat_interval_ms=200,
        session_timeout_ms=6000,
        **settings,
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


def share(we: AIOKafkaConsumer, they: aiokafka.AIOKafkaConsumer) -> bool:
    """Whether each has half of the partitions."""
    ours, their = we.assignment(), {TopicPartition(*tp) for tp in they.assignment()}
    return len(ours) == len(their) == PARTITIONS // 2 and not ours & their


async def check_that_it_joins_as_classic(
    kafka: KafkaHandle, caplog: pytest.LogCaptureFixture, **their_settings: object
) -> None:
    """See a consumer with nothing set join the live group of aiokafka's as one of the same kind."""
    topic, group = await kafka.create_topic(partitions=PARTITIONS), unique("g")
    async with theirs(kafka, topic, group, **their_settings) as they:
        await until(lambda: len(they.assignment()) == PARTITIONS)
        caplog.clear()
        with caplog.at_level(logging.INFO, "aiokafka_lite"):
            consumer = AIOKafkaConsumer(
                topic, bootstrap_servers=kafka.bootstrap_servers, group_id=group
            )
            events = consumer.events()
            async with consumer as we:
                await until(lambda: share(we, they))
                assert we.metrics()["group_protocol"] == "classic"
                (changed,) = [
                    each for each in events_so_far(events) if isinstance(each, GroupProtocolChanged)
                ]
                await until(lambda: we.health().verdict == "ok")
                (reason,) = we.health().reasons
                assert (
                    f"group {group} {JOINED_CLASSIC}, because some of its members use this"
                    in reason
                )
                assert changed.reason in reason
        (line,) = [each for each in caplog.messages if JOINED_CLASSIC in each]
        assert line == (
            f"group {group} {JOINED_CLASSIC}, because KIP-848 cannot be used: {changed.reason}"
        )
        await until(lambda: len(they.assignment()) == PARTITIONS)


@pytest.mark.parametrize("policy", STAYS_CLASSIC)
async def test_a_live_group_that_may_not_change_is_joined_as_it_is(
    policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Broker(group_consumer_migration_policy=policy) as broker:
        await check_that_it_joins_as_classic(
            KafkaHandle("embedded", broker.bootstrap_servers), caplog
        )
        assert len(broker.requests.of("ConsumerGroupHeartbeat")) == 1  # asked once, not in a loop
        assert any("online upgrade is disabled" in each for each in caplog.messages)


async def test_a_live_group_whose_assignor_gives_data_is_joined_as_it_is(
    kafka: KafkaHandle, caplog: pytest.LogCaptureFixture
) -> None:
    await check_that_it_joins_as_classic(kafka, caplog, partition_assignment_strategy=(WithData,))


@pytest.fixture(scope="module", params=STAYS_CLASSIC)
def stubborn_kafka(request: pytest.FixtureRequest) -> Iterator[KafkaHandle]:
    """A real node whose groups keep their protocol while they have members."""
    try:
        kafka = RealKafka(properties={"group.consumer.migration.policy": request.param})
    except KafkaUnavailableError as error:
        unavailable(error)
    with kafka:
        yield KafkaHandle("real", kafka.bootstrap_servers)


@pytest.mark.slow
@pytest.mark.real_kafka
async def test_a_live_group_of_kafkas_that_may_not_change_is_joined_as_it_is(
    stubborn_kafka: KafkaHandle, caplog: pytest.LogCaptureFixture
) -> None:
    await check_that_it_joins_as_classic(stubborn_kafka, caplog)


async def test_the_first_member_of_a_group_is_one_of_the_consumer_protocol(
    kafka: KafkaHandle,
) -> None:
    topic, group = await kafka.create_topic(partitions=PARTITIONS), unique("g")
    async with ours(kafka, topic, group) as we:
        assert we.metrics()["group_protocol"] == "consumer"
        assert len(we.assignment()) == PARTITIONS


async def test_a_live_classic_group_changes_when_we_join_and_back_when_we_leave(
    kafka: KafkaHandle,
) -> None:
    topic, group = await kafka.create_topic(partitions=PARTITIONS), unique("g")
    async with theirs(kafka, topic, group) as they:
        await until(lambda: len(they.assignment()) == PARTITIONS)
        for _ in range(2):
            async with ours(kafka, topic, group) as we:
                await until(lambda we=we: share(we, they))  # type: ignore[misc]
                assert we.metrics()["group_protocol"] == "consumer"
                assert not we.health().reasons
            await until(lambda: len(they.assignment()) == PARTITIONS)


@pytest.mark.parametrize("who_is_first", ["we", "they"])
async def test_where_there_is_only_the_classic_protocol_both_share_a_group(
    who_is_first: str,
) -> None:
    async with Broker() as broker, AsyncExitStack() as stack:
        broker.on("ApiVersions").answer(classic_only, times=None)
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        topic = await kafka.create_topic(partitions=PARTITIONS)
        if who_is_first == "they":
            they = await stack.enter_async_context(theirs(kafka, topic, "g"))
        we = await stack.enter_async_context(ours(kafka, topic, "g", heartbeat_interval_ms=200))
        if who_is_first == "we":
            they = await stack.enter_async_context(theirs(kafka, topic, "g"))
        await until(lambda: share(we, they))
        assert we.metrics()["group_protocol"] == "classic"
        # As on all such brokers: nothing to tell of.
        await until(lambda: we.health().verdict == "ok")
        assert not we.health().reasons


@pytest.mark.parametrize("group_protocol", ["auto", "consumer"])
async def test_where_metadata_have_no_topic_ids_there_is_only_the_classic_protocol(
    group_protocol: str,
) -> None:
    """Assignments by KIP-848 name topics by their ids: nobody could tell which they are."""
    async with Broker() as broker:
        broker.on("ApiVersions").answer(offering(Metadata=9, Fetch=12), times=None)
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        topic = await kafka.create_topic()
        we = ours(kafka, topic, "g", group_protocol=group_protocol)
        if group_protocol == "auto":
            async with we as consumer:
                await until(lambda: len(consumer.assignment()) == 1)
        else:
            with pytest.raises(IncompatibleBrokerVersion, match="have no topic ids"):
                async with we:
                    pass


async def test_an_old_client_that_joins_a_group_of_ours_is_served(kafka: KafkaHandle) -> None:
    topic, group = await kafka.create_topic(partitions=PARTITIONS), unique("g")
    async with ours(kafka, topic, group) as we:
        async with theirs(kafka, topic, group) as they:
            await until(lambda: share(we, they))
            assert we.metrics()["group_protocol"] == "consumer"
        await until(lambda: len(we.assignment()) == PARTITIONS)


async def test_a_group_of_ours_that_may_not_change_refuses_classic_members_with_the_reason() -> (
    None
):
    async with Broker(group_consumer_migration_policy="disabled") as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        topic = await kafka.create_topic(partitions=PARTITIONS)
        async with ours(kafka, topic, "g") as we:
            with pytest.raises(InconsistentGroupProtocolError):
                async with ours(kafka, topic, "g", group_protocol="classic"):
                    pass
            assert len(we.assignment()) == PARTITIONS


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (UnsupportedVersionError, "because the broker does not offer this protocol"),
        (IncompatibleBrokerVersion, "because the broker does not offer this protocol"),
        (GroupIdNotFound, "group g has members that use the classic protocol, and the broker"),
    ],
)
async def test_a_refusal_is_one_line_with_what_to_do(
    kind: type[BrokerResponseError], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Broker() as broker:
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        topic = await kafka.create_topic()
        if kind is IncompatibleBrokerVersion:
            broker.on("ApiVersions").answer(classic_only, times=None)
        else:
            broker.on("ConsumerGroupHeartbeat").fail(kind, times=None)
        with caplog.at_level(logging.INFO, "aiokafka_lite"), pytest.raises(kind) as caught:
            async with ours(kafka, topic, "g", group_protocol="consumer"):
                pass
        assert reason in str(caught.value)
        assert 'Use group_protocol="auto"' in str(caught.value)
        # Nothing else is said of it, as by a goodbye that would be refused as well.
        said = [each for each in caplog.records if each.levelno >= logging.WARNING]
        assert [each.getMessage() for each in said] == [str(caught.value)]
