"""What tests ask about the inside of a consumer: the one module that reaches into it.

Most tests ask what users can ask: `explain`, `metrics`, `health`, `events`, `position`, what the
embedded broker saw. What is here, nobody but a test wants to know or to do.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Set
from typing import Literal, NamedTuple

from aiokafka_lite._compat import timeout
from aiokafka_lite._record_py import record_delivery
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.abc import ConsumerRebalanceListener
from aiokafka_lite.broker.share.partition import RecordState
from aiokafka_lite.broker.share.partitions import SharePartitions
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.cluster import Cluster
from aiokafka_lite.client.view import ClusterView
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.consumer.assignment.assignment import SubscriptionState
from aiokafka_lite.consumer.assignment.cursor import Cursor, Loan
from aiokafka_lite.consumer.assignment.reads import Reads
from aiokafka_lite.consumer.assignment.works import Works
from aiokafka_lite.consumer.buffer.budget import ByteBudget
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.fetching.session import FetchSession
from aiokafka_lite.consumer.fetching.source import Source
from aiokafka_lite.consumer.fetching.sources import Sources
from aiokafka_lite.consumer.gate import Gate
from aiokafka_lite.consumer.membership.classic.membership import ClassicMembership
from aiokafka_lite.consumer.monitoring.diagnosis import Cause, diagnose
from aiokafka_lite.consumer.monitoring.health import Health, examine
from aiokafka_lite.consumer.parts import Running
from aiokafka_lite.consumer.positions.resolver import Watchdog
from aiokafka_lite.consumer.sharing.consumer import AIOKafkaShareConsumer
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.events import ConsumerEvent
from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.structs import ConsumerRecord, OffsetAndMetadata, TopicPartition
from tests.support.waiting import PATIENCE_S

# The kinds of tasks that a consumer runs.
Kind = Literal["fetch", "positions", "group", "cluster"]


def _running(consumer: AIOKafkaConsumer) -> Running:
    return consumer._engine.running


def latest_parts(consumer: AIOKafkaConsumer) -> weakref.ref[Running]:
    """The parts of the latest start, which this does not keep."""
    parts = consumer._engine.parts
    assert parts is not None
    return weakref.ref(parts)


# --- The cluster ------------------------------------------------------------------------------
def cluster(consumer: AIOKafkaConsumer) -> Cluster:
    """The connections and the metadata of a started consumer."""
    return _running(consumer).cluster


def show_metadata(consumer: AIOKafkaConsumer, view: ClusterView) -> None:
    """Let the consumer believe that a broker has answered this."""
    cluster(consumer)._swap(view)


# --- The group --------------------------------------------------------------------------------
def _classic(consumer: AIOKafkaConsumer) -> ClassicMembership:
    membership = _running(consumer).membership
    assert isinstance(membership, ClassicMembership), "made with group_protocol='classic'"
    return membership


def generation(consumer: AIOKafkaConsumer) -> int:
    """The generation of the group that the member is in, or its epoch."""
    return _running(consumer).membership.generation


def member_id(consumer: AIOKafkaConsumer) -> str:
    """The id that the group knows the member by."""
    return _running(consumer).membership.member_id


def share_member_id(consumer: AIOKafkaShareConsumer) -> str:
    """The member id of a share consumer that has started."""
    return consumer._engine.leasing.member_id


def share_lock_owners(partitions: SharePartitions) -> set[str]:
    """The members that hold locks of an embedded broker's records."""
    return {
        each.member_id
        for live in partitions._live.values()
        for each in live._ranges
        if each.state is RecordState.ACQUIRED
    }


def group_state(consumer: AIOKafkaConsumer) -> str:
    """The state of the membership."""
    status = _running(consumer).membership.status
    assert status is not None
    return status.state


def group_protocol(consumer: AIOKafkaConsumer) -> str | None:
    """The assignor that the classic group has chosen."""
    return _classic(consumer)._member.protocol_name


def is_settled(consumer: AIOKafkaConsumer) -> bool:
    """Whether the assignment answers to the subscription, and the listener knows of it."""
    return _running(consumer).membership.is_settled


async def until_assigned(consumer: AIOKafkaConsumer) -> None:
    """Wait until the member has the assignment of the newest generation."""
    await _running(consumer).wait_assigned()


def last_contact_at(consumer: AIOKafkaConsumer) -> float:
    """When the coordinator answered last, in loop time."""
    status = _running(consumer).membership.status
    assert status is not None
    assert status.last_contact_at is not None
    return status.last_contact_at


def lose_membership(consumer: AIOKafkaConsumer) -> None:
    """Let the member of a classic group believe that the group has forgotten it."""
    _classic(consumer)._member.lose_membership()


def gate(consumer: AIOKafkaConsumer) -> Gate:
    """What decides whether gets hand out records, and what they raise."""
    return consumer._engine.core.gate


def assignment(consumer: AIOKafkaConsumer) -> SubscriptionState:
    """What is assigned, and what changes it."""
    return consumer._engine.core.state


def works(consumer: AIOKafkaConsumer) -> Works:
    """What the application finishes not by its next read."""
    return consumer._engine.core.works


def reads(consumer: AIOKafkaConsumer) -> Reads:
    """Which reads wait for records, and what the latest ones returned."""
    return consumer._engine.core.reads


def listener(consumer: AIOKafkaConsumer) -> ConsumerRebalanceListener | None:
    """The listener that was given to `subscribe`."""
    return consumer._listener


def commit_count(consumer: AIOKafkaConsumer) -> int:
    """How many commits of a started consumer have succeeded."""
    commits = _running(consumer).commits
    return 0 if commits is None else commits.commit_count


# --- Positions --------------------------------------------------------------------------------
def cursor(consumer: AIOKafkaConsumer, tp: TopicPartition) -> Cursor:
    """All that is known of an assigned partition."""
    return consumer._engine.core.state.partition(tp)


def known_commit(consumer: AIOKafkaConsumer, tp: TopicPartition) -> OffsetAndMetadata | None:
    """The committed offset, as far as it is known without asking the coordinator."""
    return cursor(consumer, tp).committed


def request_reset(consumer: AIOKafkaConsumer, tp: TopicPartition) -> None:
    """Let the position be looked up at the beginning of the log, without a seek."""
    consumer._engine.core.state.request_reset(cursor(consumer, tp), -2)


# --- Fetching ---------------------------------------------------------------------------------
def sources(consumer: AIOKafkaConsumer) -> Sources:
    """What reads from the brokers."""
    return _running(consumer).sources


def placements(consumer: AIOKafkaConsumer) -> list[Cursor]:
    """Return a list that gets each cursor, from now on, for which a node to read from is chosen."""
    asked, chosen = sources(consumer), list[Cursor]()
    place = asked._place

    def note(cursor: Cursor, view: ClusterView) -> bool:
        chosen.append(cursor)
        return place(cursor, view)

    asked._place = note  # type: ignore[method-assign]
    return chosen


def nodes_read_from(consumer: AIOKafkaConsumer) -> list[int]:
    """The ids of the brokers that are read from."""
    return [node_id for node_id, reading in sources(consumer)._sources.items() if reading]


def node_read_from(consumer: AIOKafkaConsumer, tp: TopicPartition) -> int | None:
    """The id of the broker that a partition is read from."""
    return cursor(consumer, tp).node_id


def only_source(consumer: AIOKafkaConsumer) -> Source:
    """What reads from the only broker that is read from."""
    ((source,),) = sources(consumer)._sources.values()
    return source


def session(consumer: AIOKafkaConsumer) -> FetchSession:
    """The fetch session with the only broker that is read from."""
    return only_source(consumer)._session


def set_epoch(session: FetchSession, epoch: int) -> None:
    """Make a session old, without as many requests."""
    session.epoch = epoch


def is_in_flight(consumer: AIOKafkaConsumer, tp: TopicPartition) -> bool:
    """Whether a fetch that is not answered yet asks for a partition."""
    return sources(consumer).is_asking_for(cursor(consumer, tp))


async def until_in_flight(consumer: AIOKafkaConsumer) -> None:
    """Wait for the long poll at the end of the log."""
    assert await consumer.poll(timeout_ms=50) == {}
    source = only_source(consumer)
    async with timeout(PATIENCE_S):
        while source.in_flight_since is None:
            await consumer.poll(timeout_ms=1)


class Kept(NamedTuple):
    """The cursors that a source keeps, and where."""

    cursors: Set[Cursor]
    ready: Set[Cursor]
    backing_off: Set[Cursor]
    loans: Collection[Loan]


def kept_by(source: Source) -> Kept:
    """What a source knows of its cursors."""
    choice = source.choice
    return Kept(
        choice.cursors, choice.ready.keys(), choice.backing_off.keys(), source._session.loans
    )


def lend(source: Source) -> None:
    """Lend to the next request what it is to ask for."""
    source._lend(source._loop.time())


def watchdog(consumer: AIOKafkaConsumer) -> Watchdog:
    """What measures how long partitions have no position."""
    return _running(consumer).watchdog


# --- What is buffered -------------------------------------------------------------------------
def budget(consumer: AIOKafkaConsumer) -> ByteBudget:
    """What counts the bytes that are buffered."""
    return consumer._engine.core.buffer.budget


def has_untaken(consumer: AIOKafkaConsumer, node_id: int | None = None) -> bool:
    """Whether a response that no get has touched is buffered, of one broker or of any."""
    buffer = consumer._engine.core.buffer
    return any(node_id in (None, source.node_id) for source in buffer.queue.untaken)


def is_idle(consumer: AIOKafkaConsumer) -> bool:
    """Whether no get is in progress: time counts towards max_poll_interval_ms."""
    engine = consumer._engine
    return engine.core.reads.in_progress == 0 and not engine.core.buffer.waiting_count


def put_error(consumer: AIOKafkaConsumer, tp: TopicPartition, error: KafkaError) -> None:
    """Let gets raise an error of a partition until a seek, behind what is buffered of it."""
    consumer._engine.core.buffer.put_error(cursor(consumer, tp), error, is_sticky=True)


# --- Tasks and errors -------------------------------------------------------------------------
def _scope(consumer: AIOKafkaConsumer, kind: Kind) -> TaskScope:
    (scope,) = [scope for scope in _running(consumer).scopes if scope.name == kind]
    return scope


def let_a_task_die(consumer: AIOKafkaConsumer, kind: Kind) -> asyncio.Task[None]:
    """Start a task that fails with ZeroDivisionError("a bug") at once."""

    async def die() -> None:
        raise ZeroDivisionError("a bug")

    return _scope(consumer, kind).spawn(die(), name="bug")


def supervise(
    consumer: AIOKafkaConsumer,
    kind: Kind,
    run: Callable[[], Coroutine[object, object, None]],
    *,
    name: str,
    first_delay_s: float,
) -> None:
    """Start a task that is started again when it fails by what may pass."""
    _scope(consumer, kind).supervise(run, name=name, first_delay_s=first_delay_s)


def failures(consumer: AIOKafkaConsumer) -> Mapping[str, BaseException | None]:
    """What tasks died of, by their kind."""
    return {scope.name: scope.failure for scope in _running(consumer).scopes}


def degraded_tasks(consumer: AIOKafkaConsumer) -> Mapping[str, BaseException]:
    """The tasks that failed and are about to be tried again, and what they failed by."""
    return {
        task: error for scope in _running(consumer).scopes for task, error in scope.degraded.items()
    }


def meet_error(consumer: AIOKafkaConsumer, error: KafkaError) -> None:
    """Let one get raise an error of the consumer as a whole."""
    gate(consumer).post(error)


# --- What is told -----------------------------------------------------------------------------
def publish(consumer: AIOKafkaConsumer, event: ConsumerEvent) -> None:
    """Tell an event."""
    consumer._engine.core.events.publish(event)


def event_counts(consumer: AIOKafkaConsumer) -> Mapping[str, int]:
    """How many events were told, by their names."""
    return consumer._engine.core.events.counts


def cause(consumer: AIOKafkaConsumer, tp: TopicPartition) -> Cause:
    """The cause that `explain` puts into words."""
    return diagnose(consumer._engine, tp, asyncio.get_running_loop().time()).cause


def health_at(consumer: AIOKafkaConsumer, now: float) -> Health:
    """What `health` would say at another loop time."""
    return examine(consumer._engine, now)


def note_block(consumer: AIOKafkaConsumer, blocked_s: float, *, ago_s: float = 0.0) -> None:
    """Let the loop's probe believe that the loop was blocked for so long."""
    probe = consumer._engine.probe
    probe.blocked_s, probe.blocked_at = blocked_s, asyncio.get_running_loop().time() - ago_s


def read_at(record: ConsumerRecord) -> tuple[TopicPartition, int]:
    """The place from which a handler's record was read: in a delay topic, if it was delayed.

    It is asked in the handler.
    """
    (receipt,) = record_delivery(record)._delivery.receipts
    return receipt.cursor.tp, receipt.offset


def read_from(record: ConsumerRecord) -> TopicPartition:
    """The partition of which a handler's record was read, asked in the handler."""
    return read_at(record)[0]


def config(consumer: AIOKafkaConsumer) -> ConsumerConfig:
    """The settings, checked and in the units that are used inside."""
    return consumer._config


def note_fork(producer: AIOKafkaProducer) -> None:
    """Let a producer believe that this is a forked child, which goes on with the loop."""
    producer._owner.note_fork()


# --- The event loop of blocking calls -----------------------------------------------------------
def wait_interrupted(cluster: BlockingCluster, error: type[BaseException]) -> None:
    """Wait in a call whose loop is interrupted, as if it had just taken a callback to call it."""
    assert cluster._opened is not None
    own = cluster._opened.own
    ready: deque[object] = own._loop._ready  # type: ignore[attr-defined]

    def interrupt() -> None:
        ready.clear()
        raise error

    async def wait(_used: Cluster) -> None:
        for _ in range(1_000_000):
            await asyncio.sleep(0)

    own.post(interrupt)
    cluster.run(wait)


def scope(cluster: BlockingCluster) -> TaskScope:
    """The tasks of a client that has made a call."""
    assert cluster._opened is not None
    return cluster._opened.cluster.scope
