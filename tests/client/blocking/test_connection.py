"""One blocking connection: answers in any order asked for, deadlines, threads, losses."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest

from aiokafka_lite._compat import override
from aiokafka_lite.broker import BrokerConfig
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.client.blocking import BlockingConnection
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.blocking_socket import BlockingSocket
from aiokafka_lite.client.config import Address, parse_address
from aiokafka_lite.client.versions import ApiVersions
from aiokafka_lite.client.wire import MAX_CORRELATION_ID, MAX_THROTTLE_S
from aiokafka_lite.errors import (
    CorrelationIdError,
    ForkedError,
    FrameTooLargeError,
    IllegalArgumentError,
    IncompatibleBrokerVersion,
    InsecureConfigError,
    KafkaConnectionError,
    KafkaError,
    KafkaProtocolError,
    RequestTimedOutError,
)
from aiokafka_lite.helpers import create_ssl_context
from aiokafka_lite.protocol.framing import encode_request
from aiokafka_lite.protocol.messages.classic_group import HeartbeatRequest
from aiokafka_lite.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from aiokafka_lite.protocol.messages.log_offsets import ListOffsetsRequest
from aiokafka_lite.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from aiokafka_lite.protocol.messages.produce import ProduceRequest
from aiokafka_lite.protocol.prepared import PreparedRequest
from aiokafka_lite.structs import TopicPartition
from tests.client.blocking.conftest import TIMEOUT_S, config_of, fetch
from tests.support.forks import left_to_parent


def topic_request(name: str) -> MetadataRequest:
    topic = MetadataRequestTopic(name=name)
    return MetadataRequest(topics=[topic], allow_auto_topic_creation=False)


def ask_for(connection: BlockingConnection, name: str, timeout_s: float = TIMEOUT_S) -> str | None:
    return connection.request(topic_request(name), timeout_s=timeout_s).topics[0].name


# --- Answers ----------------------------------------------------------------------------------
def test_answers_are_kept_for_those_who_ask_later(connection: BlockingConnection) -> None:
    exchanges = [
        connection.send(topic_request(name), timeout_s=TIMEOUT_S) for name in ("a", "b", "c")
    ]
    assert connection.in_flight_count == 3
    names = [connection.receive(exchange).topics[0].name for exchange in exchanges[::-1]]
    assert names == ["c", "b", "a"]
    assert connection.in_flight_count == 0
    assert connection.receive(exchanges[0]).topics[0].name == "a"  # again


def test_answer_that_nobody_asks_for_is_not_taken_for_the_next(
    connection: BlockingConnection,
) -> None:
    connection.send(topic_request("a"), timeout_s=TIMEOUT_S)
    assert ask_for(connection, "b") == "b"


def test_correlation_ids_start_over_and_pass_those_in_flight(
    broker: BrokerThread, connection: BlockingConnection
) -> None:
    with broker.on("ListOffsets").hold() as rule:
        first = connection.send(ListOffsetsRequest(), timeout_s=TIMEOUT_S)
        connection.wire.last_correlation_id = MAX_CORRELATION_ID - 1
        exchanges = [
            connection.send(topic_request(name), timeout_s=TIMEOUT_S) for name in ("a", "b", "c")
        ]
        rule.release()
    connection.receive(first)
    assert [connection.receive(each).topics[0].name for each in exchanges] == ["a", "b", "c"]
    assert connection.wire.last_correlation_id < 10


def test_what_gets_no_answer_is_refused_before_it_is_sent(connection: BlockingConnection) -> None:
    with pytest.raises(IllegalArgumentError, match="acks"):
        connection.send(ProduceRequest(acks=0), timeout_s=TIMEOUT_S)
    connection.wire.offer(ApiVersions({MetadataRequest.api_key: (4, 9)}))
    with pytest.raises(IncompatibleBrokerVersion, match="does not support HeartbeatRequest"):
        connection.send(HeartbeatRequest(), timeout_s=TIMEOUT_S)
    assert ask_for(connection, "a") == "a"
    connection.wire.throttle(MAX_THROTTLE_S)
    begun = time.monotonic()
    with pytest.raises(IllegalArgumentError, match="acks"):
        connection.send(ProduceRequest(acks=0), timeout_s=TIMEOUT_S)
    with pytest.raises(IncompatibleBrokerVersion, match="does not support HeartbeatRequest"):
        connection.send(HeartbeatRequest(), timeout_s=TIMEOUT_S)
    assert time.monotonic() - begun < MAX_THROTTLE_S / 2  # at once


def test_malformed_answer_costs_the_request_and_not_the_connection(
    broker: BrokerThread, connection: BlockingConnection
) -> None:
    broker.on("ListOffsets").on_frame(lambda _, frame: frame[:3] + b"\5" + frame[4:8] + b"\xff")
    with pytest.raises(KafkaProtocolError, match=r"invalid response from .* to ListOffsets"):
        connection.request(ListOffsetsRequest(), timeout_s=TIMEOUT_S)
    assert ask_for(connection, "a") == "a"


def test_answer_to_a_question_not_asked_closes_the_connection(
    broker: BrokerThread, connection: BlockingConnection
) -> None:
    broker.on("Metadata").wrong_correlation_id()
    with pytest.raises(CorrelationIdError, match="no request with this id is in flight"):
        ask_for(connection, "a")
    assert connection.is_closed


def test_small_question_gets_no_huge_answer(
    broker: BrokerThread, connection: BlockingConnection
) -> None:
    broker.on("ListOffsets").on_frame(lambda _, frame: (17 << 20).to_bytes(4, "big") + frame[4:])
    with pytest.raises(FrameTooLargeError, match=r"17825792 bytes, but the limit is 16777216"):
        connection.request(ListOffsetsRequest(), timeout_s=TIMEOUT_S)
    assert connection.is_closed


# --- Deadlines --------------------------------------------------------------------------------
def test_silent_broker_is_given_up_at_the_deadline(
    broker: BrokerThread, connection: BlockingConnection
) -> None:
    broker.on("ListOffsets").silence()
    other = connection.send(topic_request("a"), timeout_s=TIMEOUT_S)
    begun = time.monotonic()
    with pytest.raises(RequestTimedOutError, match=r"ListOffsets v\d+ in 0\.2 s"):
        connection.request(ListOffsetsRequest(), timeout_s=0.2)
    assert 0.19 < time.monotonic() - begun < 5
    assert connection.receive(other).topics[0].name == "a"  # it was answered before
    with pytest.raises(KafkaConnectionError, match="stopped answering"):
        ask_for(connection, "a")


def test_bytes_that_trickle_in_do_not_prolong_the_deadline(
    broker: BrokerThread, connection: BlockingConnection
) -> None:
    broker.on("Metadata").trickle(20)
    begun = time.monotonic()
    with pytest.raises(RequestTimedOutError):
        ask_for(connection, "a" * 200, timeout_s=0.4)
    assert time.monotonic() - begun < 2


def test_an_answer_may_take_long_while_its_bytes_come(
    broker: BrokerThread, connection: BlockingConnection
) -> None:
    broker.create_topic("flights", 500)
    broker.on("Metadata").split(pieces=8, pause_s=0.05)
    begun = time.monotonic()
    response = connection.request(topic_request("flights"), timeout_s=0.2)
    assert len(response.topics[0].partitions) == 500
    assert time.monotonic() - begun > 0.3


def test_large_answer_that_stalls_half_way_is_given_up_at_the_deadline(
    broker: BrokerThread, connection: BlockingConnection
) -> None:
    # Larger than what is read where a frame may begin: the rest is waited for with one call.
    broker.on("Metadata").on_frame(lambda _, frame: (1 << 20).to_bytes(4, "big") + bytes(200_000))
    begun = time.monotonic()
    with pytest.raises(RequestTimedOutError):
        ask_for(connection, "a", timeout_s=0.4)
    assert time.monotonic() - begun < 2
    assert connection.wire.reader.received_bytes == 0
    assert left_to_parent(connection) is None  # the socket is closed


def test_answer_that_came_in_time_is_taken_after_its_deadline(
    broker: BrokerThread, connection: BlockingConnection
) -> None:
    exchange = connection.send(topic_request("a"), timeout_s=0.2)
    time.sleep(0.3)
    assert connection.receive(exchange).topics[0].name == "a"


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_large_answer_that_nobody_has_received_is_taken_after_its_deadline(protocol: str) -> None:
    # As when Spark's writer takes a minute for a batch: the socket's buffer holds a part of it.
    with BrokerThread(BrokerConfig(security_protocol=protocol)) as broker:
        context = None
        if protocol == "SSL":
            context = create_ssl_context(cadata=broker.broker.certificates.ca_pem)
        broker.create_topic("flights", 1)
        answer = PartitionData(
            partition_index=0,
            error_code=0,
            high_watermark=1,
            last_stable_offset=1,
            aborted_transactions=None,
            records=memoryview(bytes(24_000_000)),
        )
        topic = FetchableTopicResponse(topic="flights", partitions=[answer])
        broker.on("Fetch").answer(FetchResponse(responses=[topic]))
        servers = broker.bootstrap_servers
        config = config_of(servers, security_protocol=protocol, ssl_context=context)
        cluster = BlockingCluster(config, receive_buffer_bytes=64 * 1024)
        cluster.refresh(["flights"])
        request = fetch(cluster, TopicPartition("flights", 0))
        connection = cluster.connection(next(iter(cluster.view.nodes)))
        exchange = connection.send(request, timeout_s=0.5)
        time.sleep(0.7)
        records = connection.receive(exchange).responses[0].partitions[0].records
        assert records is not None
        assert len(records) == 24_000_000
        cluster.close()


def test_silent_peer_is_given_up_by_whoever_comes_late(
    broker: BrokerThread, connection: BlockingConnection
) -> None:
    broker.on("Metadata").silence()
    exchange = connection.send(topic_request("a"), timeout_s=0.1)
    time.sleep(0.2)
    begun = time.monotonic()
    with pytest.raises(RequestTimedOutError):
        connection.receive(exchange)
    assert time.monotonic() - begun < 0.1


def open_by(broker: BrokerThread, protocol: str) -> BlockingConnection:
    """Connect to a broker whose listener is of that protocol."""
    context = None
    if protocol == "SSL":
        context = create_ssl_context(cadata=broker.broker.certificates.ca_pem)
    servers = broker.bootstrap_servers
    config = config_of(servers, security_protocol=protocol, ssl_context=context)
    return BlockingConnection.open(parse_address(servers), config)


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_any_timeout_that_kafka_takes_can_be_waited_for(protocol: str) -> None:
    with BrokerThread(BrokerConfig(security_protocol=protocol)) as broker:
        connection = open_by(broker, protocol)
        broker.on("Metadata").delay(0.1)
        assert ask_for(connection, "a", timeout_s=2**31) == "a"  # Integer.MAX_VALUE ms and more
        connection.close()


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_peer_that_takes_nothing_is_given_up(protocol: str) -> None:
    with BrokerThread(BrokerConfig(security_protocol=protocol)) as broker:
        flood(broker, open_by(broker, protocol))


def flood(broker: BrokerThread, connection: BlockingConnection) -> None:
    broker.on("ListOffsets").silence()  # nothing more is read from the connection
    connection.send(ListOffsetsRequest(), timeout_s=TIMEOUT_S)
    request = MetadataRequest(topics=[MetadataRequestTopic(name="a" * 30_000)] * 100)
    begun = time.monotonic()

    def send_many() -> None:
        for _ in range(100):
            connection.send(request, timeout_s=0.2)

    with pytest.raises(KafkaConnectionError, match=r"MetadataRequest .* longer than 0\.2 s"):
        send_many()
    assert time.monotonic() - begun < 20
    assert connection.is_closed


# --- Losses -----------------------------------------------------------------------------------
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("after_bytes", [0, 2, 6, 10])
def test_lost_connection_fails_all_that_have_no_answer(
    broker: BrokerThread, connection: BlockingConnection, after_bytes: int, *, reset: bool
) -> None:
    broker.on("Metadata").delay(0.1)
    broker.on("ListOffsets").disconnect(after_bytes=after_bytes, reset=reset)
    answered = connection.send(topic_request("a"), timeout_s=TIMEOUT_S)
    exchanges = [
        connection.send(ListOffsetsRequest(), timeout_s=TIMEOUT_S),
        connection.send(ListOffsetsRequest(), timeout_s=TIMEOUT_S),
    ]
    if not reset:  # which would take the answer that came before
        assert connection.receive(answered).topics[0].name == "a"
    for exchange in exchanges[::-1]:
        with pytest.raises(KafkaConnectionError, match="lost the connection to 127"):
            connection.receive(exchange)
    with pytest.raises(KafkaConnectionError, match="lost the connection"):
        ask_for(connection, "a")
    assert connection.is_closed
    assert connection.in_flight_count == 0


def test_connection_that_the_peer_closed_at_rest_is_found_out(
    broker: BrokerThread, connection: BlockingConnection
) -> None:
    assert connection.is_usable()
    broker.stop_node(1)
    assert not connection.is_usable()
    assert connection.is_closed
    assert left_to_parent(connection) is None  # the socket is closed


def test_a_request_that_cannot_be_sent_hints_at_no_listener_with_sasl(
    connection: BlockingConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, own = socket.socket.send, threading.current_thread()

    def refuse(sock: socket.socket, encoded: bytes, flags: int = 0) -> int:
        if threading.current_thread() is own:
            raise BrokenPipeError("Broken pipe")
        return send(sock, encoded, flags)

    monkeypatch.setattr(socket.socket, "send", refuse, raising=False)
    with pytest.raises(KafkaConnectionError, match=r"lost the connection .*: Broken pipe$"):
        ask_for(connection, "a")
    assert left_to_parent(connection) is None


def test_a_forked_child_leaves_the_socket_to_the_parent(connection: BlockingConnection) -> None:
    exchange = connection.send(topic_request("a"), timeout_s=TIMEOUT_S)
    given_up = left_to_parent(connection)
    assert given_up is not None
    descriptor, owner = given_up
    with socket.socket(fileno=os.dup(descriptor)) as same:
        assert same.getpeername()
    with pytest.raises(ForkedError):
        ask_for(connection, "b")
    assert not exchange.is_done
    assert left_to_parent(connection) is None
    cast("BlockingSocket", owner).close()


def test_what_is_sent_to_a_peer_that_is_gone_says_so(
    broker: BrokerThread, connection: BlockingConnection
) -> None:
    broker.stop_node(1)

    def send_many() -> None:
        for _ in range(100):
            connection.send(topic_request("a"), timeout_s=TIMEOUT_S)
            time.sleep(0.01)  # what is sent first is answered by a reset

    with pytest.raises(KafkaConnectionError, match="lost the connection"):
        send_many()
    assert connection.is_closed


class Held(PreparedRequest[MetadataResponse]):
    """A request that is in the middle of being sent until it is let go."""

    request_class = MetadataRequest

    def __init__(self) -> None:
        self.is_encoding, self.go_on = threading.Event(), threading.Event()
        self._request = topic_request("a")

    @property
    @override
    def usable_max_version(self) -> int:
        return self._request.usable_max_version

    @override
    def encode(self, version: int, correlation_id: int, client_id: str | None) -> bytes:
        self.is_encoding.set()
        self.go_on.wait(TIMEOUT_S)
        return encode_request(self._request, version, correlation_id, client_id)


def test_connection_that_another_thread_is_sending_on_is_left_to_it(
    broker: BrokerThread, connection: BlockingConnection
) -> None:
    """Else the answer that it gets meanwhile would be taken for the peer's end."""
    request = Held()
    with ThreadPoolExecutor(1) as executor:
        sending = executor.submit(connection.send, request, timeout_s=TIMEOUT_S)
        request.is_encoding.wait(TIMEOUT_S)
        broker.stop_node(1)  # there is something to be read
        assert connection.is_usable()
        request.go_on.set()
        exchange = sending.result()
    with pytest.raises(KafkaConnectionError, match="lost the connection"):
        connection.receive(exchange)
    assert not connection.is_usable()


def test_connection_with_an_answer_on_its_way_is_usable(connection: BlockingConnection) -> None:
    exchange = connection.send(topic_request("a"), timeout_s=TIMEOUT_S)
    time.sleep(0.05)
    assert connection.is_usable()
    connection.receive(exchange)
    assert connection.is_usable()
    with ThreadPoolExecutor(1) as executor:  # whose requests wait for nobody
        assert executor.submit(ask_for, connection, "b").result() == "b"


def test_nothing_listens_says_so_for_every_address(broker: BrokerThread, address: Address) -> None:
    broker.stop_node(1)
    config = config_of(broker.bootstrap_servers)
    with pytest.raises(KafkaConnectionError, match=r"cannot connect to 127.*connection refused"):
        BlockingConnection.open(address, config)
    with pytest.raises(
        KafkaConnectionError, match=r"cannot connect to localhost.*127\.0\.0\.1: conn"
    ):
        BlockingConnection.open(address._replace(host="localhost"), config)
    with pytest.raises(KafkaConnectionError, match=r"cannot resolve .*\.invalid.*advertised"):
        BlockingConnection.open(address._replace(host="kafka.invalid"), config)


@pytest.mark.parametrize(
    ("host", "port"),
    [("127.0.0.1", 70_000), ("127.0.0.1", -1), ("", 9092), (".test", 9092), ("a\0b", 9092)],
)
def test_address_that_is_none_is_no_broker(host: str, port: int) -> None:
    config = config_of("127.0.0.1")
    with pytest.raises(KafkaConnectionError, match=r"cannot (connect to|resolve)"):
        BlockingConnection.open(Address(host, port), config)


def test_name_with_several_addresses_is_tried_at_each(
    broker: BrokerThread, address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = socket.getaddrinfo

    def resolve_both(host: object, port: object, **settings: object) -> list[tuple[object, ...]]:
        if host != b"kafka.test" or settings.get("flags"):
            return resolve(host, port, **settings)  # type: ignore[arg-type, return-value]
        kind = socket.AF_INET, socket.SOCK_STREAM, 6, ""
        return [(*kind, ("127.0.0.2", port)), (*kind, ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve_both)
    named = address._replace(host="kafka.test")
    connection = BlockingConnection.open(named, config_of(broker.bootstrap_servers))
    assert ask_for(connection, "a") == "a"
    connection.close()
    broker.stop_node(1)
    with pytest.raises(KafkaConnectionError, match=r"127\.0\.0\.2: .*; 127\.0\.0\.1: conn"):
        BlockingConnection.open(named, config_of(broker.bootstrap_servers))


def test_peer_that_says_nothing_is_no_kafka_listener(
    broker: BrokerThread, address: Address
) -> None:
    broker.on_connect().silence()
    config = config_of(broker.bootstrap_servers, connect_timeout_s=0.2)
    with pytest.raises(KafkaConnectionError, match="while API versions were negotiated"):
        BlockingConnection.open(address, config)


def test_stranger_is_told_by_its_first_bytes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = Address("127.0.0.1", server.getsockname()[1])

        def greet() -> None:
            peer, _ = server.accept()
            with peer:
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                peer.recv(1000)

        with ThreadPoolExecutor(1) as executor:
            greeting = executor.submit(greet)
            with pytest.raises(FrameTooLargeError, match="looks like an HTTP server"):
                BlockingConnection.open(address, config_of("unused"))
            greeting.result()


def test_credentials_are_not_sent_elsewhere_in_the_clear() -> None:
    config = config_of("unused", security_protocol="SASL_PLAINTEXT")
    with pytest.raises(InsecureConfigError, match=r"kafka\.test:9092"):
        BlockingConnection.open(Address("kafka.test", 9092), config)


# --- Throttles --------------------------------------------------------------------------------
def test_throttle_is_waited_out_before_the_next_request(
    broker: BrokerThread, address: Address
) -> None:
    now, slept = [1_000.0], list[float]()

    def sleep(duration_s: float) -> None:
        slept.append(duration_s)
        now[0] += duration_s

    connection = BlockingConnection.open(
        address, config_of(broker.bootstrap_servers), clock=lambda: now[0], sleep=sleep
    )
    for throttle_s, expected_s in ((3.0, 3.0), (0.5, 0.5), (1e6, MAX_THROTTLE_S)):
        broker.on("Metadata").throttle(throttle_s)
        ask_for(connection, "a")
        ask_for(connection, "a")
        ask_for(connection, "a")
        assert slept == [pytest.approx(expected_s)]
        slept.clear()
    connection.close()


# --- Damage and interruptions ------------------------------------------------------------------
def test_damaged_answers_are_errors_of_ours_or_answers(broker: BrokerThread) -> None:
    address = parse_address(broker.bootstrap_servers)
    config = config_of(broker.bootstrap_servers)
    outcomes: set[type[MetadataResponse | KafkaProtocolError]] = set()
    with broker.on("Metadata").corrupt("bytes", times=None, count=3):
        # A damaged throttle is believed as any other.
        connection = BlockingConnection.open(address, config, sleep=lambda _: None)
        for _ in range(200):
            try:
                outcomes.add(type(connection.request(MetadataRequest(), timeout_s=TIMEOUT_S)))
            except KafkaProtocolError as error:
                outcomes.add(type(error))
        assert not connection.is_closed  # frames carry their size: it is in step
    assert {MetadataResponse, KafkaProtocolError} >= outcomes
    assert len(outcomes) == 2
    connection.close()


@pytest.mark.parametrize("by", [-3, 3])
def test_answer_of_another_length_than_announced_is_found_out(
    broker: BrokerThread, connection: BlockingConnection, by: int
) -> None:
    broker.on("Metadata").corrupt("length", by=by)
    with pytest.raises((KafkaProtocolError, RequestTimedOutError)):
        ask_for(connection, "a", timeout_s=0.2)
    with pytest.raises(KafkaError):
        ask_for(connection, "b", timeout_s=0.2)
    assert connection.is_closed


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers here")
def test_interrupted_wait_closes_the_connection(
    broker: BrokerThread, connection: BlockingConnection
) -> None:
    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    broker.on("Metadata").silence()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            ask_for(connection, "a")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert connection.is_closed
    with pytest.raises(KafkaConnectionError, match="an exception interrupted"):
        ask_for(connection, "b")


# --- Threads ----------------------------------------------------------------------------------
def test_one_thread_receives_while_others_send(connection: BlockingConnection) -> None:
    """Threads that ask at once get each its own answers."""

    def ask(thread: int) -> list[str | None]:
        return [ask_for(connection, f"t{thread}-{n}") for n in range(30)]

    with ThreadPoolExecutor(4) as executor:
        answers = list(executor.map(ask, range(4)))
    assert answers == [[f"t{thread}-{n}" for n in range(30)] for thread in range(4)]
    assert connection.in_flight_count == 0


def test_closing_wakes_up_who_waits_in_another_thread(
    broker: BrokerThread, connection: BlockingConnection
) -> None:
    broker.on("ListOffsets").silence()
    exchange = connection.send(ListOffsetsRequest(), timeout_s=TIMEOUT_S)
    is_waiting = threading.Event()

    def wait() -> float:
        is_waiting.set()
        with pytest.raises(KafkaConnectionError, match="closed by this client"):
            connection.receive(exchange)
        return time.monotonic()

    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(wait)
        is_waiting.wait()
        time.sleep(0.05)
        begun = time.monotonic()
        connection.close()
        assert waiting.result() - begun < TIMEOUT_S / 2
    connection.close()  # idempotent


def test_requests_can_be_sent_while_another_thread_waits(
    broker: BrokerThread, connection: BlockingConnection
) -> None:
    with broker.on("ListOffsets").hold() as rule, ThreadPoolExecutor(1) as executor:
        exchange = connection.send(ListOffsetsRequest(), timeout_s=TIMEOUT_S)
        waiting = executor.submit(connection.receive, exchange)
        time.sleep(0.05)
        later = connection.send(topic_request("a"), timeout_s=TIMEOUT_S)
        assert not waiting.done()
        rule.release()
        assert connection.receive(later).topics[0].name == "a"
        waiting.result(TIMEOUT_S)
