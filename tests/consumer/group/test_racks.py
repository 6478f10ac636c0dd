"""Members in racks (KIP-881), through rebalances of groups of every protocol and assignor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from aiokafka_lite.broker import Broker
from aiokafka_lite.client.view import ClusterView, Node, PartitionView, TopicView
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.assignment.assignment import have_changed, known_of
from aiokafka_lite.consumer.assignors import (
    AbstractPartitionAssignor,
    ConsumerProtocolMemberMetadata,
    RangePartitionAssignor,
    RoundRobinPartitionAssignor,
)
from aiokafka_lite.consumer.assignors.cooperative_sticky import CooperativeStickyPartitionAssignor
from aiokafka_lite.consumer.assignors.sticky import StickyPartitionAssignor
from aiokafka_lite.consumer.membership.classic.rebalance import do_racks_count
from aiokafka_lite.errors import LeaderNotAvailableError, UnknownTopicOrPartitionError
from aiokafka_lite.protocol.codec import decode_versioned
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerProtocolSubscription,
    JoinGroupRequest,
)
from aiokafka_lite.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from aiokafka_lite.structs import TopicPartition
from tests.support import inside
from tests.support.cluster import KafkaHandle, unique
from tests.support.epoch_groups import requests_of
from tests.support.for_each import for_each
from tests.support.java import JavaTools
from tests.support.java_member import JavaMember
from tests.support.reading import consumer_of
from tests.support.real_kafka import KafkaUnavailableError, RealKafka
from tests.support.required import unavailable
from tests.support.waiting import PATIENCE_S, until

RACKS: Final = ("rack1", "rack2", "rack3")
COUNT: Final = 12
ASSIGNORS: Final = (
    RangePartitionAssignor,
    StickyPartitionAssignor,
    CooperativeStickyPartitionAssignor,
)


@pytest.fixture(scope="module")
def three_racks() -> Iterator[str]:
    """A real Kafka of three nodes in three racks."""
    try:
        cluster = RealKafka(nodes=3)
    except KafkaUnavailableError as error:
        unavailable(error)
    with cluster:
        yield cluster.bootstrap_servers


@pytest.fixture(
    params=["embedded", pytest.param("real", marks=[pytest.mark.slow, pytest.mark.real_kafka])]
)
async def racks(request: pytest.FixtureRequest) -> AsyncIterator[KafkaHandle]:
    """Three nodes in three racks."""
    if request.param == "real":
        yield KafkaHandle("real", request.getfixturevalue("three_racks"))
    else:
        async with Broker(nodes=3, racks=RACKS) as broker:
            yield KafkaHandle("embedded", broker.bootstrap_servers)


async def spread_topic(kafka: KafkaHandle) -> str:
    """A topic whose partition n is on the node n % 3 + 1 alone."""
    name = unique("topic")
    topic = CreatableTopic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            CreatableReplicaAssignment(partition_index=n, broker_ids=[n % 3 + 1])
            for n in range(COUNT)
        ],
    )
    async with kafka.raw() as client:
        (result,) = (
            await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        ).topics
    assert result.error_code == 0, result.error_message
    return name


def member(
    kafka: KafkaHandle, topic: str, group: str, assignor: type[AbstractPartitionAssignor], rack: str
) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        topic,
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=group,
        group_protocol="classic",
        partition_assignment_strategy=(assignor,),
        client_rack=rack,
        heartbeat_interval_ms=100,
        retry_backoff_ms=20,
    )


@asynccontextmanager
async def members(
    kafka: KafkaHandle, assignor: type[AbstractPartitionAssignor]
) -> AsyncIterator[dict[str, AIOKafkaConsumer]]:
    """One member for each rack; none is started."""
    topic, group = await spread_topic(kafka), unique("g")
    made = {rack: member(kafka, topic, group, assignor, rack) for rack in RACKS}
    try:
        yield made
    finally:
        await asyncio.gather(*(each.stop() for each in made.values()))


def place(group: dict[str, AIOKafkaConsumer], racks: dict[int, str]) -> None:
    """Let all members believe that nodes are in these racks."""
    for member in group.values():
        view = inside.cluster(member).view
        nodes = {
            id: node._replace(rack=racks[id]) for id, node in view.nodes.items() if id in racks
        }
        inside.show_metadata(member, view._replace(nodes=nodes))


def near(members: dict[str, AIOKafkaConsumer]) -> int:
    """How many partitions are on the node in their owner's rack."""
    return sum(
        RACKS[tp.partition % 3] == rack
        for rack, member in members.items()
        for tp in member.assignment()
    )


def near_to(rack: str) -> set[int]:
    """The partitions that are on the node in a rack."""
    return {number for number in range(COUNT) if RACKS[number % 3] == rack}


def sizes(members: dict[str, AIOKafkaConsumer]) -> list[int]:
    return [len(member.assignment()) for member in members.values()]


@pytest.mark.parametrize("assignor", ASSIGNORS)
async def test_each_rebalance_leaves_members_with_what_is_near_them(
    racks: KafkaHandle, assignor: type[AbstractPartitionAssignor]
) -> None:
    async with members(racks, assignor) as group:
        one, two, three = RACKS
        for started, wanted in (([one], [12]), ([one, two], [6, 6]), ([one, two, three], [4] * 3)):
            await asyncio.wait_for(group[started[-1]].start(), PATIENCE_S)
            present = {rack: group[rack] for rack in started}
            await until(lambda: sizes(present) == wanted and near(present) == 4 * len(present))  # noqa: B023
        # And back: what it gives up is far from everybody, and is shared evenly.
        await group.pop(two).stop()
        await until(lambda: sizes(group) == [6, 6])
        assert near(group) == 8


@pytest.mark.slow
@pytest.mark.parametrize("leader", ["rack1", "rack2"])
@pytest.mark.parametrize(
    ("assignor", "javas"),
    [
        (RangePartitionAssignor, "RangeAssignor"),
        (StickyPartitionAssignor, "StickyAssignor"),
        (CooperativeStickyPartitionAssignor, "CooperativeStickyAssignor"),
    ],
)
async def test_a_member_of_javas_client_has_what_is_near_it_too(
    racks: KafkaHandle,
    java_tools: JavaTools,
    tmp_path: Path,
    assignor: type[AbstractPartitionAssignor],
    javas: str,
    leader: str,
) -> None:
    """It is in the second rack, and two of ours in the others; whoever starts first leads."""
    config = tmp_path / "consumer.properties"
    config.write_text("client.rack=rack2\nheartbeat.interval.ms=200\n")
    topic, name = await spread_topic(racks), unique("g")
    group: dict[str, AIOKafkaConsumer | JavaMember] = {
        rack: member(racks, topic, name, assignor, rack) for rack in ("rack1", "rack3")
    }
    group["rack2"] = JavaMember(
        java_tools, racks.bootstrap_servers, topic, name,
        "--assignment-strategy", f"org.apache.kafka.clients.consumer.{javas}",
        "--session-timeout", "6000", "--command-config", str(config),
    )  # fmt: skip

    def has(rack: str) -> set[int]:
        each = group[rack]
        return (
            each.owned
            if isinstance(each, JavaMember)
            else {tp.partition for tp in each.assignment()}
        )

    order = [leader, *(rack for rack in RACKS if rack != leader)]
    async with AsyncExitStack() as stack:
        for count, rack in enumerate(order, start=1):
            stack.push_async_callback(group[rack].stop)
            await asyncio.wait_for(group[rack].start(), PATIENCE_S)
            present = order[:count]
            await until(
                lambda present=present: all(  # type: ignore[misc]
                    len(has(each)) == COUNT // len(present) and near_to(each) <= has(each)
                    for each in present
                )
            )


@pytest.mark.parametrize("assignor", ASSIGNORS)
async def test_the_leader_shares_out_anew_when_replicas_are_elsewhere(
    assignor: type[AbstractPartitionAssignor],
) -> None:
    async with (
        Broker(nodes=3, racks=RACKS) as broker,
        members(KafkaHandle("embedded", broker.bootstrap_servers), assignor) as group,
    ):
        for member in group.values():
            await member.start()
        await until(lambda: sizes(group) == [4, 4, 4] and near(group) == COUNT)
        held = {rack: member.assignment() for rack, member in group.items()}
        one, two, three = RACKS
        place(group, {1: two, 2: one, 3: three})
        await until(lambda: group[one].assignment() == held[two])
        await until(lambda: group[two].assignment() == held[one])
        assert group[three].assignment() == held[three]


@for_each(
    [
        *((each, "r", True) for each in ASSIGNORS),
        (RangePartitionAssignor, None, False),
        (RoundRobinPartitionAssignor, "r", False),
    ]
)
def test_a_leader_watches_racks_where_a_member_is_in_one_and_the_assignor_looks(
    assignor: type[AbstractPartitionAssignor], rack: str | None, expected: bool
) -> None:
    said = ConsumerProtocolMemberMetadata(3, ["t"], b"")
    group = {"one": said, "two": said._replace(rack_id=rack)}
    assert do_racks_count(assignor(), group) is expected


def seen(racks: dict[int, str | None], *replicas: tuple[int, ...]) -> ClusterView:
    """Metadata of nodes in these racks, and of a topic with these replicas."""
    partitions = {n: PartitionView(0, replicas=each) for n, each in enumerate(replicas)}
    return ClusterView(
        nodes={id: Node(id, "host", 9092, rack) for id, rack in racks.items()},
        topics={"t": TopicView("t", partitions=partitions)},
    )


AT: Final[dict[int, str | None]] = {1: "a", 2: "b", 3: None}


@for_each(
    [
        pytest.param(seen(AT, (1, 2), (2, 3)), False, id="as before"),
        pytest.param(seen(AT, (2, 1), (3, 2)), False, id="in another order"),
        pytest.param(seen(AT, (1, 2), (1, 3)), True, id="one has moved"),
        pytest.param(seen(AT, (1, 2), (1, 2, 3)), True, id="one is on all nodes"),
        pytest.param(seen({1: "a", 2: "c", 3: None}, (1, 2), (2, 3)), True, id="a node has moved"),
        pytest.param(seen({1: "a", 3: None}, (1, 2), (2, 3)), False, id="a node is away"),
        pytest.param(seen({**AT, 2: None}, (1, 2), (2, 3)), False, id="a rack is not known"),
        pytest.param(seen({**AT, 4: "c"}, (1, 2), (2, 3)), False, id="a node is new"),
        pytest.param(seen({**AT, 4: "b"}, (1, 4), (2, 3)), False, id="moved inside its rack"),
        pytest.param(seen(AT, (1, 2)), True, id="one is gone"),
        pytest.param(ClusterView(), False, id="nothing is known"),
    ]
)
def test_what_makes_a_leader_share_out_anew(now: ClusterView, is_news: bool) -> None:
    for with_racks in (True, False):
        before = known_of(seen(AT, (1, 2), (2, 3)), ["t"], with_racks=with_racks)
        expected = is_news and (with_racks or len(now.topics["t"].partitions) == 1)
        assert have_changed(before, now) == expected, with_racks


def of_topics(*topics: TopicView) -> ClusterView:
    return ClusterView(topics={topic.name: topic for topic in topics})


def parts(name: str, count: int) -> TopicView:
    return TopicView(name, partitions={number: PartitionView(1) for number in range(count)})


@for_each(
    [
        pytest.param(of_topics(parts("t", 2), parts("u", 1)), False, id="as before"),
        pytest.param(of_topics(parts("t", 2), parts("u", 2)), True, id="one has more"),
        pytest.param(of_topics(parts("u", 1)), False, id="one is not known"),
        pytest.param(of_topics(parts("u", 2)), True, id="the other one has more"),
        pytest.param(
            of_topics(TopicView("t", error=UnknownTopicOrPartitionError), parts("u", 1)),
            True,
            id="one is deleted",
        ),
        pytest.param(
            of_topics(TopicView("t", error=LeaderNotAvailableError), parts("u", 1)),
            False,
            id="one has no leader",
        ),
    ]
)
def test_a_leader_shares_out_anew_for_the_news_of_one_topic(
    now: ClusterView, is_news: bool
) -> None:
    before = known_of(of_topics(parts("t", 2), parts("u", 1)), ["u", "t"], with_racks=False)
    assert have_changed(before, now) is is_news


def test_what_was_shared_out_without_a_node_is_shared_out_anew_with_it() -> None:
    before = known_of(seen({1: "a", 3: None}, (1, 2), (2, 3)), ["t"], with_racks=True)
    assert have_changed(before, seen(AT, (1, 2), (2, 3)))


async def test_members_say_where_they_are_and_no_rack_is_no_name() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        for rack in ("rack7", "", None):
            consumer = AIOKafkaConsumer(
                "t",
                bootstrap_servers=broker.bootstrap_servers,
                group_id=unique("g"),
                group_protocol="classic",
                client_rack=rack,
            )
            async with consumer:
                pass
            join = requests_of(broker, JoinGroupRequest)[-1]
            for protocol in join.protocols:
                assert protocol.metadata[:2] == b"\x00\x03"
                said = decode_versioned(ConsumerProtocolSubscription, protocol.metadata)
                assert said.rack_id == (rack or None)


@pytest.mark.parametrize("assignor", ASSIGNORS)
async def test_a_replica_that_is_down_for_a_while_is_no_reason_to_share_out_anew(
    assignor: type[AbstractPartitionAssignor],
) -> None:
    async with Broker(nodes=3, racks=RACKS, default_replication_factor=3) as broker:
        broker.create_topic("t", 3)

        async def metadata_and_heartbeats() -> None:
            mark = broker.requests.total
            for api in ("Metadata", "Heartbeat"):
                await until(lambda api=api: len(broker.requests.of(api, since=mark)) > 2)  # type: ignore[misc]

        consumer = consumer_of(
            broker,
            "t",
            group_id="g",
            group_protocol="classic",
            client_rack=RACKS[0],
            partition_assignment_strategy=(assignor,),
            metadata_max_age_ms=20,
            heartbeat_interval_ms=20,
        )
        async with consumer:
            busy = broker.coordinator_of("g")
            for number in range(3):
                if broker.leader_of(tp := TopicPartition("t", number)) != busy:
                    broker.move_leader(tp, busy)
            joins = len(broker.requests.of("JoinGroup"))
            await broker.stop_node(busy % 3 + 1)
            await metadata_and_heartbeats()
            await broker.start_node(busy % 3 + 1)
            await metadata_and_heartbeats()
            assert len(broker.requests.of("JoinGroup")) == joins
