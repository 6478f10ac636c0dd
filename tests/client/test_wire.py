"""A connection without its socket: what may be sent, whose answers come, and what ends it."""

from __future__ import annotations

import itertools
import math
import random
import struct
import subprocess
import sys
from collections.abc import Callable

import pytest

from aiokafka_lite.client.config import Address
from aiokafka_lite.client.frames import PIECE_BYTES, UNCHECKED_BYTES
from aiokafka_lite.client.versions import ApiVersions
from aiokafka_lite.client.wire import (
    LEAST_BYTES_PER_S,
    LEAST_RENEWAL_S,
    LONG_FRAME_BYTES,
    MAX_CORRELATION_ID,
    MAX_SMALL_ANSWER_BYTES,
    MAX_THROTTLE_S,
    RENEWED_AT,
    SLOW_S,
    TRANSITIONS,
    Exchange,
    Wire,
    WireState,
)
from aiokafka_lite.errors import (
    CorrelationIdError,
    ForkedError,
    FrameTooLargeError,
    IllegalArgumentError,
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaError,
    KafkaProtocolError,
    RequestTimedOutError,
)
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from aiokafka_lite.protocol.messages.group_members import HeartbeatRequest, HeartbeatResponse
from aiokafka_lite.protocol.messages.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
)
from aiokafka_lite.protocol.messages.produce import ProduceRequest
from aiokafka_lite.protocol.messages.sasl import (
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from aiokafka_lite.protocol.schema import Request, Response
from tests.support.frames import request_in

LIMIT_BYTES = 64 * 1024 * 1024
TIMEOUT_S = 30.0


class Clock:
    """Tells the time that a test has set."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def young(clock: Clock) -> Wire:
    """A wire that is being opened, of a broker that offers all that we speak."""
    wire = Wire(
        Address("kafka.test", 9092),
        client_id="tests",
        max_frame_bytes=LIMIT_BYTES,
        node_id=1,
        clock=clock,
    )
    classes: list[type[Request[Response]]] = [
        ApiVersionsRequest,
        FetchRequest,
        HeartbeatRequest,
        MetadataRequest,
        ProduceRequest,
        SaslHandshakeRequest,
    ]
    ranges = {cls.api_key: (cls.min_version, cls.max_version) for cls in classes}
    wire.offer(ApiVersions(ranges))
    return wire


@pytest.fixture
def wire(young: Wire) -> Wire:
    young.trust()
    return young


def ask(
    wire: Wire, request: Request[Response] | None = None, timeout_s: float = TIMEOUT_S
) -> Exchange[Response]:
    pending: Exchange[Response] = Exchange(wire)
    wire.ask(pending, request or HeartbeatRequest(), timeout_s)
    return pending


def id_of(wire: Wire, pending: Exchange[Response]) -> int:
    return next(number for number, each in wire.in_flight.items() if each is pending)


def answer(wire: Wire, pending: Exchange[Response], response: Response) -> bytes:
    return framing.encode_response(response, pending.version, id_of(wire, pending))


def feed(wire: Wire, stream: bytes) -> list[Exchange[Response]]:
    """Have bytes arrive; return what they answer."""
    answered: list[Exchange[Response]] = []
    while stream:
        memory = wire.reader.missing()
        count = min(len(memory), len(stream))
        memory[:count] = stream[:count]
        stream = stream[count:]
        while (pending := wire.receive(count)) is not None:
            answered.append(pending)
            count = 0
    return answered


# --- Requests and answers ---------------------------------------------------------------------
def test_what_is_sent_is_the_request_in_the_version_that_both_speak(wire: Wire) -> None:
    wire.offer(ApiVersions({HeartbeatRequest.api_key: (0, 2)}))
    pending: Exchange[HeartbeatResponse] = Exchange(wire)
    sent = wire.ask(pending, HeartbeatRequest(group_id="g"), TIMEOUT_S)
    frame = framing.decode_request(memoryview(sent)[4:])
    assert (frame.api_key, frame.version, frame.client_id) == (HeartbeatRequest.api_key, 2, "tests")
    assert request_in(frame) == HeartbeatRequest(group_id="g")
    assert wire.in_flight == {frame.correlation_id: pending}


def test_no_newer_version_is_used_than_whoever_asks_allows(wire: Wire) -> None:
    pending: Exchange[HeartbeatResponse] = Exchange(wire)
    wire.ask(pending, HeartbeatRequest(), TIMEOUT_S, 1)
    assert pending.version == 1
    assert ask(wire).version == HeartbeatRequest.max_version


def test_a_version_is_spoken_unnegotiated_until_the_broker_has_offered_some(young: Wire) -> None:
    request = ApiVersionsRequest()
    young.offer(ApiVersions({}))
    with pytest.raises(IncompatibleBrokerVersion):
        ask(young, request)
    young.speak(request, 0)
    pending = ask(young, request)
    assert pending.version == 0
    feed(young, answer(young, pending, ApiVersionsResponse(error_code=35)))
    young.offer(ApiVersions({ApiVersionsRequest.api_key: (0, 2)}))
    assert ask(young, request).version == 2


def test_answers_find_their_requests_in_any_order_and_in_any_pieces(wire: Wire) -> None:
    pending = [ask(wire) for _ in range(3)]
    answers = [
        answer(wire, each, HeartbeatResponse(error_code=code)) for code, each in enumerate(pending)
    ]
    stream = b"".join(reversed(answers))
    answered = [each for byte in stream for each in feed(wire, bytes([byte]))]
    assert answered == pending[::-1]
    codes = [each.result() for each in pending]
    assert codes == [HeartbeatResponse(error_code=code) for code in range(3)]
    assert not wire.in_flight


def test_a_late_answer_is_dropped_and_not_taken_for_another(wire: Wire) -> None:
    given_up, wanted = ask(wire), ask(wire)
    late = answer(wire, given_up, HeartbeatResponse())
    given_up.fail(RequestTimedOutError("for now"))
    assert feed(wire, late) == [given_up]
    assert given_up.frame is None
    assert not wanted.is_done


def test_correlation_ids_start_over_and_pass_those_in_flight(wire: Wire) -> None:
    first = ask(wire)
    assert id_of(wire, first) == 1
    wire.last_correlation_id = MAX_CORRELATION_ID - 1
    ids = [id_of(wire, ask(wire)) for _ in range(3)]
    assert ids == [MAX_CORRELATION_ID, 2, 3]
    feed(wire, answer(wire, first, HeartbeatResponse()))
    wire.last_correlation_id = MAX_CORRELATION_ID
    assert id_of(wire, ask(wire)) == 1


def test_what_gets_no_answer_is_refused(wire: Wire) -> None:
    with pytest.raises(IllegalArgumentError, match="acks"):
        ask(wire, ProduceRequest(acks=0))
    assert not wire.in_flight


def test_malformed_answer_costs_the_request_only(wire: Wire) -> None:
    broken, fine = ask(wire), ask(wire)
    body = answer(wire, broken, HeartbeatResponse())[4:-1]
    feed(wire, struct.pack(">i", len(body)) + body + answer(wire, fine, HeartbeatResponse()))
    with pytest.raises(
        KafkaProtocolError, match=r"invalid response from kafka.test:9092 \(node 1\) to"
    ):
        broken.result()
    assert fine.result() == HeartbeatResponse()


def test_a_result_is_not_there_before_the_answer(wire: Wire) -> None:
    with pytest.raises(RuntimeError, match=r"no response from .* has arrived yet"):
        ask(wire).result()


@pytest.mark.parametrize("size", [1_000, LONG_FRAME_BYTES - 1, LONG_FRAME_BYTES])
def test_only_a_long_answer_comes_in_pieces(wire: Wire, size: int) -> None:
    pending: Exchange[FetchResponse] = Exchange(wire)
    wire.ask(pending, FetchRequest(), TIMEOUT_S)

    def encoded(records_size: int) -> bytes:
        partition = PartitionData(partition_index=3, records=bytes(records_size))
        topic = FetchableTopicResponse(partitions=[partition])
        response = FetchResponse(throttle_time_ms=500, responses=[topic])
        return framing.encode_response(response, pending.version, 1)

    overhead = len(encoded(size * 3 // 4)) - size * 3 // 4
    frame = encoded(4 + size - overhead)
    assert len(frame) == 4 + size
    feed(wire, frame)
    _, pieces = pending.result_in_pieces(PartitionData)
    assert (pieces is not None) == (size == LONG_FRAME_BYTES)
    assert wire.muted_until == 1000.5
    if pieces is not None:
        (topic,) = pieces
        assert isinstance(topic, FetchableTopicResponse)


# --- What breaks a connection -----------------------------------------------------------------
def test_an_answer_to_no_request_is_out_of_step(wire: Wire) -> None:
    ask(wire)
    with pytest.raises(CorrelationIdError, match="a response with correlation id 12345, but no"):
        feed(wire, struct.pack(">ii", 4, 12345))


def test_an_impossible_size_breaks_the_protocol(wire: Wire) -> None:
    with pytest.raises(KafkaProtocolError, match="announces a response of 3 bytes"):
        feed(wire, struct.pack(">i", 3))


@pytest.mark.parametrize(
    ("request_", "limit_bytes"),
    [
        (HeartbeatRequest(), MAX_SMALL_ANSWER_BYTES),
        (FetchRequest(), LIMIT_BYTES),
        (MetadataRequest(), LIMIT_BYTES),
    ],
)
def test_an_answer_may_be_as_large_as_its_question_lets_expect(
    wire: Wire, request_: Request[Response], limit_bytes: int
) -> None:
    ask(wire, request_)
    ask(wire)
    assert wire.answer_limit_bytes() == limit_bytes
    with pytest.raises(FrameTooLargeError, match=f"the limit is {limit_bytes}"):
        feed(wire, struct.pack(">i", limit_bytes + 1))


def test_answers_stay_small_until_opening_is_over(young: Wire) -> None:
    ask(young, FetchRequest())
    assert young.answer_limit_bytes() == UNCHECKED_BYTES
    young.trust()
    assert young.answer_limit_bytes() == LIMIT_BYTES


def test_everybody_gets_the_first_error_and_a_copy_of_his_own(wire: Wire) -> None:
    pending = [ask(wire), ask(wire)]
    first = KafkaConnectionError("the first")
    assert wire.poison(first)
    assert not wire.poison(KafkaConnectionError("the second"))
    assert wire.error is first
    assert wire.state is WireState.POISONED
    assert not wire.in_flight
    raised: list[BaseException] = []
    for use in (pending[0].result, pending[1].result, lambda: ask(wire)):
        with pytest.raises(KafkaConnectionError, match="the first") as caught:
            use()
        raised.append(caught.value)
    assert len({id(each) for each in (*raised, first)}) == 4


def test_an_answer_that_was_there_before_the_poison_stays(wire: Wire) -> None:
    answered, unanswered = ask(wire), ask(wire)
    feed(wire, answer(wire, answered, HeartbeatResponse()))
    wire.poison(KafkaConnectionError("too late"))
    assert answered.result() == HeartbeatResponse()
    assert unanswered.error is not None


def test_a_forked_child_refuses_and_leaves_those_who_wait_to_the_parent(wire: Wire) -> None:
    pending = ask(wire)
    wire.orphan()
    with pytest.raises(ForkedError, match=r"kafka\.test:9092.* belongs to the parent process"):
        ask(wire)
    assert not pending.is_done


@pytest.mark.parametrize(
    ("answered_count", "is_sending", "has_hint"),
    [(0, False, True), (0, True, False), (1, False, False)],
)
def test_a_listener_that_may_ask_for_sasl_is_guessed_when_nothing_was_answered(
    young: Wire, answered_count: int, is_sending: bool, has_hint: bool
) -> None:
    feed(young, answer(young, ask(young), HeartbeatResponse()))  # of opening
    young.trust()
    for _ in range(answered_count):
        feed(young, answer(young, ask(young), HeartbeatResponse()))
    ask(young)
    cause = ConnectionResetError()
    error = young.lost(cause, is_sending=is_sending)
    assert ("requires SASL" in error.args[0]) == has_hint
    assert error.__cause__ is cause


# --- Deadlines and throttles ------------------------------------------------------------------
def test_the_oldest_request_without_an_answer_means_a_silent_broker(
    wire: Wire, clock: Clock
) -> None:
    pending = ask(wire, timeout_s=5.0)
    clock.now_s += 5.0
    with pytest.raises(
        KafkaConnectionError,
        match="stopped answering, so the connection was closed: no answer from",
    ):
        wire.expire()
    with pytest.raises(RequestTimedOutError, match="in 5 s"):
        pending.result()


def test_a_younger_request_fails_alone_and_its_deadline_starts_over(
    wire: Wire, clock: Clock
) -> None:
    patient, hasty = ask(wire, timeout_s=60.0), ask(wire, timeout_s=5.0)
    clock.now_s += 6.0
    assert wire.expire() == 1011.0
    error = hasty.error
    assert isinstance(error, RequestTimedOutError)
    assert not patient.is_done
    feed(wire, answer(wire, patient, HeartbeatResponse()))
    clock.now_s = 1011.0
    with pytest.raises(KafkaConnectionError, match="stopped answering"):
        wire.expire()  # now it is the oldest
    assert hasty.error is error


def test_bytes_of_an_answer_move_the_deadline_of_the_oldest_request(
    wire: Wire, clock: Clock
) -> None:
    pending = ask(wire, FetchRequest(), timeout_s=10.0)
    records = memoryview(bytes(1_000_000))
    topic = FetchableTopicResponse(partitions=[PartitionData(records=records)])
    frame = answer(wire, pending, FetchResponse(responses=[topic]))
    part = len(frame) // 10
    for number in range(9):
        clock.now_s += 6.0
        feed(wire, frame[number * part : (number + 1) * part])
        assert wire.expire() > clock.now_s
    assert pending.silent_since == clock.now_s
    silent_at = clock.now_s + 10.0
    clock.now_s += 9.0
    assert wire.expire() == silent_at
    clock.now_s = silent_at
    with pytest.raises(KafkaConnectionError, match="stopped answering"):
        wire.expire()


@pytest.mark.parametrize(
    ("came_bytes", "at_s", "is_coming"),
    [
        (10 * LEAST_BYTES_PER_S, 1.0, True),
        (10 * LEAST_BYTES_PER_S - 1, 1.0, False),
        (20 * LEAST_BYTES_PER_S, 0.0, False),  # its time is over since the latest byte
    ],
)
def test_an_answer_moves_its_deadline_if_it_comes_at_the_least_speed(
    wire: Wire, clock: Clock, came_bytes: int, at_s: float, is_coming: bool
) -> None:
    pending = ask(wire, FetchRequest(), timeout_s=10.0)
    hasty = ask(wire, timeout_s=5.0)
    topic = FetchableTopicResponse(partitions=[PartitionData(records=memoryview(bytes(50_000)))])
    frame = answer(wire, pending, FetchResponse(responses=[topic]))
    clock.now_s += at_s
    feed(wire, frame[:came_bytes])
    clock.now_s = 1010.0
    if is_coming:
        assert wire.expire() == 1011.0
        assert not pending.is_done
        assert isinstance(hasty.error, RequestTimedOutError)  # at the same time
        return
    with pytest.raises(KafkaConnectionError, match="stopped answering"):
        wire.expire()


def test_an_answer_that_trickles_after_its_first_part_moves_no_deadline(
    wire: Wire, clock: Clock
) -> None:
    pending = ask(wire, FetchRequest(), timeout_s=10.0)
    topic = FetchableTopicResponse(partitions=[PartitionData(records=memoryview(bytes(50_000)))])
    frame = answer(wire, pending, FetchResponse(responses=[topic]))
    clock.now_s += 1.0
    feed(wire, frame[:40_000])
    clock.now_s = 1010.0
    assert wire.expire() == 1011.0
    feed(wire, frame[40_000:40_100])
    clock.now_s = 1011.0
    with pytest.raises(KafkaConnectionError, match="stopped answering"):
        wire.expire()


def test_after_a_pause_within_a_large_answer_its_bytes_are_read_as_they_come(
    wire: Wire, clock: Clock
) -> None:
    pending = ask(wire, FetchRequest())
    records = memoryview(bytes(4 * PIECE_BYTES))
    topic = FetchableTopicResponse(partitions=[PartitionData(records=records)])
    frame = answer(wire, pending, FetchResponse(responses=[topic]))
    wanted = []
    for number, pause_s in enumerate((0.0, SLOW_S, SLOW_S + 0.1)):
        clock.now_s += pause_s
        feed(wire, frame[number * 70_000 : (number + 1) * 70_000])
        wanted.append(wire.reader.wanted_bytes)
    assert wanted == [PIECE_BYTES, PIECE_BYTES, 1]


def test_bytes_of_the_answer_before_do_not_move_a_deadline(wire: Wire, clock: Clock) -> None:
    first = ask(wire, FetchRequest(), timeout_s=10.0)
    topic = FetchableTopicResponse(partitions=[PartitionData(records=memoryview(bytes(100_000)))])
    frame = answer(wire, first, FetchResponse(responses=[topic]))
    feed(wire, frame[:-1])
    second = ask(wire, timeout_s=5.0)
    feed(wire, frame[-1:])
    assert first.is_done
    assert not second.is_done
    clock.now_s += 5.0
    with pytest.raises(KafkaConnectionError, match="stopped answering"):
        wire.expire()


@pytest.mark.parametrize("size", [100, 100_000])
def test_an_answer_that_trickles_moves_no_deadline(wire: Wire, clock: Clock, size: int) -> None:
    pending = ask(wire, FetchRequest(), timeout_s=10.0)
    topic = FetchableTopicResponse(partitions=[PartitionData(records=memoryview(bytes(size)))])
    frame = answer(wire, pending, FetchResponse(responses=[topic]))
    assert not pending.is_arriving
    for second in range(10):
        feed(wire, frame[second : second + 1])
        assert second == 3 or pending.is_arriving  # the size alone is no part of a large one
        clock.now_s += 1.0
    with pytest.raises(KafkaConnectionError, match="stopped answering"):
        wire.expire()


def test_without_requests_there_is_no_deadline(wire: Wire) -> None:
    assert wire.expire() == math.inf


@pytest.mark.parametrize(("asked_s", "muted_s"), [(5.0, 5.0), (1e6, MAX_THROTTLE_S)])
def test_a_deadline_counts_from_the_end_of_a_throttle_which_is_a_minute_at_most(
    wire: Wire, asked_s: float, muted_s: float
) -> None:
    wire.throttle(asked_s)
    wire.throttle(0.0)  # takes nothing back
    assert wire.muted_until == 1000.0 + muted_s
    assert ask(wire, timeout_s=2.0).deadline == 1000.0 + muted_s + 2.0


@pytest.mark.parametrize(
    ("request_", "response", "muted_until"),
    [
        (HeartbeatRequest(), HeartbeatResponse(throttle_time_ms=250), 1000.25),
        (HeartbeatRequest(), HeartbeatResponse(throttle_time_ms=1), 1000.001),
        (HeartbeatRequest(), HeartbeatResponse(throttle_time_ms=0), 0.0),
        (SaslHandshakeRequest(), SaslHandshakeResponse(), 0.0),  # which has no throttle
    ],
)
def test_an_answer_mutes_once_it_is_decoded(
    wire: Wire, request_: Request[Response], response: Response, muted_until: float
) -> None:
    pending = ask(wire, request_)
    feed(wire, answer(wire, pending, response))
    assert wire.muted_until == 0.0
    pending.result()
    assert wire.muted_until == muted_until


# --- Sessions and states ----------------------------------------------------------------------
@pytest.mark.parametrize("lifetime_s", [100.0, 1.0])
def test_a_session_is_renewed_well_before_it_ends_but_not_at_once(
    wire: Wire, lifetime_s: float
) -> None:
    wire.begin_session(lifetime_s)
    rng = random.Random(1)
    least, most = (max(part * lifetime_s, LEAST_RENEWAL_S) for part in RENEWED_AT)
    for _ in range(20):
        assert 1000.0 + least <= wire.renewal_at(rng) <= 1000.0 + most


def test_a_session_without_end_is_not_renewed(wire: Wire) -> None:
    wire.begin_session(0)
    assert wire.renewal_at(random.Random(1)) == math.inf


def test_a_retired_wire_takes_answers_and_no_requests(wire: Wire) -> None:
    pending = ask(wire)
    wire.retire()
    wire.retire()
    with pytest.raises(KafkaConnectionError, match="is being closed: try again"):
        ask(wire)
    assert feed(wire, answer(wire, pending, HeartbeatResponse())) == [pending]


def test_a_renewal_opens_no_wire_that_was_retired_meanwhile(wire: Wire) -> None:
    wire.begin_renewal()
    wire.end_renewal()
    assert wire.state is WireState.OPEN
    wire.begin_renewal()
    assert wire.state is WireState.RENEWING
    ask(wire)  # who authenticates may
    wire.retire()
    wire.end_renewal()
    assert wire.state is WireState.RETIRED
    wire.begin_renewal()
    assert wire.state is WireState.RETIRED


_MOVES: dict[WireState, Callable[[Wire], object]] = {
    WireState.OPEN: Wire.trust,
    WireState.RENEWING: Wire.begin_renewal,
    WireState.RETIRED: Wire.retire,
    WireState.POISONED: lambda wire: wire.poison(KafkaError("an error")),
}


@pytest.mark.parametrize(("before", "after"), [*itertools.product(WireState, _MOVES)])
def test_a_wire_moves_as_the_table_says_and_else_stays_where_it_is(
    young: Wire, before: WireState, after: WireState
) -> None:
    for step in {WireState.RENEWING: [WireState.OPEN], WireState.RETIRED: [WireState.OPEN]}.get(
        before, []
    ):
        _MOVES[step](young)
    if before is not WireState.OPENING:
        _MOVES[before](young)
    assert young.state is before
    try:
        _MOVES[after](young)
    except AssertionError:
        assert before is not WireState.POISONED
        assert after not in TRANSITIONS[before]
    assert young.state is (after if after in TRANSITIONS[before] else before)


def test_a_bootstrap_server_is_named_by_the_node_that_it_is(wire: Wire) -> None:
    wire.name_node(7)
    assert wire.node_id == 7
    with pytest.raises(KafkaProtocolError, match=r"\(node 7\) announces"):
        feed(wire, struct.pack(">i", 0))


def test_it_needs_no_event_loop_and_no_tls() -> None:
    script = (
        "import sys, aiokafka_lite.client.wire\n"
        "sys.exit(sorted({'asyncio', 'ssl'} & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
