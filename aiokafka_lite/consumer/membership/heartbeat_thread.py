"""A thread that sends heartbeats for a member while the event loop is blocked.

If a heartbeat of the loop is late by half an interval, the thread asks the loop whether it runs. If
the loop does not respond, the thread sends heartbeats on its own connection until the loop
responds, or until the application has requested no records for `max_poll_interval_ms`. The thread
never joins, leaves or commits. A program that keeps the GIL, as some extensions do, blocks the
thread as well.

It reads one immutable snapshot of the member, and reports outcomes in order by one callback,
`take_outcome`, on the loop. Each shared field has one writer:

    _snapshot    the loop      the member, and the time of the loop's next heartbeat
    _begun       the thread    the number of heartbeats that it has begun
    count, _taken  the loop    the numbers of answered heartbeats, and of outcomes taken
    latest       the thread    the latest response, and whether the member is lost
    _cluster     the thread    the loop may disconnect it
    _ending      the loop      set once: the thread has to end

Loop and thread take turns (`HeartbeatThread.claim`), because a response may change the identity of
the next heartbeat. The lock is held while two numbers are compared.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from aiokafka_lite._compat import timeout
from aiokafka_lite._tasks import Event, TaskScope
from aiokafka_lite.client.view import Node
from aiokafka_lite.consumer.membership.protocol import NO_IDENTITY, Identity
from aiokafka_lite.consumer.membership.recovery import Recovery, recovery_for
from aiokafka_lite.errors import ClientClosedError, KafkaError
from aiokafka_lite.protocol.schema import Request, Response

if TYPE_CHECKING:
    from aiokafka_lite.client.blocking_cluster import BlockingCluster

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Response)

NAME: Final = "heartbeat thread"
# The share of an interval by which the loop may be late, and which its response may take.
LATE_SHARE: Final = 0.5
# How often an idle thread checks whether the loop is closed.
IDLE_S: Final = 1.0
# The longest pause after a failed heartbeat.
RETRY_S: Final = 0.5
# How long a stop waits for the end of the thread, which may be connecting.
END_S: Final = 1.0


class Send(Protocol):
    def __call__(self, request: Request[R], node: Node | None = None) -> R:
        """Send a request to a node, by default the coordinator."""


# Sends one heartbeat of a group protocol; returns the member's new identity, and the response.
SendHeartbeat = Callable[[Send, Identity], tuple[Identity, Response]]


class Snapshot(NamedTuple):
    """The member, for the thread. Times are those of `time.monotonic`."""

    send_heartbeat: SendHeartbeat
    sent_as: Identity
    # The coordinator, as far as known.
    node: Node | None
    # The loop's next heartbeat.
    due_at: float
    # Between two heartbeats of the thread.
    interval_s: float
    # The end of max_poll_interval_ms.
    over_at: float


class LastHeartbeat(NamedTuple):
    # The time at which the latest answered heartbeat was sent.
    sent_at: float = -math.inf
    # The identity that the group has removed, if any.
    lost_as: Identity = NO_IDENTITY


class Outcome(NamedTuple):
    sent_as: Identity
    # The member's new identity.
    identity: Identity
    answer: Response | None
    error: KafkaError | None
    # Of `time.monotonic` in the thread; loop time for the owner.
    sent_at: float


# Makes the thread's own client, with an event loop of its own.
OpenCluster = Callable[[], "BlockingCluster"]


class LoopClosedError(Exception):
    """The event loop is closed, so the thread has to end."""


def _nothing() -> None:
    """Prove, on the loop, that it is not closed."""


class HeartbeatThread:
    """One member's thread; its methods run on the loop, except those under "the thread".

    Without `open_cluster` there is no thread.
    """

    def __init__(
        self,
        group_id: str,
        open_cluster: OpenCluster | None,
        take_outcome: Callable[[Outcome], None],
        *,
        scope: TaskScope,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group_id = group_id
        self._open_cluster = open_cluster
        self._take_outcome = take_outcome
        self._scope = scope
        self.clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = Event()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._snapshot: Snapshot | None = None
        self._begun = 0
        self._taken = 0
        # Answered heartbeats.
        self.count = 0
        self._ending = threading.Event()
        self.latest = LastHeartbeat()
        self._cluster: BlockingCluster | None = None
        # The coordinator in the latest snapshot, and the one that was found since.
        self._told_node: Node | None = None
        self._node: Node | None = None
        # The identity in the latest snapshot, and the one in the response to it.
        self._chain = (NO_IDENTITY, NO_IDENTITY)
        self._not_before = -math.inf
        self._is_over = False

    # --- Its life -------------------------------------------------------------------------
    @property
    def is_there(self) -> bool:
        return self._open_cluster is not None

    def start(self) -> None:
        if self.is_there:
            self._loop = asyncio.get_running_loop()
            self._task = self._scope.spawn(self._until_ended(), name=NAME)

    async def _until_ended(self) -> None:
        name = f"heartbeats of {self._group_id}"
        thread = threading.Thread(target=self.run, name=name, daemon=True)
        thread.start()
        try:
            await self._ended.wait()
        finally:
            self.abandon()
            with suppress(asyncio.TimeoutError):  # while it connects: it ends when that does
                async with timeout(END_S):
                    await self._ended.wait()
                thread.join()  # its last step

    def abandon(self) -> None:
        self._ending.set()
        self._wake.set()
        if (cluster := self._cluster) is not None:
            cluster.abort()

    async def end(self) -> None:
        if self._task is not None:
            await self._scope.stop(self._task)

    # --- Turns ----------------------------------------------------------------------------
    def rest(self) -> None:
        self.claim(None)

    def claim(self, snapshot: Snapshot | None) -> bool:
        """Replace the snapshot. Return whether the loop may send: it has taken all outcomes."""
        if not self.is_there:
            return True
        with self._lock:
            had_none, self._snapshot = self._snapshot is None, snapshot
            may_send = snapshot is None or not self.has_news
        if had_none:
            self._wake.set()
        return may_send

    def take_turn(self) -> bool:
        """Return whether the loop may send other requests: as `claim`, with the same snapshot.

        The thread begins no heartbeat that it has decided upon before.
        """
        with self._lock:
            if self._snapshot is not None:
                self._snapshot = self._snapshot._replace()
            return not self.has_news

    @property
    def has_news(self) -> bool:
        return self._begun != self._taken

    def hang_up(self) -> None:
        if (cluster := self._cluster) is not None:
            cluster.hang_up()

    # --- Outcomes -------------------------------------------------------------------------
    def note_outcome(self, outcome: Outcome) -> None:
        with self._lock:
            self._taken += 1
        if outcome.error is None:
            self.count += 1
        outcome = outcome._replace(sent_at=self._as_loop_time(outcome.sent_at))
        self._scope.guard(lambda: self._take_outcome(outcome), name=NAME)()

    def heard(self, identity: Identity) -> tuple[float, bool]:
        """Return the loop time of the latest answered heartbeat, and whether the member is lost."""
        sent_at, lost_as = self.latest
        if self._loop is None:  # every read asks, most without a thread
            return sent_at, False
        is_lost = self.has_news and lost_as == identity != NO_IDENTITY
        return self._as_loop_time(sent_at), is_lost

    def _as_loop_time(self, at: float) -> float:
        # The loop may stand still. Before `start` there are no heartbeats, and `at` is -inf.
        return at if self._loop is None else self._loop.time() - (self.clock() - at)

    # --- The thread -----------------------------------------------------------------------
    def run(self) -> None:
        try:
            while not self._ending.is_set():
                self._wake.wait(self.turn())
                self._wake.clear()
        except LoopClosedError:
            pass
        except Exception as error:  # noqa: BLE001 -- raised by every get
            failure = error  # which the name of an exception handler does not outlive
            with suppress(LoopClosedError):
                self.post(lambda: self._scope.fail(failure, name=NAME))
        finally:
            if self._cluster is not None:
                self._cluster.close()
            with suppress(LoopClosedError):
                self.post(self._ended.set)

    def post(self, call: Callable[[], None]) -> None:
        assert self._loop is not None  # noqa: S101 -- `start` begins the thread
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError as error:
            raise LoopClosedError from error

    def turn(self) -> float:
        snapshot, now = self._snapshot, self.clock()
        if snapshot is None:
            self.post(_nothing)
            return IDLE_S
        late_s = snapshot.interval_s * LATE_SHARE
        if self.has_news and snapshot.sent_as == self.latest.lost_as:
            self.post(_nothing)
            return min(IDLE_S, late_s)
        due_at = max(snapshot.due_at + late_s, self._not_before)
        if now < due_at:
            return min(due_at - now, IDLE_S)
        if self._does_loop_run(late_s):
            self._is_over = False
            self._not_before = self.clock() + late_s
        elif now >= snapshot.over_at:
            self._give_up()
            return min(IDLE_S, late_s)
        elif self._begin(snapshot):
            self._beat(snapshot)
        return 0.0

    def _give_up(self) -> None:
        if not self._is_over:
            self._is_over = True
            log.warning(
                "group %s: heartbeats are no longer sent, because the event loop is blocked and "
                "the application requested no records within max_poll_interval_ms. The group "
                "removes this member after its session timeout",
                self._group_id,
            )

    def _does_loop_run(self, patience_s: float) -> bool:
        answered = threading.Event()
        self.post(answered.set)
        return answered.wait(patience_s)

    def _begin(self, snapshot: Snapshot) -> bool:
        with self._lock:
            if self._snapshot is not snapshot or self._ending.is_set():
                return False
            self._begun += 1
            return True

    def _beat(self, snapshot: Snapshot) -> None:
        begun_as, sent_as = self._chain
        if snapshot.sent_as != begun_as:
            sent_as = snapshot.sent_as
        identity, answer, error = sent_as, None, None
        sent_at = self.clock()
        try:
            identity, answer = self._send(snapshot, sent_as)
        except KafkaError as failure:
            error = failure
        self._chain = snapshot.sent_as, identity
        self._note(snapshot, sent_as, sent_at, error)
        outcome = Outcome(sent_as, identity, answer, error, sent_at)
        self.post(lambda: self.note_outcome(outcome))

    def _note(
        self, snapshot: Snapshot, sent_as: Identity, sent_at: float, error: KafkaError | None
    ) -> None:
        recovery = Recovery.RETRY if error is None else recovery_for(error)
        if error is None or recovery is Recovery.REBALANCE:
            self.latest = LastHeartbeat(sent_at)
            self._not_before = sent_at + snapshot.interval_s
            return
        self._not_before = self.clock() + min(RETRY_S, snapshot.interval_s)
        if recovery.is_about_membership:
            self.latest = LastHeartbeat(self.latest.sent_at, snapshot.sent_as)
        if not self._ending.is_set():
            log.info(
                "group %s: a heartbeat sent by the heartbeat thread failed: %s",
                self._group_id,
                error,
            )

    def _send(self, snapshot: Snapshot, sent_as: Identity) -> tuple[Identity, Response]:
        """If the coordinator has moved, look it up and retry once."""
        if snapshot.node != self._told_node:
            self._told_node = self._node = snapshot.node
        try:
            return snapshot.send_heartbeat(self._connect(), sent_as)
        except KafkaError as error:
            if self._ending.is_set() or recovery_for(error) is not Recovery.REDISCOVER:
                raise
            self._node = None
        return snapshot.send_heartbeat(self._connect(), sent_as)

    def _connect(self) -> Send:
        if (cluster := self._cluster) is None:
            assert self._open_cluster is not None  # noqa: S101 -- `start` begins the thread
            cluster = self._cluster = self._open_cluster()
        if self._ending.is_set():  # `abandon` may not have seen the cluster
            raise ClientClosedError("the consumer is being stopped")
        if self._node is None:
            node_id = cluster.coordinator(self._group_id)
            self._node = cluster.view.nodes[node_id]
        coordinator = self._node

        def send(request: Request[R], node: Node | None = None) -> R:
            return cluster.request(node or coordinator, request)

        return send
