"""Every fault, as a client sees it that sends and receives frames by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiokafka_lite import records
from aiokafka_lite.broker import Broker, faults
from aiokafka_lite.broker.faults.actions import FrameFate
from aiokafka_lite.broker.faults.builder import RuleBuilder
from aiokafka_lite.broker.faults.rules import Action, Rule
from aiokafka_lite.broker.handlers.base import HANDLERS, Api, RequestContext
from aiokafka_lite.broker.network.dispatcher import RequestWork
from aiokafka_lite.broker.network.processor import Processor
from aiokafka_lite.errors import (
    CoordinatorNotAvailableError,
    CorruptRecordException,
    FetchSessionIdNotFound,
    IllegalGenerationError,
    LeaderNotAvailableError,
    NotLeaderForPartitionError,
    RebalanceInProgressError,
    TopicAuthorizationFailedError,
)
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.messages.cluster import DescribeLogDirsRequest
from aiokafka_lite.protocol.messages.fetch import FetchRequest, FetchResponse
from aiokafka_lite.protocol.messages.group_members import HeartbeatRequest, HeartbeatResponse
from aiokafka_lite.protocol.messages.metadata import (
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from aiokafka_lite.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from aiokafka_lite.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from aiokafka_lite.protocol.registry import API_NAMES
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.structs import TopicPartition
from tests.broker.wire import (
    answered,
    eventually,
    fetch,
    fetch_partition,
    fetch_request,
    topic_metadata,
    until_closed,
)
from tests.support.for_each import for_each
from tests.support.frames import correlation_id_of
from tests.support.waiting import until
from tests.support.wire import RawClient

METADATA = MetadataRequest(topics=[])
HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


def batch(*values: bytes) -> bytes:
    return records.build_batch([(1, None, value, ()) for value in values])


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker with a topic "t" of two partitions, and one record in each."""
    async with Broker() as broker:
        broker.create_topic("t", 2)
        for partition in range(2):
            broker.partition("t", partition).append(batch(b"v"))
        yield broker
    assert broker.failure is None


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[RawClient]:
    async with RawClient(broker.bootstrap_servers) as client:
        yield client


def both() -> FetchRequest:
    return fetch_request({"t": [fetch_partition(0), fetch_partition(1)]}, max_wait_ms=60_000)


# --- Which requests ---------------------------------------------------------------------------
@pytest.mark.parametrize("api", [HeartbeatRequest, "Heartbeat", "HeartbeatRequest", 12, None])
async def test_an_api_is_chosen_by_class_name_or_key(
    broker: Broker, client: RawClient, api: Api
) -> None:
    rule = broker.on(api).fail(RebalanceInProgressError)
    answer = await client.request(HEARTBEAT)
    assert (answer.error_code, rule.hits, rule.is_over) == (27, 1, True)
    assert (await client.request(HEARTBEAT)).error_code != 27


@pytest.mark.parametrize("api", ["Fetsch", 999])
async def test_an_api_that_is_not_there_is_refused(broker: Broker, api: Api) -> None:
    with pytest.raises(ValueError, match="not an API"):
        broker.on(api)


@pytest.mark.parametrize("api", ["DescribeLogDirs", DescribeLogDirsRequest, 35])
async def test_an_api_that_the_broker_lacks_is_refused_with_those_it_has(
    broker: Broker, api: Api
) -> None:
    with pytest.raises(ValueError, match="not an API of this broker") as refused:
        broker.on(api)
    said = str(refused.value).partition("The APIs are ")[2].split(", ")
    assert said == sorted(API_NAMES[key] for key in HANDLERS)
    assert "DescribeConfigs" in said
    assert "DescribeLogDirs" not in said


async def test_a_rule_that_no_request_can_match_is_refused(broker: Broker) -> None:
    with pytest.raises(ValueError, match=r"ever match; did you mean Fetch\?"):
        broker.on("Fech")
    for api in ("Heartbeat", "FindCoordinator", "DescribeGroups", "ApiVersions"):
        with pytest.raises(ValueError, match=f"{api} requests do not name topics"):
            broker.on(api, topic="t")
    with pytest.raises(ValueError, match="do not name topics"):
        broker.on("JoinGroup", partition=0)
    with pytest.raises(ValueError, match=r"supports Fetch versions \d+ to \d+, so no request"):
        broker.on("Fetch", version=99)
    with pytest.raises(ValueError, match="versions"):
        broker.on("Produce", version=range(90, 99))
    rules: list[Callable[[], object]] = [
        lambda: broker.on("Fetch", node=0).silence(),
        lambda: broker.on_connect(node=0).refuse(),
    ]
    for rule in rules:
        with pytest.raises(ValueError, match=r"no node 0, .* never match: the nodes are \[1\]"):
            rule()
    damages: list[Callable[[], object]] = [
        lambda: broker.on("Produce").corrupt("crc"),
        lambda: broker.on("Produce").corrupt("records"),
        lambda: broker.on("Produce").rewrite_batch(lambda tp, records: records),
        lambda: broker.on("Produce").stale_metadata(),
    ]
    for damage in damages:
        with pytest.raises(ValueError, match=r"only for (Fetch|Metadata) requests, .* to Produce"):
            damage()
    assert broker.faults.rules == broker.faults.connection_rules == ()
    broker.on(topic="t").corrupt("crc")
    broker.on("ApiVersions", version=99)
    broker.on("Metadata", partition=0)


@pytest.mark.parametrize("version", [2, 7, 9])
async def test_offset_fetch_fails_for_one_partition_and_serves_the_other(
    broker: Broker, client: RawClient, version: int
) -> None:
    await client.request(FindCoordinatorRequest(coordinator_keys=["g"]))
    broker.on("OffsetFetch", topic="t", partition=1).fail(TopicAuthorizationFailedError)
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])
    answer = await client.request(request, version=version)
    (group,) = answer.groups
    assert group.error_code == 0
    assert {
        each.partition_index: each.error_code for topic in group.topics for each in topic.partitions
    } == {0: 0, 1: TopicAuthorizationFailedError.errno}


async def test_filters_choose_among_requests(broker: Broker, client: RawClient) -> None:
    _, port = client.local_address
    chosen: list[Callable[[], RuleBuilder[Rule]]] = [
        lambda: broker.on("Heartbeat", node=1),
        lambda: broker.on("Heartbeat", client_id="raw"),
        lambda: broker.on("Heartbeat", client_id={"raw", "else"}),
        lambda: broker.on("Heartbeat", version=4),
        lambda: broker.on("Heartbeat", version=range(3, 5)),
        lambda: broker.on("Heartbeat", peer=f"127.0.0.1:{port}"),
        lambda: broker.on("Heartbeat", when=lambda ctx, request: request == HEARTBEAT),
    ]
    others: list[Callable[[], RuleBuilder[Rule]]] = [
        lambda: broker.on("Metadata"),
        lambda: broker.on("Heartbeat", client_id="else"),
        lambda: broker.on("Heartbeat", version=range(3)),
        lambda: broker.on("Heartbeat", peer="127.0.0.1:1"),
        lambda: broker.on("Heartbeat", when=lambda ctx, request: ctx.client_id == "else"),
    ]
    for choose in chosen:
        with choose().fail(RebalanceInProgressError) as rule:
            assert (await client.request(HEARTBEAT)).error_code == 27
            assert rule.hits == 1
    for choose in others:
        with choose().fail(RebalanceInProgressError) as rule:
            assert (await client.request(HEARTBEAT)).error_code != 27
            assert rule.hits == 0
    assert not broker.faults.is_armed
    async with Broker(nodes=2) as two:
        two.on("Heartbeat", node=2).fail(RebalanceInProgressError, times=None)
        for node in two.nodes.values():
            async with RawClient(node.bootstrap_servers) as asking:
                code = (await asking.request(HEARTBEAT)).error_code
                assert (code == 27) == (node.id == 2)


async def test_rules_apply_in_order_and_one_to_a_request(broker: Broker, client: RawClient) -> None:
    first = broker.on("Heartbeat").fail(RebalanceInProgressError, times=2)
    second = broker.on("Heartbeat").fail(IllegalGenerationError, times=None)
    codes = [(await client.request(HEARTBEAT)).error_code for _ in range(4)]
    assert codes == [27, 27, 22, 22]
    assert (first.hits, second.hits) == (2, 2)
    assert broker.faults.rules == (second,)
    broker.faults.clear()
    assert (await client.request(HEARTBEAT)).error_code == 16


async def test_a_rule_ends_with_its_block(broker: Broker, client: RawClient) -> None:
    with broker.on("Heartbeat").fail(RebalanceInProgressError, times=None) as rule:
        assert (await client.request(HEARTBEAT)).error_code == 27
    assert (await client.request(HEARTBEAT)).error_code == 16
    assert rule.is_over


async def test_hits_can_be_awaited(broker: Broker, client: RawClient) -> None:
    rule = broker.on("Heartbeat").fail(RebalanceInProgressError, times=3)
    waiting = asyncio.ensure_future(rule.reached(2))
    await client.request(HEARTBEAT)
    assert not waiting.done()
    await client.request(HEARTBEAT)
    await waiting
    await rule.reached(1)
    with pytest.raises(TimeoutError, match="has not reached 3 hits"):
        await rule.reached(3, timeout_s=0.01)


async def test_a_rule_that_has_not_applied_keeps_its_place(
    broker: Broker, client: RawClient
) -> None:
    first = broker.on("Fetch").corrupt("crc", times=2)
    once = broker.on("Fetch").corrupt("records")
    last = broker.on("Fetch").corrupt("bytes")
    for _ in range(2):  # without records
        await fetch(client, "t", fetch_partition(0, 1))
        assert broker.faults.rules == (first, once, last)
    for _ in range(2):
        await client.request(both(), 12)
    assert broker.faults.rules == (once, last)
    await fetch(client, "t", fetch_partition(0, 1))
    assert broker.faults.rules == (once, last)
    await client.request(both(), 12)
    assert (broker.faults.rules, once.hits, once.is_over) == ((last,), 1, True)


async def test_a_rule_that_was_removed_does_not_return(broker: Broker, client: RawClient) -> None:
    rule = broker.on("Fetch").corrupt("crc")
    waiting = asyncio.ensure_future(
        fetch(client, "t", fetch_partition(0, 1), max_wait_ms=20, min_bytes=1)
    )
    await broker.requests.wait_for("Fetch")
    rule.remove()
    await waiting
    assert (broker.faults.rules, rule.hits, rule.is_over) == ((), 0, True)


@pytest.mark.parametrize("times", [0, -1])
async def test_a_rule_applies_at_least_once(broker: Broker, times: int) -> None:
    with pytest.raises(ValueError, match="times must be"):
        broker.on("Fetch").silence(times)
    with pytest.raises(ValueError, match="times must be"):
        broker.on_connect().silence(times)


# --- fail -------------------------------------------------------------------------------------
async def test_fetch_fails_for_one_partition_and_serves_the_other(
    broker: Broker, client: RawClient
) -> None:
    broker.on("Fetch", topic="t", partition=1).fail(NotLeaderForPartitionError)
    found = answered(await client.request(both(), 12))
    assert (found["t", 0].error_code, bool(found["t", 0].records)) == (0, True)
    assert (found["t", 1].error_code, found["t", 1].high_watermark) == (6, -1)


async def test_a_refused_fetch_does_not_wait_and_hints_at_the_leader(
    broker: Broker, client: RawClient
) -> None:
    topic_id = broker.topics["t"].topic_id
    request = both()
    request.topics[0].topic_id = topic_id
    for part in request.topics[0].partitions:
        part.fetch_offset = 1
    broker.on("Fetch", topic="t").fail(NotLeaderForPartitionError)
    response = await client.request(request, 18)
    (topic,) = response.responses
    assert [data.error_code for data in topic.partitions] == [6, 6]
    assert {data.current_leader.leader_id for data in topic.partitions} == {1}
    assert [node.port for node in response.node_endpoints] == [broker.node.address.port]


async def test_fetch_session_goes_on_behind_a_refused_partition(
    broker: Broker, client: RawClient
) -> None:
    first = await client.request(
        fetch_request({"t": [fetch_partition(0), fetch_partition(1)]}, session_epoch=0), 12
    )
    rule = broker.on("Fetch", topic="t", partition=1).fail(CorruptRecordException)

    async def later(epoch: int) -> FetchResponse:
        request = fetch_request({}, session_id=first.session_id, session_epoch=epoch)
        return await client.request(request, 12)

    found = answered(await later(1))  # the request itself names no partition at all
    assert (found["t", 0].error_code, found["t", 1].error_code, rule.hits) == (0, 2, 1)
    found = answered(await later(2))
    assert found["t", 1].error_code == 0
    assert found["t", 1].records


@pytest.mark.parametrize("code", [1, 6, 999])
async def test_fetch_fails_with_any_code(broker: Broker, client: RawClient, code: int) -> None:
    broker.on("Fetch").fail(code)
    found = answered(await client.request(both(), 12))
    assert {data.error_code for data in found.values()} == {code}


async def test_errors_of_a_fetch_session_are_put_at_the_top(
    broker: Broker, client: RawClient
) -> None:
    broker.on("Fetch").fail(FetchSessionIdNotFound)
    response = await client.request(both(), 12)
    assert (response.error_code, response.responses) == (70, [])
    broker.on("Fetch").fail(-1, at="answer")
    assert (await client.request(both(), 12)).error_code == -1


@pytest.mark.parametrize("code", [-(2**15), 2**15 - 1])
async def test_any_code_of_16_bits_is_sent(broker: Broker, client: RawClient, code: int) -> None:
    broker.on("Heartbeat").fail(code)
    assert (await client.request(HEARTBEAT)).error_code == code
    for beyond in (-(2**15) - 1, 2**15):
        with pytest.raises(ValueError, match="an error code from -32768"):
            broker.on("Heartbeat").fail(beyond)


async def test_a_fetch_is_refused_at_once_by_handling_it_without_a_wait(
    broker: Broker, client: RawClient
) -> None:
    request = fetch_request({"t": [fetch_partition(0), fetch_partition(1, 1)]}, max_wait_ms=60_000)
    request.topics[0].topic_id = broker.topics["t"].topic_id
    broker.on("Fetch", topic="t", partition=1).fail(NotLeaderForPartitionError, times=2)
    for version in (16, 15):
        response = await client.request(request, version)
        (topic,) = response.responses
        assert [data.error_code for data in topic.partitions] == [0, 6]
        leaders = [data.current_leader.leader_id for data in topic.partitions]
        assert leaders == ([-1, 1] if version == 16 else [-1, -1])
        assert len(response.node_endpoints) == (version == 16)
    assert len(broker.purgatory) == 0


async def test_a_request_that_asks_for_nothing_is_not_refused(
    broker: Broker, client: RawClient
) -> None:
    rule = broker.on("OffsetCommit").fail(RebalanceInProgressError)
    assert (await client.request(OffsetCommitRequest(group_id="g"), 9)).topics == []
    assert (rule.hits, broker.faults.rules) == (0, (rule,))


async def test_a_refused_produce_appends_nothing(broker: Broker, client: RawClient) -> None:
    broker.on("Produce").fail(NotLeaderForPartitionError("moved, says the test"))
    answer = await produced(client, produce_request(batch(b"lost")))
    assert (answer.error_code, answer.error_message) == (6, "moved, says the test")
    assert answer.base_offset == -1
    assert broker.partition("t", 0).high_watermark == 1
    assert (await produced(client, produce_request(batch(b"kept")))).base_offset == 1


def produce_request(data: bytes, acks: int = -1) -> ProduceRequest:
    partition = PartitionProduceData(index=0, records=data)
    topic = TopicProduceData(name="t", partition_data=[partition])
    return ProduceRequest(acks=acks, timeout_ms=1_000, topic_data=[topic])


async def produced(client: RawClient, request: ProduceRequest) -> PartitionProduceResponse:
    """Send a Produce once and return its partition's answer."""
    ((result,),) = (t.partition_responses for t in (await client.request(request, 12)).responses)
    return result


async def test_a_produce_that_expects_no_answer_is_refused_by_closing(
    broker: Broker, client: RawClient
) -> None:
    broker.on("Produce").fail(NotLeaderForPartitionError)
    frame = framing.encode_request(produce_request(batch(b"v"), acks=0), 12, 1, "raw")
    await client.send(frame)
    await until_closed(client)


async def test_metadata_fails_for_a_topic_and_keeps_the_brokers(
    broker: Broker, client: RawClient
) -> None:
    broker.create_topic("other")
    broker.on("Metadata", topic="t").fail(LeaderNotAvailableError, times=3)
    names = [MetadataRequestTopic(name=name) for name in ("t", "other")]
    answer = await client.request(MetadataRequest(topics=names))
    assert {topic.name: topic.error_code for topic in answer.topics} == {"t": 5, "other": 0}
    assert [node.node_id for node in answer.brokers] == [1]
    # Whoever asks for all topics names none: only a rule without a topic is for that.
    broker.faults.clear()
    broker.on("Metadata").fail(TopicAuthorizationFailedError)
    answer = await client.request(MetadataRequest(topics=None))
    assert {topic.error_code for topic in answer.topics} == {29}
    broker.on("Metadata").fail(LeaderNotAvailableError, at="partition")
    topic = await topic_metadata(client, "t")
    assert topic.error_code == 0
    assert [(each.error_code, each.leader_id) for each in topic.partitions] == [(5, -1)] * 2


async def test_find_coordinator_fails_in_old_and_new_versions(
    broker: Broker, client: RawClient
) -> None:
    broker.on("FindCoordinator").fail(CoordinatorNotAvailableError, times=2)
    for version in (2, 6):
        answer = await client.request(FindCoordinatorRequest(coordinator_keys=["g"]), version)
        (found,) = answer.coordinators
        assert (found.error_code, found.node_id) == (15, -1)
    answer = await client.request(FindCoordinatorRequest(coordinator_keys=["g"]), 6)
    assert answer.coordinators[0].error_code == 0


# --- Instead of an answer ---------------------------------------------------------------------
async def test_an_answer_is_written_by_the_test(broker: Broker, client: RawClient) -> None:
    def answer(ctx: RequestContext, request: Request[Response]) -> Response | None:
        assert isinstance(request, HeartbeatRequest)
        if request.generation_id == 1:
            return None
        return HeartbeatResponse(error_code=ctx.api_version + 100)

    broker.on("Heartbeat").answer(answer, times=None)
    other = HeartbeatRequest(group_id="g", generation_id=2, member_id="m")
    assert (await client.request(HEARTBEAT)).error_code == 16
    assert (await client.request(other)).error_code == 104
    broker.faults.clear()
    broker.on("Heartbeat").answer(HeartbeatResponse(error_code=3))
    assert (await client.request(other)).error_code == 3


@pytest.mark.parametrize("raised", [ZeroDivisionError, pytest.fail.Exception])
async def test_a_function_of_the_test_that_raises_is_shown(
    client: RawClient, raised: type[BaseException]
) -> None:
    async with Broker() as other:
        reported: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))

        def answer(ctx: RequestContext, request: Request[Response]) -> Response | None:
            raise raised("the test's own bug")

        other.on("Heartbeat").answer(answer)
        async with RawClient(other.bootstrap_servers) as asking:
            await asking.send(framing.encode_request(HEARTBEAT, 4, 1, "raw"))
            await until_closed(asking)
        assert isinstance(other.failure, raised)
        assert reported == [other.failure]
        async with RawClient(other.bootstrap_servers) as asking:
            assert (await asking.request(HEARTBEAT)).error_code == 16


async def test_a_connection_rule_whose_function_raises_fails_the_broker_and_the_connection() -> (
    None
):
    async with Broker() as other:
        reported: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        wrong: Any = lambda peer, request: True  # noqa: E731
        with other.on_connect(when=wrong).refuse():
            async with RawClient(other.bootstrap_servers) as asking:
                await until_closed(asking)
        assert isinstance(other.failure, TypeError)
        assert reported == [other.failure]


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (lambda on: on.answer(lambda context, request: "x"), "a Response or None, not 'x'"),
        (lambda on: on.on_frame(lambda context, frame: None), "or faults.CLOSE, not None"),
    ],
)
async def test_wrong_results_of_the_tests_functions_are_shown(
    rule: Callable[[Any], object], text: str
) -> None:
    async with Broker() as other:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        rule(other.on("Heartbeat"))
        async with RawClient(other.bootstrap_servers) as asking:
            await asking.send(framing.encode_request(HEARTBEAT, 4, 1, "raw"))
            await until_closed(asking)
        assert isinstance(other.failure, TypeError)
        assert text in str(other.failure)


async def test_delay_holds_up_one_connection_only(broker: Broker, client: RawClient) -> None:
    loop = asyncio.get_running_loop()
    rule = broker.on("Heartbeat", client_id="raw").delay(0.1)
    began = loop.time()
    slow = asyncio.ensure_future(client.request(HEARTBEAT))
    async with RawClient(broker.bootstrap_servers, client_id="other") as other:
        for _ in range(5):
            await other.request(HEARTBEAT)
        assert not slow.done()
    await slow
    assert loop.time() - began >= 0.1
    assert rule.is_over


async def test_a_late_answer_is_to_a_request_that_was_handled_at_once(
    broker: Broker, client: RawClient
) -> None:
    loop = asyncio.get_running_loop()
    rule = broker.on("Produce").delay(0.1, handled=True)
    began, before = loop.time(), len(broker.records("t", 0))
    slow = asyncio.ensure_future(produced(client, produce_request(batch(b"late"))))
    await until(lambda: len(broker.records("t", 0)) > before)
    assert loop.time() - began < 0.1
    assert not slow.done()
    assert (await slow).base_offset == before
    assert loop.time() - began >= 0.1
    assert rule.is_over


async def test_held_requests_are_handled_in_order_when_released(broker: Broker) -> None:
    with broker.on("Produce").hold() as rule:
        frames = [produce_request(batch(b"%d" % number)) for number in range(3)]
        clients = [RawClient(broker.bootstrap_servers) for _ in frames]
        asking = []
        for number, (client, request) in enumerate(zip(clients, frames, strict=True), 1):
            await client.__aenter__()
            asking.append(asyncio.ensure_future(produced(client, request)))
            await rule.reached(number)
        assert broker.partition("t", 0).high_watermark == 1
        rule.release()
        answers = await asyncio.gather(*asking)
        assert [answer.base_offset for answer in answers] == [1, 2, 3]
    for client in clients:
        await client.__aexit__(None, None, None)


async def test_silence_leaves_the_connection_open(broker: Broker, client: RawClient) -> None:
    rule = broker.on("Heartbeat").silence()
    await client.send(framing.encode_request(HEARTBEAT, 4, 1, "raw"))
    await rule.reached()
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(client.receive(), 0.05)
    (seen,) = broker.requests.of("Heartbeat")
    assert seen.answered_at is None
    assert broker.connection_count == 1


async def test_lost_answers_are_to_requests_that_were_handled(broker: Broker) -> None:
    partition = broker.partition("t", 0)
    losses: list[Callable[[], Rule]] = [
        lambda: broker.on("Produce").silence(handled=True),
        lambda: broker.on("Produce").disconnect(handled=True),
        lambda: broker.on("Produce").disconnect(after_bytes=5),
    ]
    for lose in losses:
        before = partition.high_watermark
        rule = lose()
        async with RawClient(broker.bootstrap_servers) as client:
            await client.send(framing.encode_request(produce_request(batch(b"v")), 12, 1, "raw"))
            await rule.reached()
            assert partition.high_watermark == before + 1


@pytest.mark.parametrize("reset", [False, True])
async def test_disconnect_ends_in_order_or_by_reset(
    broker: Broker, client: RawClient, reset: bool
) -> None:
    rule = broker.on("Produce").disconnect(reset=reset)
    await client.send(framing.encode_request(produce_request(batch(b"v")), 12, 1, "raw"))
    with pytest.raises(ConnectionResetError if reset else asyncio.IncompleteReadError):
        await client.receive()
    assert rule.hits == 1
    assert broker.partition("t", 0).high_watermark == 1


async def test_disconnect_in_the_middle_of_an_answer(broker: Broker, client: RawClient) -> None:
    broker.on("Metadata").disconnect(after_bytes=7)
    await client.send(framing.encode_request(METADATA, 12, 1, "raw"))
    assert len(await client.read(7)) == 7
    assert await client.read(1) == b""


# --- Other answers ----------------------------------------------------------------------------
async def test_a_broken_checksum_is_found_and_counted_once_there_were_records(
    broker: Broker, client: RawClient
) -> None:
    rule = broker.on("Fetch", partition=0).corrupt("crc")
    empty = await fetch(client, "t", fetch_partition(0, 1))
    assert (bytes(empty.records or b""), rule.hits) == (b"", 0)
    answer = answered(await client.request(both(), 12))
    headers = {
        key: list(records.iter_batches(memoryview(data.records or b""), check_crcs=False))
        for key, data in answer.items()
    }
    assert {len(each) for each in headers.values()} == {1}
    list(records.iter_batches(memoryview(answer["t", 1].records or b"")))
    with pytest.raises(CorruptRecordException):
        list(records.iter_batches(memoryview(answer["t", 0].records or b"")))
    assert (rule.hits, rule.is_over) == (1, True)
    healed = await fetch(client, "t", fetch_partition(0))
    list(records.iter_batches(memoryview(healed.records or b"")))


async def test_a_record_set_is_cut_within_its_first_batch(
    broker: Broker, client: RawClient
) -> None:
    whole = len((await fetch(client, "t", fetch_partition(0))).records or b"")
    broker.on("Fetch").corrupt("records")
    cut = len((await fetch(client, "t", fetch_partition(0))).records or b"")
    assert cut == 12 + (whole - 12) // 2


async def test_bytes_are_inverted_behind_the_correlation_id(
    broker: Broker, client: RawClient
) -> None:
    frame = framing.encode_request(METADATA, 12, 1, "raw")
    good = bytes(await client.exchange(frame))
    broker.on("Metadata").corrupt("bytes", count=3)
    bad = bytes(await client.exchange(frame))
    assert good[:4] == bad[:4]
    assert [a ^ b for a, b in zip(good, bad, strict=True) if a != b] == [255] * 3


@pytest.mark.parametrize("by", [-3, 5])
async def test_a_length_that_lies(broker: Broker, client: RawClient, by: int) -> None:
    frame = framing.encode_request(METADATA, 12, 1, "raw")
    size = len(await client.exchange(frame))
    broker.on("Metadata").corrupt("length", by=by)
    await client.send(frame)
    assert int.from_bytes(await client.read(4), "big") == size + by
    assert len(await client.read(size)) == size


@pytest.mark.parametrize("version", [12, 13])
async def test_record_sets_are_rewritten(broker: Broker, client: RawClient, version: int) -> None:
    asked: list[TopicPartition] = []

    def rewrite(tp: TopicPartition, record_set: bytes) -> bytes:
        asked.append(tp)
        return b"" if tp.partition else record_set * 2

    broker.on("Fetch", topic="t").rewrite_batch(rewrite)
    request = both()
    request.topics[0].topic_id = broker.topics["t"].topic_id
    (topic,) = (await client.request(request, version)).responses
    assert asked == [TopicPartition("t", 0), TopicPartition("t", 1)]
    first, second = topic.partitions
    assert len(list(records.iter_batches(memoryview(first.records or b"")))) == 2
    assert not second.records


async def test_frames_pass_through_a_function(broker: Broker, client: RawClient) -> None:
    fates: list[bytes | FrameFate] = [b"\0\0\0\4\0\0\0\x2a", faults.DROP, faults.CLOSE]
    seen: list[bytes] = []

    def on_frame(ctx: RequestContext, frame: bytes) -> bytes | FrameFate:
        seen.append(frame)
        return fates[len(seen) - 1]

    broker.on("Metadata").on_frame(on_frame, times=3)
    frame = framing.encode_request(METADATA, 12, 7, "raw")
    assert int.from_bytes(await client.exchange(frame), "big") == 42
    await client.send(frame)  # dropped: what answers next is the answer to the next
    heartbeat = framing.encode_request(HEARTBEAT, 4, 8, "raw")
    assert correlation_id_of(await client.exchange(heartbeat)) == 8
    await client.send(frame)
    await until_closed(client)
    assert [each[:8] for each in seen] == [seen[0][:4] + b"\0\0\0\7"] * 3


@pytest.mark.parametrize(("sent", "received"), [(6, 7), (2**31 - 1, 0)])
async def test_correlation_id_is_another_requests(
    broker: Broker, client: RawClient, sent: int, received: int
) -> None:
    broker.on("Metadata").wrong_correlation_id()
    answer = await client.exchange(framing.encode_request(METADATA, 12, sent, "raw"))
    assert correlation_id_of(answer) == received
    assert framing.response_decoder(MetadataRequest, 12)(answer).cluster_id == broker.cluster_id


async def test_metadata_stays_behind(client: RawClient) -> None:
    async with Broker(nodes=2) as cluster:
        cluster.create_topic("t", 1)
        tp = TopicPartition("t", 0)
        old = cluster.leader_of(tp)
        with cluster.on("Metadata").stale_metadata():
            new = cluster.move_leader(tp)
            cluster.create_topic("new")
            cluster.add_partitions("t", 2)
            async with RawClient(cluster.bootstrap_servers) as asking:
                names = [MetadataRequestTopic(name=name) for name in ("new", "t")]
                unknown, known = (await asking.request(MetadataRequest(topics=names))).topics
                (partition,) = known.partitions
                assert (partition.error_code, partition.partition_index) == (0, 0)
                assert (partition.leader_id, partition.leader_epoch) == (old, 0)
                assert (unknown.error_code, unknown.partitions) == (3, [])
        async with RawClient(cluster.bootstrap_servers) as asking:
            (partition, _) = (await topic_metadata(asking, "t")).partitions
            assert (partition.leader_id, partition.leader_epoch) == (new, 1)
            cluster.on("Metadata").stale_metadata({("t", 0): (7, 9)}, times=1)
            (partition,) = (await topic_metadata(asking, "t")).partitions
            assert (partition.leader_id, partition.leader_epoch) == (7, 9)


@pytest.mark.parametrize("mute", [False, True])
async def test_throttle_is_told_and_mutes_the_connection_if_meant(
    broker: Broker, client: RawClient, mute: bool
) -> None:
    loop = asyncio.get_running_loop()
    broker.on("Heartbeat").throttle(0.2, mute=mute)
    began = loop.time()
    answer = await client.request(HEARTBEAT)
    assert answer.throttle_time_ms == 200
    assert (await client.request(HEARTBEAT)).throttle_time_ms == 0
    if mute:
        assert loop.time() - began >= 0.2
        first, second = broker.requests.of("Heartbeat")
        assert first.answered_at is not None
        assert second.arrived_at - first.answered_at >= 0.2


@pytest.mark.parametrize("mute", [False, True])
async def test_a_producer_without_acks_is_muted_without_a_word(
    broker: Broker, client: RawClient, mute: bool
) -> None:
    rule = broker.on("Produce").throttle(0.2, mute=mute)
    await client.send(framing.encode_request(produce_request(batch(b"w"), acks=0), 9, 1, "raw"))
    await client.request(METADATA)
    produced, following = broker.requests.of(since=broker.requests.total - 2)
    assert produced.answered_at is not None
    assert (following.arrived_at - produced.answered_at >= 0.2) is mute
    assert rule.hits == mute
    assert broker.partition("t", 0).high_watermark == 2


def sent_by(split: Callable[[RuleBuilder[Action]], Action]) -> list[bytes | float]:
    """Return the pieces that an action sends of an answer of ten bytes, and the pauses."""
    sent: list[bytes | float] = []

    def call_later(pause_s: float, callback: Callable[[], None]) -> None:
        sent.append(pause_s)
        callback()

    work = SimpleNamespace(
        processor=SimpleNamespace(
            is_open=True,
            encode=lambda work, response: b"0123456789",
            write_now=sent.append,
            write_rest=lambda work, response, rest: sent.append(rest),
        )
    )
    action = split(RuleBuilder(lambda action, times: action, dict))
    action.rule = cast("Rule", SimpleNamespace(faults=SimpleNamespace(call_later=call_later)))
    assert action.answer(cast("RequestWork", work), HeartbeatResponse())
    return sent


@for_each(
    [
        (lambda on: on.split(3), [b"0123", 0.0, b"4567", 0.0, b"89"]),
        (lambda on: on.split(1), [b"0123456789"]),
        (lambda on: on.split(2, pause_s=0.5), [b"01234", 0.5, b"56789"]),
        (lambda on: on.split(piece_bytes=9), [b"012345678", 0.0, b"9"]),
        (lambda on: on.split(at=[9, 0, 1, 10, 9]), [b"0", 0.0, b"12345678", 0.0, b"9"]),
        (lambda on: on.trickle(120), [b"012345", 0.05, b"6789"]),
    ]
)
def test_pieces_are_cut_and_sent_as_said(
    split: Callable[[RuleBuilder[Action]], Action], expected: list[bytes | float]
) -> None:
    assert sent_by(split) == expected


def test_pieces_are_single_bytes_unless_said_otherwise() -> None:
    assert len(sent_by(lambda on: on.split())) == 10 + 9
    assert len(sent_by(lambda on: on.split(99))) == 10 + 9
    slow = sent_by(lambda on: on.trickle(2))
    assert (len(slow), slow[:3]) == (10 + 9, [b"0", 0.5, b"1"])


# --- Other ways to send -----------------------------------------------------------------------
@pytest.mark.parametrize(
    "split",
    [
        lambda on: on.split(3),
        lambda on: on.split(at=[2, 4, 9], pause_s=0.001),
        lambda on: on.split(piece_bytes=1),
        lambda on: on.trickle(20_000),
    ],
)
@pytest.mark.every_loop
async def test_answers_in_pieces_are_whole_and_in_order(
    broker: Broker, client: RawClient, split: Callable[[RuleBuilder[Rule]], Rule]
) -> None:
    frames = [framing.encode_request(METADATA, 12, number, "raw") for number in range(4)]
    whole = await client.exchange(frames[0])
    rule = split(broker.on("Metadata"))
    answers = await client.pipeline(frames)
    assert [correlation_id_of(answer) for answer in answers] == [0, 1, 2, 3]
    assert [bytes(answer[4:]) for answer in answers] == [bytes(whole[4:])] * 4
    assert rule.hits == 1


async def test_pieces_end_when_the_client_goes(broker: Broker) -> None:
    async with RawClient(broker.bootstrap_servers) as client:
        rule = broker.on("Metadata").split(piece_bytes=1, pause_s=0.005)
        await client.send(framing.encode_request(METADATA, 12, 1, "raw"))
        await client.read(4)
    await eventually(lambda: broker.connection_count == 0)
    assert rule.hits == 1


# --- Connections ------------------------------------------------------------------------------
async def test_a_connection_is_refused(broker: Broker) -> None:
    rule = broker.on_connect().refuse()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        async with RawClient(broker.bootstrap_servers) as client:
            await client.request(METADATA)
    async with RawClient(broker.bootstrap_servers) as client:
        await client.request(METADATA)
    assert (rule.hits, rule.is_over) == (1, True)


async def test_a_connection_is_silent(broker: Broker) -> None:
    with broker.on_connect(when=lambda peer: peer.startswith("127.")).silence(times=None):
        async with RawClient(broker.bootstrap_servers) as client:
            await client.send(framing.encode_request(METADATA, 12, 1, "raw"))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.receive(), 0.05)
    async with RawClient(broker.bootstrap_servers) as client:
        await client.request(METADATA)


@pytest.mark.parametrize("sent_bytes", [0, 3, 100])
async def test_a_connection_ends_after_so_many_bytes(broker: Broker, sent_bytes: int) -> None:
    broker.on_connect(node=1).close_after(sent_bytes)
    async with RawClient(broker.bootstrap_servers) as client:
        frames = [framing.encode_request(METADATA, 12, number, "raw") for number in range(9)]
        try:
            await client.send(b"".join(frames))
        except ConnectionError:
            assert sent_bytes == 0
        received = b""
        try:
            while piece := await client.read(1):
                received += piece
        except ConnectionError:
            pass  # it was closed with requests unread
        assert len(received) == sent_bytes


# --- The end ----------------------------------------------------------------------------------
async def test_a_broker_with_faults_in_force_stops() -> None:
    async with Broker() as broker, RawClient(broker.bootstrap_servers) as client:
        held = broker.on("Heartbeat", client_id="raw").hold()
        await client.send(framing.encode_request(HEARTBEAT, 4, 1, "raw"))
        await held.reached()
        delayed = broker.on("Metadata").delay(60)
        async with RawClient(broker.bootstrap_servers) as other:
            await other.send(framing.encode_request(METADATA, 12, 1, "raw"))
            await delayed.reached()
            silent = broker.on_connect().silence()
            async with RawClient(broker.bootstrap_servers):
                await eventually(lambda: silent.hits == 1)
                await broker.stop()
    assert broker.failure is None
    assert broker.faults.rules == ()


async def test_requests_that_are_held_or_delayed_end_with_the_broker() -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        partition = broker.partition("t", 0)
        delayed = broker.on("Produce", client_id="a").delay(0.01)
        held = broker.on("Produce").hold()
        refused = broker.on_connect(when=lambda peer: False).refuse(times=None)
        async with (
            RawClient(broker.bootstrap_servers) as a,
            RawClient(broker.bootstrap_servers) as b,
        ):
            for name, client in (("a", a), ("b", b)):
                request = produce_request(batch(b"v"))
                await client.send(framing.encode_request(request, 12, 1, name))
            await delayed.reached()
            await held.reached()
            await broker.stop()
            await asyncio.sleep(0.02)
        assert partition.high_watermark == 0
    assert (broker.failure, held.is_over, refused.is_over) == (None, True, True)


def test_a_rule_for_connections_applies_to_those_that_match_and_so_many() -> None:
    broker = Broker()

    seen: list[int | None] = []

    def connects(node: int, peer: str = "here:1") -> bool:
        seen.clear()
        processor = SimpleNamespace(
            peer=peer, reset=lambda: seen.append(None), close_after=seen.append
        )
        broker.faults.connected(cast("Processor", processor), node)
        return bool(seen)

    rule = broker.on_connect(node=1, when=lambda peer: peer.startswith("here")).refuse(times=2)
    assert [connects(2), connects(1, "there:1"), connects(2, "there:1")] == [False] * 3
    assert [(connects(1), rule.hits, rule.is_over) for _ in range(3)] == [
        (True, 1, False), (True, 2, True), (False, 2, True),
    ]  # fmt: skip
    assert not broker.faults.is_armed_for_connections
    rule = broker.on_connect().close_after(5, times=None)
    assert (connects(9, "there:1"), seen, rule.is_over) == (True, [5], False)
    broker.faults.clear()
    assert (connects(9), rule.is_over) == (False, True)
    assert not broker.faults.is_armed_for_connections


async def test_smallest_values_are_taken(broker: Broker) -> None:
    on = broker.on("Fetch")
    rules = [
        on.delay(0),
        on.throttle(0),
        on.disconnect(after_bytes=0),
        on.split(1),
        on.split(piece_bytes=1),
        on.trickle(1),
        on.corrupt("length"),
    ]
    assert broker.faults.rules == tuple(rules)


async def test_wrong_values_are_refused(broker: Broker) -> None:
    on = broker.on("Fetch")
    wrong: list[Callable[[], object]] = [
        lambda: on.delay(-1),
        lambda: on.throttle(-1),
        lambda: on.disconnect(after_bytes=-1),
        lambda: on.split(0),
        lambda: on.split(piece_bytes=-1),
        lambda: on.trickle(0),
        lambda: on.corrupt("everything"),  # type: ignore[arg-type]
        lambda: broker.on_connect().close_after(-1),
    ]
    for call in wrong:
        with pytest.raises(ValueError):
            call()
    assert not broker.faults.is_armed
    assert not broker.faults.is_armed_for_connections
