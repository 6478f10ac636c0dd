from __future__ import annotations

import asyncio
import gc
import struct
import sys
import weakref
from typing import cast

import pytest

from aiokafka_lite._compat import override
from aiokafka_lite.client.connection import MOST_GRACES, Connection
from aiokafka_lite.client.wire import MAX_THROTTLE_S, Exchange, Wire, WireState
from aiokafka_lite.errors import (
    AuthenticationFailedError,
    CorrelationIdError,
    ForkedError,
    FrameTooLargeError,
    IllegalArgumentError,
    KafkaConnectionError,
    KafkaError,
    KafkaProtocolError,
    RequestTimedOutError,
)
from aiokafka_lite.protocol.fetch_template import FetchTemplate, PreparedFetch
from aiokafka_lite.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from aiokafka_lite.protocol.messages.group_members import HeartbeatRequest, HeartbeatResponse
from aiokafka_lite.protocol.messages.metadata import (
    ApiVersionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from aiokafka_lite.protocol.messages.produce import ProduceRequest
from aiokafka_lite.protocol.prepared import UpTo
from tests.client.conftest import TIMEOUT_S
from tests.support import tuning
from tests.support.connecting import connect_to
from tests.support.forks import left_to_parent
from tests.support.scripted_broker import Answer, Asked, Do, ScriptedBroker, always, topic
from tests.support.virtual_time import VirtualTimeLoop

pytestmark = pytest.mark.every_loop


def ask_topic(name: str) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name)])


def only_topic(response: MetadataResponse) -> str | None:
    return response.topics[0].name


async def test_request_gets_its_decoded_answer(
    broker: ScriptedBroker, connection: Connection
) -> None:
    broker.topics["flights"] = topic("flights", [1])
    response = await connection.request(ask_topic("flights"), timeout_s=TIMEOUT_S)
    assert only_topic(response) == "flights"
    assert response.brokers == [broker.as_broker]
    assert broker.asked[-1].client_id == "tests"
    assert broker.asked[-1].version == MetadataRequest.max_version
    assert connection.in_flight_count == 0


async def test_request_can_cap_the_negotiated_version(
    broker: ScriptedBroker, connection: Connection
) -> None:
    await connection.request(UpTo(ask_topic("t"), 7), timeout_s=TIMEOUT_S)
    assert broker.asked[-1].version == 7


async def test_versions_that_are_known_are_not_asked_for(
    broker: ScriptedBroker, connection: Connection
) -> None:
    other = await connect_to(
        broker.host, broker.port, known_versions=lambda: connection.api_versions
    )
    assert only_topic(await other.request(ask_topic("t"), timeout_s=TIMEOUT_S)) == "t"
    assert broker.count(ApiVersionsRequest) == 1
    other.close()
    await other.wait_closed()


async def test_answers_in_any_order_reach_their_requests(
    broker: ScriptedBroker, connection: Connection
) -> None:
    held: list[Asked] = []

    def hold_back(asked: Asked) -> Answer:
        held.append(asked)
        if len(held) < 3:
            return Do.NOTHING
        return b"".join(waiting.encode(broker.metadata(waiting)) for waiting in reversed(held))

    broker.scripts[MetadataRequest] = hold_back
    responses = await asyncio.gather(
        *(connection.request(ask_topic(name), timeout_s=TIMEOUT_S) for name in "abc")
    )
    assert [only_topic(response) for response in responses] == ["a", "b", "c"]


async def test_request_is_sent_before_the_first_suspension(
    broker: ScriptedBroker, connection: Connection
) -> None:
    request = connection.request(ask_topic("t"), timeout_s=TIMEOUT_S)
    request.send(None)
    await broker.until_asked(MetadataRequest)
    request.close()


async def test_request_from_a_template_gets_its_decoded_answer(
    broker: ScriptedBroker, connection: Connection
) -> None:
    broker.scripts[FetchRequest] = always(FetchResponse(session_id=9))
    template = FetchTemplate(min_bytes=2, isolation_level=1)
    for topic_id, version in ((bytes(range(16)), FetchRequest.max_version), (bytes(16), 12)):
        request = PreparedFetch(
            template,
            session_id=3,
            session_epoch=4,
            max_bytes=5,
            topics=[("t", topic_id, [(6, 7, 8, 9)])],
            max_wait_ms=1,
        )
        response = await connection.request(request, timeout_s=TIMEOUT_S)
        assert response.session_id == 9
        asked = broker.asked[-1]
        assert asked.version == version
        assert asked.client_id == "tests"
        assert isinstance(asked.request, FetchRequest)
        assert asked.request.max_bytes == 5
        assert asked.request.topics[0].partitions[0].fetch_offset == 8


async def test_cancelled_request_leaves_the_connection_usable(
    broker: ScriptedBroker, connection: Connection
) -> None:
    broker.scripts[MetadataRequest] = lambda _: Do.NOTHING
    task = asyncio.ensure_future(connection.request(ask_topic("a"), timeout_s=TIMEOUT_S))
    await broker.until_asked(MetadataRequest)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    cancelled = broker.asked[-1]
    broker.scripts[MetadataRequest] = lambda asked: (
        cancelled.encode(broker.metadata(cancelled)) + asked.encode(broker.metadata(asked))
    )
    response = await connection.request(ask_topic("b"), timeout_s=TIMEOUT_S)
    assert only_topic(response) == "b"
    assert connection.in_flight_count == 0


async def test_silence_beyond_the_deadline_gives_the_connection_up(
    broker: ScriptedBroker, connection: Connection
) -> None:
    broker.scripts[MetadataRequest] = lambda _: Do.NOTHING
    oldest, younger = await asyncio.gather(
        connection.request(ask_topic("a"), timeout_s=0.05),
        connection.request(ask_topic("b"), timeout_s=TIMEOUT_S),
        return_exceptions=True,
    )
    assert isinstance(oldest, RequestTimedOutError)
    assert f"{broker.address} to Metadata v" in str(oldest)
    assert isinstance(younger, KafkaConnectionError)
    assert "stopped answering" in str(younger)
    assert connection.is_closed
    await broker.until(lambda: broker.connections[0].is_closed)


async def test_request_that_waits_behind_another_times_out_alone(
    broker: ScriptedBroker, connection: Connection
) -> None:
    broker.scripts[MetadataRequest] = lambda _: Do.NOTHING
    oldest = connection.send(ask_topic("a"), timeout_s=TIMEOUT_S)
    with pytest.raises(RequestTimedOutError):
        await connection.request(ask_topic("b"), timeout_s=0.05)
    assert not connection.is_closed
    for asked in broker.asked[-2:]:  # the second one's answer comes too late: it is dropped
        asked.peer.transport.write(asked.encode(broker.metadata(asked)))
    assert only_topic(await oldest) == "a"
    broker.scripts[MetadataRequest] = broker.metadata
    assert only_topic(await connection.request(ask_topic("c"), timeout_s=TIMEOUT_S)) == "c"
    assert connection.in_flight_count == 0


@pytest.mark.virtual_time
async def test_loop_blocked_when_no_request_is_overdue_postpones_no_deadline(
    broker: ScriptedBroker, connection: Connection
) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    started = loop.time()
    # The timer is set for this request, and stays set after the answer.
    await connection.request(ask_topic("a"), timeout_s=1.0)
    broker.scripts[MetadataRequest] = lambda _: Do.NOTHING
    unanswered = connection.send(ask_topic("b"), timeout_s=5.5)
    loop.pass_time(5.0)
    with pytest.raises(RequestTimedOutError):
        await unanswered
    assert loop.time() - started == pytest.approx(5.5)


@pytest.mark.virtual_time
@pytest.mark.parametrize(("blocked_s", "given_up_s"), [(1.05, 1.05), (1.2, 1.4), (5.0, 6.0)])
async def test_a_deadline_waits_for_reads_after_the_loop_was_blocked(
    broker: ScriptedBroker, connection: Connection, blocked_s: float, given_up_s: float
) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    broker.scripts[MetadataRequest] = lambda _: Do.NOTHING
    started = loop.time()
    exchange = connection.send(ask_topic("a"), timeout_s=1.0)
    loop.pass_time(blocked_s)
    with pytest.raises(RequestTimedOutError):
        await exchange
    assert loop.time() - started == pytest.approx(given_up_s)


@pytest.mark.virtual_time
async def test_an_answer_that_is_read_soon_after_the_loop_was_blocked_is_in_time(
    broker: ScriptedBroker, connection: Connection
) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    broker.scripts[MetadataRequest] = lambda _: Do.NOTHING
    for number in range(1, MOST_GRACES + 3):  # each request has graces of its own
        exchange = connection.send(ask_topic("a"), timeout_s=1.0)
        await broker.until_asked(MetadataRequest, number)
        loop.pass_time(5.0)
        await asyncio.sleep(0.9)
        assert not exchange.is_done
        asked = broker.asked[-1]
        asked.peer.transport.write(asked.encode(broker.metadata(asked)))
        assert only_topic(await exchange) == "a"


@pytest.mark.virtual_time
async def test_a_loop_that_is_always_blocked_hides_no_silent_broker(
    broker: ScriptedBroker, connection: Connection
) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    broker.scripts[MetadataRequest] = lambda _: Do.NOTHING
    exchange = connection.send(ask_topic("a"), timeout_s=1.0)
    blocks = 0
    while not exchange.is_done:
        loop.pass_time(3.0)
        blocks += 1
        for _ in range(3):
            await asyncio.sleep(0)
    assert blocks == MOST_GRACES + 1


@pytest.mark.virtual_time
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each piece is read as it comes")
async def test_a_part_of_a_large_answer_that_nobody_has_read_moves_the_deadline(
    broker: ScriptedBroker, connection: Connection
) -> None:
    broker.scripts[FetchRequest] = lambda _: Do.NOTHING
    exchange = connection.send(FetchRequest(), timeout_s=10.0)
    await broker.until_asked(FetchRequest)
    partition = PartitionData(partition_index=0, records=bytes(1_000_000))
    asked = broker.asked[-1]
    answer = asked.encode(FetchResponse(responses=[FetchableTopicResponse(partitions=[partition])]))
    asked.peer.transport.write(answer[:80_000])
    await asyncio.sleep(9.0)
    assert exchange.silent_since < 1.0
    asked.peer.transport.write(answer[80_000:81_000])  # too little to be read before the deadline
    await asyncio.sleep(0.9)
    assert exchange.silent_since < 1.0
    await asyncio.sleep(1.0)
    assert exchange.silent_since > 9.9
    assert not exchange.is_done
    asked.peer.transport.write(answer[81_000:])
    records = (await exchange).responses[0].partitions[0].records
    assert records is not None
    assert len(records) == 1_000_000


@pytest.mark.virtual_time
async def test_a_request_that_is_overdue_again_is_not_told_again(
    broker: ScriptedBroker, connection: Connection
) -> None:
    broker.scripts[MetadataRequest] = lambda _: Do.NOTHING
    connection.send(ask_topic("a"), timeout_s=60.0)
    told: list[Exchange[MetadataResponse]] = []
    hasty = connection.send(ask_topic("b"), timeout_s=1.0, on_done=told.append)
    await asyncio.sleep(5.5)
    assert told == [hasty]


async def test_a_bug_in_a_deadline_gives_the_connection_up(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bugs: list[BaseException] = []
    bug = ValueError("a bug")

    class Failing(Wire):
        @override
        def expire(self) -> float:
            raise bug

    tuning.wire_by(monkeypatch, Failing)
    connection = await connect_to(broker.host, broker.port, on_bug=bugs.append)
    broker.scripts[MetadataRequest] = lambda _: Do.NOTHING
    with pytest.raises(KafkaConnectionError, match="a response callback raised"):
        await connection.request(ask_topic("a"), timeout_s=0.01)
    assert bugs == [bug]
    await connection.wait_closed()


async def test_frame_that_stalls_half_way_is_caught_by_the_deadline(
    broker: ScriptedBroker, connection: Connection
) -> None:
    broker.scripts[MetadataRequest] = lambda asked: asked.encode(broker.metadata(asked))[:-1]
    with pytest.raises(RequestTimedOutError):
        await connection.request(ask_topic("a"), timeout_s=0.05)
    assert connection.is_closed


async def test_trickling_bytes_do_not_prolong_the_deadline(
    broker: ScriptedBroker, connection: Connection
) -> None:
    loop = asyncio.get_running_loop()
    trickle: list[asyncio.TimerHandle] = []

    def send_slowly(asked: Asked) -> Answer:
        encoded = asked.encode(broker.metadata(asked))
        for index in range(len(encoded)):
            byte = encoded[index : index + 1]
            trickle.append(loop.call_later(0.02 * index, asked.peer.transport.write, byte))
        return Do.NOTHING

    broker.scripts[MetadataRequest] = send_slowly
    started = loop.time()
    with pytest.raises(RequestTimedOutError):
        await connection.request(ask_topic("a"), timeout_s=0.1)
    assert loop.time() - started < 0.02 * len(trickle)
    for handle in trickle:
        handle.cancel()


@pytest.mark.parametrize("ending", [Do.CLOSE, Do.RESET])
async def test_lost_connection_reaches_every_waiter(
    broker: ScriptedBroker, connection: Connection, ending: Do
) -> None:
    broker.scripts[MetadataRequest] = lambda _: Do.NOTHING
    broker.scripts[HeartbeatRequest] = lambda _: ending
    outcomes = await asyncio.gather(
        connection.request(ask_topic("a"), timeout_s=TIMEOUT_S),
        connection.request(ask_topic("b"), timeout_s=TIMEOUT_S),
        connection.request(HeartbeatRequest(), timeout_s=TIMEOUT_S),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [KafkaConnectionError] * 3
    assert len({id(outcome) for outcome in outcomes}) == 3
    assert broker.address in str(outcomes[0])
    assert connection.is_closed
    assert isinstance(connection.closed.result(), KafkaConnectionError)


async def poisoned_by(
    broker: ScriptedBroker, connection: Connection, raw: bytes
) -> list[BaseException]:
    """Send two requests, answer with the bytes, and return what the requests raised."""
    broker.scripts[MetadataRequest] = lambda _: Do.NOTHING
    broker.scripts[HeartbeatRequest] = lambda _: raw
    outcomes = await asyncio.gather(
        connection.request(ask_topic("a"), timeout_s=TIMEOUT_S),
        connection.request(HeartbeatRequest(), timeout_s=TIMEOUT_S),
        return_exceptions=True,
    )
    assert connection.is_closed
    await broker.until(lambda: broker.connections[0].is_closed)
    return [outcome for outcome in outcomes if isinstance(outcome, BaseException)]


async def test_unknown_correlation_id_poisons(
    broker: ScriptedBroker, connection: Connection
) -> None:
    errors = await poisoned_by(broker, connection, struct.pack(">ii", 4, 12345))
    assert [type(error) for error in errors] == [CorrelationIdError] * 2
    assert isinstance(errors[0], KafkaProtocolError)
    assert f"{broker.address} sent a response with correlation id 12345" in str(errors[0])
    with pytest.raises(CorrelationIdError):
        await connection.request(ask_topic("c"), timeout_s=TIMEOUT_S)


async def test_second_answer_to_one_request_poisons(
    broker: ScriptedBroker, connection: Connection
) -> None:
    broker.scripts[MetadataRequest] = lambda asked: asked.encode(broker.metadata(asked)) * 2
    assert only_topic(await connection.request(ask_topic("a"), timeout_s=TIMEOUT_S)) == "a"
    assert isinstance(await connection.closed, CorrelationIdError)


@pytest.mark.parametrize(
    ("raw", "error_class"),
    [
        (struct.pack(">i", -1), KafkaProtocolError),
        (struct.pack(">i", 0), KafkaProtocolError),
        (struct.pack(">i", 2**31 - 1), FrameTooLargeError),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", FrameTooLargeError),
        (b"\x15\x03\x03\x00\x02\x02\x46", FrameTooLargeError),
    ],
)
async def test_impossible_frame_poisons(
    broker: ScriptedBroker, connection: Connection, raw: bytes, error_class: type[KafkaError]
) -> None:
    errors = await poisoned_by(broker, connection, raw)
    assert [type(error) for error in errors] == [error_class] * 2
    assert broker.address in str(errors[0])


async def test_only_answers_that_may_be_large_may_be_large(broker: ScriptedBroker) -> None:
    claim = struct.pack(">i", 17 << 20)
    broker.scripts[HeartbeatRequest] = lambda _: claim
    broker.scripts[FetchRequest] = lambda _: claim
    small = await connect_to(broker.host, broker.port)
    with pytest.raises(FrameTooLargeError, match=f"the limit is {16 << 20}"):
        await small.request(HeartbeatRequest(), timeout_s=TIMEOUT_S)
    large = await connect_to(broker.host, broker.port)
    with pytest.raises(RequestTimedOutError):  # the claim is accepted, the bytes never come
        await large.request(FetchRequest(), timeout_s=0.05)
    await asyncio.gather(small.wait_closed(), large.wait_closed())


async def test_malformed_answer_fails_the_request_not_the_connection(
    broker: ScriptedBroker, connection: Connection
) -> None:
    def with_a_byte_less(asked: Asked) -> Answer:
        body = asked.encode(broker.metadata(asked))[4:-1]
        return struct.pack(">i", len(body)) + body

    broker.scripts[MetadataRequest] = with_a_byte_less
    with pytest.raises(
        KafkaProtocolError, match=f"invalid response from {broker.address} to Metadata"
    ):
        await connection.request(ask_topic("a"), timeout_s=TIMEOUT_S)
    broker.scripts[MetadataRequest] = broker.metadata
    assert only_topic(await connection.request(ask_topic("b"), timeout_s=TIMEOUT_S)) == "b"


async def test_a_deadline_counts_from_the_end_of_the_throttle(
    broker: ScriptedBroker, connection: Connection
) -> None:
    broker.scripts[HeartbeatRequest] = always(HeartbeatResponse(throttle_time_ms=30_000))
    await connection.request(HeartbeatRequest(), timeout_s=TIMEOUT_S)
    broker.scripts[HeartbeatRequest] = always(Do.NOTHING)
    exchange = connection.send(HeartbeatRequest(), timeout_s=0.001)
    assert exchange.deadline == connection.muted_until + 0.001


async def test_throttle_is_noted_and_capped(broker: ScriptedBroker, connection: Connection) -> None:
    loop = asyncio.get_running_loop()
    for throttle_ms, expected_s in ((-5, 0.0), (5_000, 5.0), (10**9, MAX_THROTTLE_S)):
        response = HeartbeatResponse(throttle_time_ms=throttle_ms)
        broker.scripts[HeartbeatRequest] = always(response)
        await connection.request(HeartbeatRequest(), timeout_s=TIMEOUT_S)
        muted_s = connection.muted_until - loop.time()
        assert expected_s == 0.0 or expected_s - 1 < muted_s < expected_s + 0.01
        assert expected_s > 0.0 or muted_s < 0.0


async def test_retired_connection_closes_after_its_last_answer(
    broker: ScriptedBroker, connection: Connection
) -> None:
    broker.scripts[MetadataRequest] = lambda _: Do.NOTHING
    exchanges = [connection.send(ask_topic(name), timeout_s=TIMEOUT_S) for name in "ab"]
    await broker.until_asked(MetadataRequest, 2)
    connection.retire()
    assert not connection.is_closed
    with pytest.raises(KafkaConnectionError):
        await connection.request(ask_topic("c"), timeout_s=TIMEOUT_S)
    for name, asked, exchange in zip("ab", broker.asked[-2:], exchanges, strict=True):
        assert not connection.is_closed
        asked.peer.transport.write(asked.encode(broker.metadata(asked)))
        assert only_topic(await exchange) == name
    assert "closed by this client" in str(connection.closed.result())
    await connection.wait_closed()


async def test_retired_connection_without_requests_closes_at_once(connection: Connection) -> None:
    connection.retire()
    assert connection.closed.done()
    connection.retire()


async def test_a_session_is_renewed_when_all_answers_have_come_and_requests_wait(
    broker: ScriptedBroker, connection: Connection
) -> None:
    broker.scripts[MetadataRequest] = lambda _: Do.NOTHING
    exchange = connection.send(ask_topic("a"), timeout_s=TIMEOUT_S)
    was_answered: list[bool] = []

    async def authenticate(_: Connection) -> float:
        was_answered.append(exchange.is_done)
        return 100.0

    renewing = asyncio.ensure_future(connection.renew(authenticate, TIMEOUT_S))
    await broker.until_asked(MetadataRequest)
    assert connection.wire.state is WireState.RENEWING
    waiting = asyncio.ensure_future(connection.until_renewed())
    await asyncio.sleep(0)
    assert not waiting.done()
    asked = broker.asked[-1]
    asked.peer.transport.write(asked.encode(broker.metadata(asked)))
    await asyncio.gather(renewing, waiting)
    assert was_answered == [True]
    assert connection.wire.session_lifetime_s == 100.0
    assert connection.wire.state is WireState.OPEN
    await connection.until_renewed()  # which is over


@pytest.mark.parametrize("end", ["refused", "cancelled", "lost"])
async def test_connection_whose_session_is_not_renewed_closes_and_nobody_waits_for_it(
    broker: ScriptedBroker, connection: Connection, end: str
) -> None:
    async def authenticate(connection: Connection) -> float:
        if end == "refused":
            raise AuthenticationFailedError("wrong password")
        await asyncio.Event().wait()
        return 0.0

    broker.scripts[MetadataRequest] = lambda _: Do.NOTHING
    if end == "lost":
        connection.send(ask_topic("a"), timeout_s=TIMEOUT_S)
    renewing = asyncio.ensure_future(connection.renew(authenticate, TIMEOUT_S))
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(connection.until_renewed())
    await asyncio.sleep(0)
    assert end == "refused" or not waiting.done()
    if end == "cancelled":
        renewing.cancel()
    elif end == "lost":
        await broker.until_asked(MetadataRequest)
        broker.connections[0].transport.abort()
    await asyncio.wait([renewing, waiting], timeout=TIMEOUT_S)
    assert renewing.done()
    assert waiting.done()
    reasons = {"refused": "wrong password", "cancelled": "by this client", "lost": "lost"}
    assert reasons[end] in str(connection.closed.result())


async def test_connection_that_is_given_up_tells_why(
    broker: ScriptedBroker, connection: Connection
) -> None:
    broker.scripts[MetadataRequest] = lambda _: Do.NOTHING
    exchange = connection.send(ask_topic("a"), timeout_s=TIMEOUT_S)
    await broker.until_asked(MetadataRequest)
    peer = broker.connections[0]
    connection.give_up(KafkaConnectionError("no sign of life"))
    with pytest.raises(KafkaConnectionError, match="no sign of life"):
        await exchange
    assert "no sign of life" in str(connection.closed.result())
    # The kernel sends nothing again, so that no request arrives after a later one.
    await broker.until(lambda: isinstance(peer.lost_by, ConnectionResetError))


async def test_closed_connection_is_kept_by_no_timer(broker: ScriptedBroker) -> None:
    connection = await connect_to(broker.host, broker.port)
    for timeout_s in (60.0, 30.0):
        await connection.request(ask_topic("a"), timeout_s=timeout_s)
    connection.close()
    await connection.wait_closed()
    await asyncio.sleep(0)
    kept = weakref.ref(connection)
    del connection
    gc.collect()
    assert kept() is None


async def test_whoever_waits_for_the_end_waits_for_the_socket(broker: ScriptedBroker) -> None:
    lost: list[Connection] = []

    class Watched(Connection):
        @override
        def connection_lost(self, exc: Exception | None) -> None:
            lost.append(self)
            super().connection_lost(exc)

    connection = await connect_to(broker.host, broker.port, kind=Watched)
    connection.close()
    await connection.wait_closed()
    assert lost == [connection]


async def test_memory_of_a_closed_connection_is_used_by_the_next(
    broker: ScriptedBroker, connection: Connection
) -> None:
    other = await connect_to(broker.host, broker.port)
    memory = memoryview(connection.get_buffer(-1))
    connection.close()
    assert memoryview(other.get_buffer(-1)).obj is memory.obj
    other.close()
    await other.wait_closed()


@pytest.mark.virtual_time  # of asyncio's own loops, whose sockets outlive them
async def test_a_peer_hears_of_the_end_though_the_loop_is_closed(
    broker: ScriptedBroker, connection: Connection
) -> None:
    connection.hang_up()
    await broker.until(lambda: broker.connections[0].is_closed)
    await connection.wait_closed()
    connection.hang_up()


async def test_a_forked_child_refuses_and_leaves_answers_and_socket_to_the_parent(
    broker: ScriptedBroker, connection: Connection
) -> None:
    broker.scripts[MetadataRequest] = lambda _: Do.NOTHING
    exchange = connection.send(ask_topic("a"), timeout_s=TIMEOUT_S)
    given_up = left_to_parent(connection)
    assert given_up is not None
    descriptor, owner = given_up
    transport = cast("asyncio.Transport", owner)
    assert descriptor == transport.get_extra_info("socket").fileno()
    with pytest.raises(ForkedError):
        await connection.request(ask_topic("b"), timeout_s=TIMEOUT_S)
    assert not exchange.is_done
    assert left_to_parent(connection) is None
    transport.abort()


async def test_close_fails_waiters_and_may_be_called_again(
    broker: ScriptedBroker, connection: Connection
) -> None:
    broker.scripts[MetadataRequest] = lambda _: Do.NOTHING
    request = asyncio.ensure_future(connection.request(ask_topic("a"), timeout_s=TIMEOUT_S))
    await broker.until_asked(MetadataRequest)
    connection.close()
    connection.close()
    with pytest.raises(KafkaConnectionError, match="closed by this client"):
        await request
    await connection.wait_closed()


async def test_request_waits_while_the_peer_takes_nothing(
    broker: ScriptedBroker, connection: Connection
) -> None:
    connection.pause_writing()
    request = asyncio.ensure_future(connection.request(ask_topic("a"), timeout_s=TIMEOUT_S))
    await asyncio.sleep(0)
    assert connection.in_flight_count == 0
    connection.resume_writing()
    assert only_topic(await request) == "a"


async def test_request_fails_when_the_peer_takes_nothing_in_time(connection: Connection) -> None:
    connection.pause_writing()
    with pytest.raises(RequestTimedOutError, match="MetadataRequest was not sent"):
        await connection.request(ask_topic("a"), timeout_s=0.01)


async def test_request_that_waits_to_be_sent_is_told_of_the_loss(
    broker: ScriptedBroker, connection: Connection
) -> None:
    connection.pause_writing()
    request = asyncio.ensure_future(connection.request(ask_topic("a"), timeout_s=TIMEOUT_S))
    await asyncio.sleep(0)
    broker.connections[0].transport.abort()
    with pytest.raises(KafkaConnectionError):
        await request


class BrokenTransport(asyncio.Transport):
    """Refuses to write as uvloop's transports do once they are closed."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        raise RuntimeError("unable to perform operation on closed transport")

    def abort(self) -> None:
        pass

    close = abort


async def test_failing_write_poisons(broker: ScriptedBroker) -> None:
    connection = await connect_to(broker.host, broker.port)
    broker.connections[0].transport.abort()
    await connection.wait_closed()
    fresh = await connect_to(broker.host, broker.port)
    real = broker.connections[1].transport
    broken = BrokenTransport()
    fresh.connection_made(broken)
    told: list[Exchange[MetadataResponse]] = []
    exchange = fresh.send(ask_topic("a"), timeout_s=TIMEOUT_S, on_done=told.append)
    assert not told
    with pytest.raises(KafkaConnectionError, match=r"closed transport$"):
        await exchange
    await asyncio.sleep(0)
    assert told == [exchange]
    assert fresh.is_closed
    assert left_to_parent(fresh) == (-1, broken)
    real.abort()
    await fresh.wait_closed()


async def test_request_that_gets_no_answer_is_refused(connection: Connection) -> None:
    with pytest.raises(IllegalArgumentError, match="acks"):
        connection.send(ProduceRequest(acks=0), timeout_s=TIMEOUT_S)
    assert connection.in_flight_count == 0
