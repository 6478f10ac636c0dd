"""What happens while no loop runs, and what ends a call that waits."""

from __future__ import annotations

import asyncio
import errno
import gc
import selectors
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import pytest

from aiokafka_lite.broker import BrokerConfig
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.client import blocking_cluster as blocking_cluster_module
from aiokafka_lite.client import connection as connection_module
from aiokafka_lite.client.blocking_cluster import BlockingCluster, OwnLoop
from aiokafka_lite.errors import (
    ClientClosedError,
    CoordinatorNotAvailableError,
    IllegalStateError,
    KafkaConnectionError,
    RequestTimedOutError,
)
from aiokafka_lite.helpers import create_ssl_context
from aiokafka_lite.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from aiokafka_lite.protocol.messages.metadata import MetadataRequest
from aiokafka_lite.structs import TopicPartition
from tests.client.blocking.conftest import TIMEOUT_S, config_of, fetch
from tests.support import inside

NewCluster = Callable[..., BlockingCluster]
T = TypeVar("T")
REQUEST = MetadataRequest(topics=[])


@pytest.fixture
def cluster(broker: BrokerThread, new_cluster: NewCluster) -> BlockingCluster:
    cluster = new_cluster(config_of(broker.bootstrap_servers))
    cluster.refresh([])
    return cluster


# --- No loop runs ------------------------------------------------------------------------------
def test_answers_are_kept_for_those_who_ask_later(cluster: BlockingCluster) -> None:
    connection = cluster.connection(1)
    first, second = (connection.send(REQUEST, timeout_s=TIMEOUT_S) for _ in range(2))
    assert cluster.receive(second).brokers
    assert cluster.receive(first).brokers


def test_answer_that_came_in_time_is_taken_after_its_deadline(cluster: BlockingCluster) -> None:
    exchange = cluster.connection(1).send(REQUEST, timeout_s=0.2)
    time.sleep(0.3)
    assert cluster.receive(exchange).brokers


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_large_answer_that_nobody_has_received_is_taken_after_its_deadline(
    protocol: str, new_cluster: NewCluster
) -> None:
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
        cluster = new_cluster(config, receive_buffer_bytes=64 * 1024)
        cluster.refresh(["flights"])
        request = fetch(cluster, TopicPartition("flights", 0))
        connection = cluster.connection(next(iter(cluster.view.nodes)))
        exchange = connection.send(request, timeout_s=0.5)
        time.sleep(0.7)
        records = cluster.receive(exchange).responses[0].partitions[0].records
        assert records is not None
        assert len(records) == 24_000_000


def test_silent_peer_is_given_up_by_whoever_comes_late(
    broker: BrokerThread, cluster: BlockingCluster
) -> None:
    connection = cluster.connection(1)
    broker.on("Metadata").silence()
    exchange = connection.send(REQUEST, timeout_s=0.1)
    time.sleep(0.3)
    with pytest.raises(RequestTimedOutError, match=r"no answer .* in 0\.1 s"):
        cluster.receive(exchange)
    assert cluster.request(1, REQUEST).brokers


# --- Ends --------------------------------------------------------------------------------------
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no timers here")
def test_interrupted_wait_closes_the_connections(
    broker: BrokerThread, cluster: BlockingCluster
) -> None:
    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    connection = cluster.connection(1)
    broker.on("Metadata").silence()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            cluster.request(1, REQUEST)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert cluster.request(1, REQUEST).brokers
    assert connection.is_closed


class Interruption(BaseException):
    """What a signal handler may raise."""


def test_call_that_is_interrupted_between_two_callbacks_ends(cluster: BlockingCluster) -> None:
    for kind in (KeyboardInterrupt, Interruption, ValueError):
        connection = cluster.connection(1)
        with pytest.raises(kind):
            inside.wait_interrupted(cluster, kind)
        assert connection.is_closed
        assert cluster.request(1, REQUEST).brokers


def test_loop_that_lost_a_callback_runs_no_other_call() -> None:
    own = OwnLoop()
    for error in (KafkaConnectionError(), ValueError()):
        with pytest.raises(type(error)):
            own.run(failing(error)())
        assert own.is_broken == isinstance(error, ValueError)
    with pytest.raises(KafkaConnectionError, match="was closed"):
        own.run(asyncio.sleep(0))
    own.close()


def test_failed_call_leaves_the_loop_that_another_thread_has_made_since(
    broker: BrokerThread, new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, may_run = threading.Event(), threading.Event()
    main = threading.current_thread()

    class LateLoop(OwnLoop):
        def run(self, coroutine: Coroutine[object, None, T]) -> T:
            if threading.current_thread() is not main:
                late.set()
                may_run.wait(TIMEOUT_S)
            return super().run(coroutine)

    monkeypatch.setattr(blocking_cluster_module, "OwnLoop", LateLoop)
    cluster = new_cluster(config_of(broker.bootstrap_servers))
    cluster.refresh([])
    with ThreadPoolExecutor(1) as executor:
        call = executor.submit(cluster.request, 1, REQUEST)
        assert late.wait(TIMEOUT_S)
        with pytest.raises(ValueError):
            inside.wait_interrupted(cluster, ValueError)
        connection = cluster.connection(1)
        may_run.set()
        with pytest.raises(KafkaConnectionError):
            call.result(TIMEOUT_S)
    assert cluster.connection(1) is connection


def test_call_does_not_use_a_loop_that_another_thread_has_just_broken(
    broker: BrokerThread, new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, calls = threading.current_thread(), []

    class BreakingLoop(OwnLoop):
        def run(self, coroutine: Coroutine[object, None, T]) -> T:
            try:
                return super().run(coroutine)
            finally:
                if self.is_broken and threading.current_thread() is main:
                    calls.append(executor.submit(cluster.request, 1, REQUEST))
                    wait(calls, TIMEOUT_S)

    monkeypatch.setattr(blocking_cluster_module, "OwnLoop", BreakingLoop)
    cluster = new_cluster(config_of(broker.bootstrap_servers))
    cluster.refresh([])
    connection = cluster.connection(1)
    with ThreadPoolExecutor(1) as executor, pytest.raises(ValueError):
        inside.wait_interrupted(cluster, ValueError)
    (call,) = calls
    assert call.result().brokers
    assert connection.is_closed


def test_closed_loop_is_freed_without_a_garbage_collection() -> None:
    own = OwnLoop()
    own.run(asyncio.sleep(0))
    kept = weakref.ref(own)
    own.close()
    del own
    assert kept() is None


@pytest.mark.parametrize("is_final", [False, True])
def test_another_thread_ends_a_call_that_waits(
    broker: BrokerThread, cluster: BlockingCluster, is_final: bool
) -> None:
    with broker.on("Metadata").hold() as rule, ThreadPoolExecutor(1) as executor:
        request = executor.submit(cluster.request, 1, REQUEST)
        rule.reached(timeout_s=TIMEOUT_S)
        begun = time.monotonic()
        (cluster.abort if is_final else cluster.hang_up)()
        with pytest.raises(KafkaConnectionError, match="closed by this client"):
            request.result(TIMEOUT_S)
        assert time.monotonic() - begun < TIMEOUT_S / 2
    if is_final:
        with pytest.raises(ClientClosedError):
            cluster.request(1, REQUEST)
    else:
        assert cluster.request(1, REQUEST).brokers


def test_another_thread_ends_a_call_that_pauses_between_two_tries(
    broker: BrokerThread, new_cluster: NewCluster
) -> None:
    pauses = {"retry_backoff_s": TIMEOUT_S / 2, "retry_backoff_max_s": TIMEOUT_S / 2}
    cluster = new_cluster(config_of(broker.bootstrap_servers, **pauses))
    cluster.refresh([])
    with ThreadPoolExecutor(1) as executor:
        with broker.on("FindCoordinator").fail(CoordinatorNotAvailableError, times=None) as rule:
            call = executor.submit(cluster.coordinator, "g")
            rule.reached(timeout_s=TIMEOUT_S)
            begun = time.monotonic()
            cluster.abort()
            with pytest.raises(ClientClosedError):
                call.result(TIMEOUT_S)
        assert time.monotonic() - begun < TIMEOUT_S / 4
        executor.submit(cluster.close).result(TIMEOUT_S)  # it is not cancelled as well


def test_first_calls_of_two_threads_make_one_loop(
    broker: BrokerThread, new_cluster: NewCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[OwnLoop]()

    class SlowLoop(OwnLoop):
        def __init__(self) -> None:
            made.append(self)
            time.sleep(0.05)
            super().__init__()

    monkeypatch.setattr(blocking_cluster_module, "OwnLoop", SlowLoop)
    cluster = new_cluster(config_of(broker.bootstrap_servers))
    with ThreadPoolExecutor(2) as executor:
        calls = [executor.submit(cluster.refresh, []) for _ in range(2)]
        assert all(call.result(TIMEOUT_S).nodes for call in calls)
    assert len(made) == 1


# --- Failures of the client itself -------------------------------------------------------------
@pytest.mark.parametrize("failure", [RuntimeError("no more threads"), MemoryError()])
def test_client_that_failed_while_it_connected_connects_again(
    cluster: BlockingCluster, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    view = cluster.view
    cluster.hang_up()
    with monkeypatch.context() as patched:
        patched.setattr(connection_module, "dial", failing(failure))
        with pytest.raises(KafkaConnectionError, match="connects again") as raised:
            cluster.request(1, REQUEST)
    assert raised.value.__cause__ is failure
    assert cluster.view is view
    assert cluster.request(1, REQUEST).brokers


def test_client_that_failed_in_a_callback_connects_again(cluster: BlockingCluster) -> None:
    failure = MemoryError()

    def fail(_: object) -> None:
        raise failure

    connection = cluster.connection(1)
    connection.send(REQUEST, timeout_s=TIMEOUT_S, on_done=fail)
    with pytest.raises(KafkaConnectionError) as raised:
        cluster.receive(connection.send(REQUEST, timeout_s=TIMEOUT_S))
    assert raised.value.__cause__ is failure
    assert cluster.request(1, REQUEST).brokers


@pytest.mark.parametrize("failure", [KeyboardInterrupt, SystemExit])
def test_program_that_is_ended_in_a_background_task_logs_no_traceback(
    cluster: BlockingCluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failure: type[BaseException],
) -> None:
    cluster.hang_up()
    with monkeypatch.context() as patched:
        patched.setattr(connection_module, "dial", failing(failure()))
        with pytest.raises(failure):
            cluster.request(1, REQUEST)
    assert not caplog.records
    assert cluster.request(1, REQUEST).brokers


def failing(failure: BaseException) -> Callable[..., Coroutine[object, None, None]]:
    async def fail(*_: object, **_arguments: object) -> None:
        raise failure

    return fail


@pytest.mark.parametrize("made", [(selectors, "DefaultSelector"), (socket, "socketpair")])
def test_process_without_descriptors_makes_its_loop_at_a_later_try(
    broker: BrokerThread,
    new_cluster: NewCluster,
    monkeypatch: pytest.MonkeyPatch,
    made: tuple[object, str],
) -> None:
    module, name = made
    make = getattr(module, name)
    tries = iter([OSError(errno.EMFILE, "Too many open files"), None])

    def limited() -> object:
        if error := next(tries):
            raise error
        return make()

    cluster = new_cluster(config_of(broker.bootstrap_servers))
    monkeypatch.setattr(module, name, limited)
    with pytest.raises(KafkaConnectionError, match=r"cannot create an event loop.*open files"):
        cluster.look([])
    gc.collect()  # of the loop that was not made: it prints nothing
    assert cluster.look([]).nodes


async def test_call_in_the_thread_of_a_running_loop_is_refused(
    broker: BrokerThread, new_cluster: NewCluster
) -> None:
    cluster = new_cluster(config_of(broker.bootstrap_servers))
    for _ in range(2):
        with pytest.raises(IllegalStateError, match=r"asyncio\.to_thread"):
            cluster.refresh([])
        gc.collect()  # no coroutine, task or loop is left
    view = await asyncio.to_thread(cluster.refresh, [])
    assert view.nodes
    await asyncio.to_thread(cluster.close)


def test_a_call_after_connections_were_closed_does_not_wait(cluster: BlockingCluster) -> None:
    begun = time.monotonic()
    for _ in range(20):
        connection = cluster.connection(1)
        cluster.hang_up()
        cluster.settle()
        assert connection.is_closed
        assert cluster.request(1, REQUEST).brokers
    assert time.monotonic() - begun < TIMEOUT_S


def test_threads_take_turns(cluster: BlockingCluster) -> None:
    started = threading.Barrier(4)

    def ask(_: int) -> bool:
        started.wait(TIMEOUT_S)
        return all(cluster.request(1, REQUEST).brokers for _ in range(30))

    with ThreadPoolExecutor(4) as executor:
        assert list(executor.map(ask, range(4))) == [True] * 4
