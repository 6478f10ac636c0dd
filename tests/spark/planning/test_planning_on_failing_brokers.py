"""Planning goes on while leaders move, brokers restart and answers are late; and costs little."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from aiokafka_lite.broker import BrokerConfig
from aiokafka_lite.broker.handlers.base import Api
from aiokafka_lite.broker.refusals import Place
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.client.offsets import Offsets
from aiokafka_lite.errors import (
    BrokerResponseError,
    ClusterAuthorizationFailedError,
    InvalidTopicError,
    KafkaConnectionError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    NotLeaderForPartitionError,
    OffsetNotAvailableError,
    TopicAuthorizationFailedError,
    UnknownLeaderEpochError,
)
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from aiokafka_lite.protocol.messages.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.spark.options import Position
from aiokafka_lite.spark.planner import Planner
from aiokafka_lite.structs import TopicPartition
from tests.spark.planning.conftest import Planners

TP = TopicPartition("t", 0)
PARTITIONS = 6
NODES = 3


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    """Three nodes; the topic "t" has ten records in each of its six partitions."""
    with BrokerThread(BrokerConfig(nodes=NODES)) as thread:
        thread.create_topic("t", PARTITIONS, replication_factor=NODES)
        fill(thread, 10)
        yield thread


def fill(broker: BrokerThread, count: int) -> None:
    for partition in range(PARTITIONS):
        for _ in range(count):
            broker.produce("t", b"value", partition=partition)


def all_at(offset: int, partitions: int = PARTITIONS) -> Offsets:
    return {TopicPartition("t", partition): offset for partition in range(partitions)}


def asked(broker: BrokerThread, api: Api) -> int:
    return len(broker.requests.of(api))


def running(
    broker: BrokerThread,
    new_planner: Planners,
    *,
    request_timeout_s: float = 20.0,
    fetch_retries: int = 3,
) -> Planner:
    """The planner of a streaming query that has begun."""
    planner = new_planner(
        broker.bootstrap_servers,
        "t",
        is_streaming=True,
        request_timeout_s=request_timeout_s,
        fetch_retries=fetch_retries,
    )
    assert planner.latest() == all_at(10)
    broker.requests.clear()
    return planner


# --- What planning costs -----------------------------------------------------------------------
def test_running_query_asks_for_metadata_and_of_all_leaders_at_once(
    broker: BrokerThread, new_planner: Planners
) -> None:
    planner = running(broker, new_planner)
    with (
        ThreadPoolExecutor(1) as thread,
        broker.on(ListOffsetsRequest).hold(),
        broker.on(MetadataRequest).hold(),
    ):
        latest = thread.submit(planner.latest, all_at(10))
        # None is answered, so each was sent before an answer was waited for. What shares a
        # connection with a question that is held is behind it.
        broker.wait_until(
            lambda b: (
                len(b.requests.of(ListOffsetsRequest)) == NODES - 1
                and len(b.requests.of(MetadataRequest)) == 1
            )
        )
        assert not latest.done()
        broker.clear_faults()
        assert latest.result() == all_at(10)
    assert asked(broker, ListOffsetsRequest) == NODES
    assert asked(broker, MetadataRequest) == 1


def test_batch_asks_for_both_ends_and_times_at_once(
    broker: BrokerThread, new_planner: Planners
) -> None:
    planner = new_planner(broker.bootstrap_servers, "t", starting=Position(0, is_time=True))
    assert len(planner.batch_ranges()) == PARTITIONS
    assert asked(broker, MetadataRequest) == 1
    assert asked(broker, ListOffsetsRequest) == 3 * NODES


def test_added_partitions_are_asked_for_alone(broker: BrokerThread, new_planner: Planners) -> None:
    planner = running(broker, new_planner)
    broker.add_partitions("t", PARTITIONS + 2)
    assert planner.latest(all_at(10)) == {**all_at(0, PARTITIONS + 2), **all_at(10)}
    seen = [each.request for each in broker.requests.of(ListOffsetsRequest)]
    assert all(isinstance(request, ListOffsetsRequest) for request in seen)
    wanted = [
        partition.partition_index
        for request in seen
        if isinstance(request, ListOffsetsRequest)
        for topic in request.topics
        for partition in topic.partitions
    ]
    assert sorted(wanted) == list(range(PARTITIONS + 2))


def test_micro_batch_without_new_partitions_asks_for_nothing_more(
    broker: BrokerThread, new_planner: Planners
) -> None:
    planner = running(broker, new_planner)
    assert len(planner.stream_ranges(all_at(5), all_at(10))) == PARTITIONS
    assert asked(broker, None) == 0


# --- What passes -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "error",
    [
        NotLeaderForPartitionError,
        LeaderNotAvailableError,
        OffsetNotAvailableError,
        UnknownLeaderEpochError,
    ],
)
def test_refusal_that_passes_is_asked_again_of_that_partition(
    broker: BrokerThread, new_planner: Planners, error: type[BrokerResponseError]
) -> None:
    planner = running(broker, new_planner)
    broker.on(ListOffsetsRequest, topic="t", partition=0).fail(error, times=2)
    assert planner.latest(all_at(10)) == all_at(10)
    assert asked(broker, ListOffsetsRequest) == NODES + 2


def test_leaders_that_move_are_followed(broker: BrokerThread, new_planner: Planners) -> None:
    planner = running(broker, new_planner)
    for _ in range(3):
        moved_to = broker.move_leader(TP)
        fill(broker, 1)
        latest = planner.latest(all_at(10))
        ranges = planner.stream_ranges(all_at(10), latest)
        assert ranges[0].leader is not None
        assert ranges[0].leader.id == moved_to
    assert latest == all_at(13)


def test_node_that_stops_is_replaced_and_used_again(
    broker: BrokerThread, new_planner: Planners
) -> None:
    planner = running(broker, new_planner)
    node_id = broker.leader_of(TP)
    broker.stop_node(node_id, clean=False)
    assert planner.latest(all_at(10)) == all_at(10)
    broker.start_node(node_id)
    broker.move_leader(TP, node_id)
    fill(broker, 1)
    assert planner.latest(all_at(10)) == all_at(11)


def test_lost_connections_are_made_again(broker: BrokerThread, new_planner: Planners) -> None:
    planner = running(broker, new_planner)
    broker.on(ListOffsetsRequest).disconnect(times=2)
    broker.on(MetadataRequest).disconnect()
    assert planner.latest(all_at(10)) == all_at(10)


def test_end_below_the_known_one_is_asked_for_again(
    broker: BrokerThread, new_planner: Planners
) -> None:
    """A replica that has just become leader may not know yet what was acknowledged."""

    def stale(context: object, request: Request[Response]) -> ListOffsetsResponse:
        assert isinstance(request, ListOffsetsRequest)
        (topic,) = request.topics
        answers = [
            ListOffsetsPartitionResponse(partition_index=each.partition_index, offset=9)
            for each in topic.partitions
        ]
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=answers)])

    planner = running(broker, new_planner)
    broker.on(ListOffsetsRequest, node=broker.leader_of(TP)).answer(stale, times=2)
    assert planner.latest(all_at(10)) == all_at(10)
    assert asked(broker, ListOffsetsRequest) == 3 * NODES


def test_end_that_stays_below_the_known_one_is_returned(
    broker: BrokerThread, new_planner: Planners
) -> None:
    planner = running(broker, new_planner)
    fill(broker, 2)
    broker.truncate(TP, 11)
    assert planner.latest(all_at(12)) == {**all_at(12), TP: 11}


def test_silent_leader_is_given_up_and_asked_again(
    broker: BrokerThread, new_planner: Planners
) -> None:
    planner = running(broker, new_planner, request_timeout_s=0.5)
    broker.on(ListOffsetsRequest).silence()
    assert planner.latest(all_at(10)) == all_at(10)


# --- What does not -----------------------------------------------------------------------------
def test_partition_without_leader_fails_in_time_and_is_named(
    broker: BrokerThread, new_planner: Planners
) -> None:
    planner = running(broker, new_planner, request_timeout_s=0.5, fetch_retries=2)
    broker.on(ListOffsetsRequest, topic="t", partition=3).fail(LeaderNotAvailableError, times=None)
    with pytest.raises(KafkaTimeoutError, match=r"1 partitions .*topic t, partition 3"):
        planner.latest(all_at(10))


def test_cluster_that_is_gone_fails_with_its_addresses(new_planner: Planners) -> None:
    with BrokerThread() as broker:
        broker.create_topic("t")
        planner = new_planner(broker.bootstrap_servers, "t", request_timeout_s=0.3, fetch_retries=2)
        assert planner.partitions() == [TP]
        address = broker.bootstrap_servers
    with pytest.raises(KafkaConnectionError, match=address):
        planner.batch_ranges()


@pytest.mark.parametrize(
    ("api", "error", "at", "text"),
    [
        (ListOffsetsRequest, TopicAuthorizationFailedError, None, "topic t, partition"),
        (MetadataRequest, TopicAuthorizationFailedError, "topic", "topic t, .* option subscribe"),
        (MetadataRequest, InvalidTopicError, "topic", "topic t, .* option subscribe"),
    ],
)
def test_refusal_that_lasts_fails_at_once(
    broker: BrokerThread,
    new_planner: Planners,
    api: Api,
    error: type[BrokerResponseError],
    at: Place | None,
    text: str,
) -> None:
    slept: list[float] = []
    planner = new_planner(broker.bootstrap_servers, "t", sleep=slept.append)
    broker.on(api, topic="t").fail(error, times=None, at=at)
    with pytest.raises(error, match=text):
        planner.batch_ranges()
    assert not slept


def test_cluster_that_refuses_metadata_is_not_asked_again(
    broker: BrokerThread, new_planner: Planners
) -> None:
    slept: list[float] = []
    planner = new_planner(broker.bootstrap_servers, "t", sleep=slept.append)
    broker.on(MetadataRequest).fail(ClusterAuthorizationFailedError, times=None, at="answer")
    with pytest.raises(ClusterAuthorizationFailedError):
        planner.batch_ranges()
    assert not slept


def test_topic_that_may_not_be_read_any_more_is_no_lost_topic(
    broker: BrokerThread, new_planner: Planners
) -> None:
    planner = running(broker, new_planner)
    broker.on(MetadataRequest, topic="t").fail(
        TopicAuthorizationFailedError, times=None, at="topic"
    )
    with pytest.raises(TopicAuthorizationFailedError, match=r"topic t, .*subscribe"):
        planner.latest(all_at(10))
