"""`heartbeat_thread=True`: a loop that is blocked keeps its membership, for as long as it may."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import pytest

from aiokafka_lite import AIOKafkaConsumer
from aiokafka_lite._compat import timeout
from aiokafka_lite.broker import BrokerConfig
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.consumer.gate import Hold
from aiokafka_lite.errors import (
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    NotCoordinatorError,
    UnknownMemberIdError,
    UnsupportedVersionError,
)
from aiokafka_lite.events import ConsumerEvent, Lost
from tests.support import inside
from tests.support.cluster import KafkaHandle, unique
from tests.support.events import events_so_far
from tests.support.listeners import Losing, beat_count
from tests.support.protocols import WAYS
from tests.support.rounds import LONG
from tests.support.sasl_consumer import ALL_MECHANISMS, CANARY, Tokens
from tests.support.waiting import PATIENCE_S, until

# The long form has more workers than processors: a thread may have to wait for one.
SESSION_S = 2.0 if LONG else 1.0
# Where two heartbeats and the pauses behind them take more than half of a session.
LONG_SESSION_S = 2 * SESSION_S
BEATS = {"eager": "Heartbeat", "cooperative": "Heartbeat", "consumer": "ConsumerGroupHeartbeat"}
SETTINGS = BrokerConfig(
    group_min_session_timeout_ms=100, group_consumer_session_timeout_ms=int(SESSION_S * 1000)
)


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    """An embedded broker that goes on while the test's loop is blocked."""
    with BrokerThread(SETTINGS) as broker:
        broker.create_topic("t", 2)
        yield broker


@pytest.fixture(params=WAYS)
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# The thread heartbeats for both kinds of classic members alike: where partitions are not moved,
# the short form has one of them.
without_rebalances = pytest.mark.parametrize(
    "protocol", [pytest.param("eager", marks=pytest.mark.slow), "cooperative", "consumer"]
)


def member(
    bootstrap_servers: str,
    protocol: str,
    listener: Losing | None = None,
    /,
    **settings: object,
) -> AIOKafkaConsumer:
    arguments: dict[str, object] = {
        "bootstrap_servers": bootstrap_servers,
        "group_id": "g",
        "heartbeat_thread": True,
        "session_timeout_ms": int(SESSION_S * 1000),
        "heartbeat_interval_ms": 200,
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": 50,
        **WAYS[protocol],
        **settings,
    }
    topic = str(arguments.pop("topic", "t"))
    consumer = AIOKafkaConsumer(**arguments)  # type: ignore[arg-type]
    consumer.subscribe([topic], listener=listener)
    return consumer


def block(for_s: float) -> None:
    """Block the event loop."""
    time.sleep(for_s)


def block_until(condition: Callable[[], object]) -> None:
    """Block it until a condition holds that others bring about."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def threads() -> list[str]:
    """The names of the threads that heartbeat."""
    return [each.name for each in threading.enumerate() if each.name.startswith("heartbeats of ")]


@asynccontextmanager
async def unchanged(consumer: AIOKafkaConsumer) -> AsyncIterator[None]:
    """Check that a block costs the membership nothing."""
    with consumer.events() as events:
        before = inside.member_id(consumer), consumer.assignment()
        (tp, *_) = sorted(consumer.assignment())
        began_at = asyncio.get_running_loop().time()
        yield
        await consumer.commit({tp: 0})
        beats = beat_count(consumer)
        await until(lambda: beat_count(consumer) > beats)
        assert asyncio.get_running_loop().time() - began_at > SESSION_S
        assert (inside.member_id(consumer), consumer.assignment()) == before
        assert lost(events_so_far(events)) == []


def lost(events: list[ConsumerEvent]) -> list[ConsumerEvent]:
    return [event for event in events if isinstance(event, Lost)]


# --- A loop that is blocked --------------------------------------------------------------------
@without_rebalances
async def test_a_block_of_several_sessions_costs_nothing(
    broker: BrokerThread, protocol: str
) -> None:
    async with member(broker.bootstrap_servers, protocol) as consumer, unchanged(consumer):
        block(3 * SESSION_S)
        broker.produce("t", b"x", partition=0)
        assert (await asyncio.wait_for(consumer.getone(), PATIENCE_S)).offset == 0


@without_rebalances
async def test_health_says_that_the_thread_stood_in(broker: BrokerThread, protocol: str) -> None:
    async with member(broker.bootstrap_servers, protocol) as consumer:
        block(2 * SESSION_S)
        await until(lambda: "and the heartbeat thread sent heartbeats (" in str(consumer.health()))


@without_rebalances
async def test_health_counts_the_last_heartbeat_of_the_thread(
    broker: BrokerThread, protocol: str
) -> None:
    async with member(broker.bootstrap_servers, protocol) as consumer:
        block(2 * SESSION_S)
        # The loop's own heartbeats are not answered.
        with broker.on(BEATS[protocol]).silence(None):
            async with timeout(SESSION_S / 2):
                await until(lambda: (consumer.health().last_heartbeat_s or SESSION_S) < SESSION_S)


async def test_without_the_thread_it_costs_the_membership(
    broker: BrokerThread, protocol: str
) -> None:
    settings = {"heartbeat_thread": False}
    async with member(broker.bootstrap_servers, protocol, **settings) as consumer:
        assert threads() == []
        with consumer.events() as events:
            block(2.5 * SESSION_S)
            await until(lambda: any(isinstance(e, Lost) for e in events_so_far(events)))


async def test_real_kafka_keeps_a_classic_member_whose_loop_is_blocked_for_more_than_a_session(
    real_kafka: str,
) -> None:
    topic = await KafkaHandle("real", real_kafka).create_topic(partitions=2)
    consumer = member(
        real_kafka,
        "cooperative",
        topic=topic,
        group_id=unique("g"),
        session_timeout_ms=6_000,
        heartbeat_interval_ms=1_000,
    )
    async with consumer, unchanged(consumer):
        block(9.0)


async def test_real_kafka_hears_a_member_of_kip848_whose_loop_is_blocked(
    real_kafka: str,
) -> None:
    topic = await KafkaHandle("real", real_kafka).create_topic(partitions=2)
    consumer = member(
        real_kafka,
        "consumer",
        topic=topic,
        group_id=unique("g"),
        session_timeout_ms=10_000,
    )
    async with consumer, unchanged(consumer):
        beats = beat_count(consumer)
        block(3.0)
        await asyncio.sleep(0)
        assert beat_count(consumer) >= beats + 5


@pytest.mark.slow
async def test_real_kafka_keeps_a_member_of_kip848_whose_loop_is_blocked_for_more_than_a_session(
    real_kafka: str,
) -> None:
    topic = await KafkaHandle("real", real_kafka).create_topic(partitions=2)
    settings = {"session_timeout_ms": 45_000, "heartbeat_interval_ms": 1_000}
    group_id = unique("g")
    consumer = member(real_kafka, "consumer", topic=topic, group_id=group_id, **settings)
    async with consumer, unchanged(consumer):
        block(50.0)


@pytest.mark.slow
async def test_real_kafka_takes_the_partitions_of_an_application_that_hangs(
    real_kafka: str,
) -> None:
    topic = await KafkaHandle("real", real_kafka).create_topic(partitions=2)
    settings: dict[str, object] = {
        "topic": topic,
        "group_id": unique("g"),
        "session_timeout_ms": 6_000,
        "heartbeat_interval_ms": 1_000,
    }
    hanging = member(real_kafka, "cooperative", **settings, max_poll_interval_ms=8_000)
    async with hanging:
        await hanging.getmany(timeout_ms=10)
        with another(real_kafka, "cooperative", **settings) as shares:
            block(7.0)
            assert shares() == 0
            block_until(lambda: shares() == 2)
            assert len(hanging.assignment()) == 2  # it does not know yet
            await hanging.getmany(timeout_ms=10)
            await until(lambda: len(hanging.assignment()) == shares() == 1)


async def test_a_block_in_the_listener_after_the_epoch_has_moved_costs_nothing(
    broker: BrokerThread, protocol: str
) -> None:
    class Blocking(Losing):
        async def on_partitions_assigned(self, assigned: set[object]) -> None:  # type: ignore[override]
            await super().on_partitions_assigned(assigned)  # type: ignore[arg-type]
            if len(self.calls) > 1:
                block(2 * SESSION_S)

    listener = Blocking()
    async with member(broker.bootstrap_servers, protocol, listener) as one:
        two = member(broker.bootstrap_servers, protocol, group_id="g", session_timeout_ms=30_000)
        async with two:
            await until(lambda: len(one.assignment()) == len(two.assignment()) == 1)
        await until(lambda: len(one.assignment()) == 2 and inside.is_settled(one))
        assert "lost" not in {name for name, _ in listener.calls}


@without_rebalances
@pytest.mark.parametrize("is_moved", [False, True], ids=["answer-lost", "coordinator-moved"])
async def test_the_thread_finds_the_coordinator_again(protocol: str, is_moved: bool) -> None:
    config = BrokerConfig(
        nodes=2,
        group_min_session_timeout_ms=100,
        group_consumer_session_timeout_ms=int(LONG_SESSION_S * 1000),
    )
    settings = {"session_timeout_ms": int(LONG_SESSION_S * 1000)}
    with BrokerThread(config) as broker:
        broker.create_topic("t", 2)
        one = member(broker.bootstrap_servers, protocol, **settings)
        async with one as consumer, unchanged(consumer):
            if is_moved:
                broker.move_coordinator("g")
            else:
                broker.on(BEATS[protocol]).disconnect(2)
            block(2 * LONG_SESSION_S)


@without_rebalances
@pytest.mark.parametrize("error", [NotCoordinatorError, CoordinatorNotAvailableError])
async def test_the_thread_tries_again_what_passes(
    broker: BrokerThread, protocol: str, error: type[Exception]
) -> None:
    async with member(broker.bootstrap_servers, protocol) as consumer, unchanged(consumer):
        broker.on(BEATS[protocol]).fail(error, 2)  # type: ignore[arg-type]
        block(2 * SESSION_S)


async def test_a_loss_that_the_thread_hears_of_keeps_back_what_is_buffered(
    broker: BrokerThread, protocol: str
) -> None:
    for number in range(2):
        for value in range(50):
            broker.produce("t", b"%d" % value, partition=number)
    listener = Losing()
    async with member(broker.bootstrap_servers, protocol, listener) as consumer:
        await asyncio.wait_for(consumer.getone(), PATIENCE_S)
        rule = broker.on(BEATS[protocol]).fail(UnknownMemberIdError, 1)
        block(SESSION_S / 2 + 0.4)
        assert rule.hits
        getting = asyncio.ensure_future(consumer.getone())
        await asyncio.wait({getting}, timeout=PATIENCE_S)
        # Nothing came in between: it begins anew at what is committed, which is nothing.
        assert getting.result().offset == 0
        told = [name for name, partitions in listener.calls if partitions]
        assert told == ["assigned", "lost", "assigned"]


def holds_of_a_get(consumer: AIOKafkaConsumer) -> frozenset[Hold]:
    """What keeps back a get that comes before the loop has heard anything of the thread."""
    get = consumer.getmany(timeout_ms=1_000)
    with suppress(StopIteration):
        get.send(None)
    get.close()
    return inside.gate(consumer).holds


@without_rebalances
@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_get_right_after_the_block_goes_by_what_the_thread_has_heard(
    broker: BrokerThread, protocol: str, is_lost: bool
) -> None:
    async with member(broker.bootstrap_servers, protocol) as consumer:
        if is_lost:
            rule = broker.on(BEATS[protocol]).fail(UnknownMemberIdError, 1)
            block(SESSION_S / 2 + 0.4)
            assert rule.hits
            assert holds_of_a_get(consumer)
        else:
            block(2 * SESSION_S)
            assert not holds_of_a_get(consumer)


async def test_a_rebalance_that_the_thread_hears_of_is_taken_part_in_after_the_block(
    broker: BrokerThread, protocol: str
) -> None:
    listener = Losing()
    first = member(broker.bootstrap_servers, protocol, listener, rebalance_timeout_ms=20_000)
    async with first:
        with another(broker.bootstrap_servers, protocol) as shares:
            block(2 * SESSION_S)
            assert shares() == 0
            await until(lambda: shares() == len(first.assignment()) == 1)
            assert "lost" not in {name for name, _ in listener.calls}


@contextmanager
def another(
    bootstrap_servers: str, protocol: str, **settings: object
) -> Iterator[Callable[[], int]]:
    """A second member, in a loop and a thread of its own; gives how much it is assigned."""
    ending = threading.Event()
    shares = [0]

    async def run() -> None:
        patient = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 20_000, **settings}
        async with member(bootstrap_servers, protocol, **patient) as consumer:
            while not ending.is_set():
                shares[0] = len(consumer.assignment())
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        yield lambda: shares[0]
    finally:
        ending.set()
        thread.join()


async def test_trap_01_what_an_answer_to_the_thread_assigned_that_was_lost_is_asked_for_again(
    broker: BrokerThread,
) -> None:
    listener = Losing()
    one = member(broker.bootstrap_servers, "consumer", listener, client_id="one")
    async with one:
        with another(broker.bootstrap_servers, "consumer") as shares:
            await until(lambda: shares() == len(one.assignment()) == 1)
            beats = broker.on("ConsumerGroupHeartbeat", client_id="one")
            rule = beats.disconnect(None, handled=True)
        hits = rule.hits  # the other has left
        block_until(lambda: rule.hits > hits + 2)
        rule.remove()
        await until(lambda: len(one.assignment()) == 2)
    assert "lost" not in {name for name, _ in listener.calls}


@without_rebalances
async def test_a_loop_that_runs_again_does_not_wait_for_an_answer_of_the_thread(
    broker: BrokerThread, protocol: str
) -> None:
    settings = {"session_timeout_ms": 20_000, "group_id": "patient"}
    async with member(broker.bootstrap_servers, protocol, **settings) as consumer:
        before = inside.member_id(consumer), consumer.assignment()
        block(0.8)  # by now the thread speaks
        rule = broker.on(BEATS[protocol]).silence(1)
        block_until(lambda: rule.hits)
        beats = beat_count(consumer)
        began = time.monotonic()
        await until(lambda: beat_count(consumer) > beats + 1)
        assert time.monotonic() - began < 3.0
        assert (inside.member_id(consumer), consumer.assignment()) == before


# --- An application that hangs -----------------------------------------------------------------
async def test_an_application_that_hangs_is_thrown_out(
    broker: BrokerThread, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"max_poll_interval_ms": 1_000}
    async with member(broker.bootstrap_servers, protocol, **settings) as consumer:
        await consumer.getmany(timeout_ms=10)
        with another(broker.bootstrap_servers, protocol) as shares:
            block(0.5)
            assert shares() == 0
            block_until(lambda: shares() == 2)
            assert "heartbeats are no longer sent, because the event loop is blocked" in caplog.text
            assert len(consumer.assignment()) == 2  # it does not know yet
            await consumer.getmany(timeout_ms=10)
            await until(lambda: len(consumer.assignment()) == shares() == 1)


# --- The thread's end --------------------------------------------------------------------------
@without_rebalances
async def test_the_thread_ends_with_the_consumer(broker: BrokerThread, protocol: str) -> None:
    async with member(broker.bootstrap_servers, protocol) as consumer:
        assert threads() == ["heartbeats of g"]
        block(SESSION_S)
        assert consumer.assignment()
    assert threads() == []


@without_rebalances
async def test_it_ends_at_once_while_it_waits_for_an_answer(
    broker: BrokerThread, protocol: str
) -> None:
    settings = {"session_timeout_ms": 20_000}
    consumer = member(broker.bootstrap_servers, protocol, **settings)
    await consumer.start()
    rule = broker.on(BEATS[protocol]).silence(2)
    block_until(lambda: rule.hits)
    began = time.monotonic()
    await consumer.stop()
    assert time.monotonic() - began < 3.0
    assert threads() == []


async def test_it_ends_with_a_start_that_fails(broker: BrokerThread) -> None:
    for name in ("JoinGroup", "ConsumerGroupHeartbeat"):
        broker.on(name).fail(GroupAuthorizationFailedError, None)
    for protocol in WAYS:
        consumer = member(broker.bootstrap_servers, protocol)
        with pytest.raises(GroupAuthorizationFailedError):
            await consumer.start()
        assert threads() == []
        await consumer.stop()


@pytest.mark.filterwarnings("ignore:Unclosed AIOKafkaConsumer")
async def test_it_ends_with_a_consumer_that_nobody_holds(
    broker: BrokerThread, protocol: str
) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    consumer = member(broker.bootstrap_servers, protocol)
    await consumer.start()
    assert threads()
    del consumer
    gc.collect()
    await until(lambda: not threads())


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_it_ends_with_a_loop_that_ends_without_a_stop(broker: BrokerThread, protocol: str) -> None:
    async def forget() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        consumer = member(broker.bootstrap_servers, protocol)
        await consumer.start()
        assert threads()
        held.append(consumer)

    held = list[AIOKafkaConsumer]()
    asyncio.run(forget())
    block_until(lambda: not threads())
    held.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # its connections, which nobody has closed


async def test_a_protocol_that_is_not_offered_leaves_one_thread(broker: BrokerThread) -> None:
    broker.on("ConsumerGroupHeartbeat").fail(UnsupportedVersionError)
    settings = {"group_protocol": "auto"}
    async with member(broker.bootstrap_servers, "eager", **settings) as consumer:
        assert consumer.metrics()["group_protocol"] == "classic"
        await until(lambda: len(threads()) == 1)
        async with unchanged(consumer):
            block(2 * SESSION_S)


# --- Security ----------------------------------------------------------------------------------
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
async def test_the_thread_authenticates_as_the_loop_does(mechanism: str) -> None:
    config = BrokerConfig(
        security_protocol="SASL_SSL",
        sasl_mechanisms=ALL_MECHANISMS,
        users={"alice": CANARY},
        group_min_session_timeout_ms=100,
    )
    with BrokerThread(config) as broker:
        broker.create_topic("t", 2)
        tokens = Tokens(broker.broker)
        async with member(
            broker.bootstrap_servers,
            "eager",
            security_protocol="SASL_SSL",
            ssl_context=broker.broker.certificates.client_context(),
            sasl_mechanism=mechanism,
            sasl_plain_username="alice",
            sasl_plain_password=CANARY,
            sasl_oauth_token_provider=tokens,
        ) as consumer:
            count = tokens.count
            async with unchanged(consumer):
                block(2 * SESSION_S)
                # The provider belongs to the loop: no thread has asked it.
                assert tokens.count == count
