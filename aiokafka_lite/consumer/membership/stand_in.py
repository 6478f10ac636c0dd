"""A thread that sends heartbeats for a member while the event loop is blocked.

The loop sends its own heartbeats as without the thread. If one is late by half an interval, the
thread asks the loop whether it runs (`call_soon_threadsafe`). If the loop does not respond, the
thread sends heartbeats on its own connection until the loop responds, or until the application has
requested no records for `max_poll_interval_ms`: a member that hangs has to be removed. The thread
never joins, leaves or commits, and its heartbeats contain no news.

The thread reads one immutable snapshot of the member, the `Pulse`. It reports outcomes in order, by
`call_soon_threadsafe`. Each shared field has one writer:

    _pulse       the loop      who the member is, and when the loop's next heartbeat is due
    _begun       the thread    how many heartbeats it has begun
    _taken       the loop      how many outcomes it has taken
    heard        the thread    the latest response, and whether the member is lost
    _connection  the thread    the loop can close it, as any thread may
    _ending      the loop      set once: the thread has to end

Loop and thread take turns (`Speaker.claim`), because a response may change the identity of the next
heartbeat. The lock is held while two numbers are compared.

A program that keeps the GIL, as some extensions do, blocks the thread as well.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from aiokafka_lite._compat import timeout, timeout_at
from aiokafka_lite._tasks import Event, TaskScope
from aiokafka_lite.client.view import Node
from aiokafka_lite.consumer.membership.lease import Elsewhere
from aiokafka_lite.consumer.membership.protocol import NO_IDENTITY, Identity
from aiokafka_lite.consumer.membership.recovery import Recovery, recovery_for
from aiokafka_lite.errors import ClientClosedError, KafkaError
from aiokafka_lite.protocol.schema import Request, Response

if TYPE_CHECKING:
    from aiokafka_lite.client.blocking import BlockingConnection
    from aiokafka_lite.client.blocking_cluster import BlockingCluster

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Response)

# Of the task that has it run.
NAME: Final = "heartbeat thread"
# How late the loop may be before it is asked whether it runs, and how long its answer may take:
# parts of the time between two heartbeats.
LATE_SHARE: Final = 0.5
# How often a thread with nothing to do looks whether the loop is still there.
IDLE_S: Final = 1.0
# Before a heartbeat that failed is tried again, at most.
RETRY_S: Final = 0.5
# How long a loop that runs again waits for the outcome of a heartbeat that the thread has begun.
TURN_S: Final = 0.5
# How long a stop waits for the end of the thread, which may be connecting.
END_S: Final = 1.0


class Send(Protocol):
    """Sends a request to the coordinator, and waits for its answer."""

    def __call__(self, request: Request[R]) -> R: ...


class Voice(Protocol):
    """Says in a protocol's words that a member lives; never changes."""

    def beat(self, send: Send, sent_as: Identity) -> tuple[Identity, Response]:
        """Send a heartbeat; return as whom the group knows the member from now on, and the answer.

        Raises:
            KafkaError: The coordinator refuses it, or cannot be asked.
        """


class Pulse(NamedTuple):
    """What the thread may know of a member; times are on the clock of `time.monotonic`."""

    voice: Voice
    sent_as: Identity
    # The coordinator, as far as the loop knows.
    node: Node | None
    # When the loop will speak itself.
    due_at: float
    # Between two heartbeats.
    interval_s: float
    # When the application has been away for too long.
    over_at: float


class Heard(NamedTuple):
    """What the thread has heard last; its time is on the clock of `time.monotonic`."""

    # A heartbeat was sent then that the coordinator has answered.
    at: float = -math.inf
    # As whom the member is not known any more; nobody: it is known.
    lost_as: Identity = NO_IDENTITY


class Outcome(NamedTuple):
    """What became of one heartbeat of the thread."""

    sent_as: Identity
    # As whom the group knows the member from then on.
    identity: Identity
    answer: Response | None
    error: KafkaError | None
    # On the clock of `time.monotonic`.
    sent_at: float


# Makes the thread's own view of the cluster: it waits by the function that it is given.
OpenCluster = Callable[[Callable[[float], None]], "BlockingCluster"]


class LoopClosedError(Exception):
    """The event loop is closed: there is nothing to stand in for."""


class LoopSide(Protocol):
    """The loop, as far as the thread knows it."""

    def post(self, call: Callable[[], None]) -> None:
        """Have the loop call a function; may be called by any thread.

        Raises:
            LoopClosedError: The loop is closed.
        """

    def take(self, outcome: Outcome) -> None:
        """Take the outcome of a heartbeat; called by the loop."""


class Speaker:
    """The thread's side: its methods run in the thread, but for those under "the loop"."""

    def __init__(
        self,
        group_id: str,
        open_cluster: OpenCluster,
        loop_side: LoopSide,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group_id = group_id
        self._open_cluster = open_cluster
        self._loop_side = loop_side
        self._clock = clock
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._pulse: Pulse | None = None
        self._begun = 0
        self._taken = 0
        self._ending = threading.Event()
        self.heard = Heard()
        self._cluster: BlockingCluster | None = None
        self._connection: BlockingConnection | None = None
        # Where the loop saw the coordinator last, and where it was found since.
        self._told_node: Node | None = None
        self._node: Node | None = None
        # As whom the loop believes to speak, and as whom the coordinator knows the member by now.
        self._chain = (NO_IDENTITY, NO_IDENTITY)
        self._not_before = -math.inf
        self._is_over = False

    # --- The loop -------------------------------------------------------------------------
    def claim(self, pulse: Pulse | None) -> bool:
        """Let the thread be silent until it is due again; None: until there is a pulse again.

        Returns:
            Whether the loop may speak now. Not while the thread does, nor before the loop has taken
            the outcome of that: it may have to speak as somebody else.
        """
        with self._lock:
            was_silent, self._pulse = self._pulse is None, pulse
            may_speak = pulse is None or not self.has_news
        if was_silent:
            self._wake.set()
        return may_speak

    @property
    def has_news(self) -> bool:
        """Whether there are heartbeats of whose outcome the loop has not heard yet."""
        return self._begun != self._taken

    def note_taken(self) -> None:
        """Note that the loop has taken an outcome."""
        with self._lock:
            self._taken += 1

    def hang_up(self) -> None:
        """End the heartbeat that is on its way, if any: it fails."""
        if (connection := self._connection) is not None:
            connection.close()

    def end(self) -> None:
        """Let the thread end, soon; idempotent."""
        self._ending.set()
        self._wake.set()
        self.hang_up()

    # --- The thread -----------------------------------------------------------------------
    def run(self) -> None:
        """Stand in for the loop until it says that it is enough, or is closed."""
        try:
            while not self._ending.is_set():
                self._wake.wait(self.turn())
                self._wake.clear()
        except LoopClosedError:  # and nobody has said that it is enough
            pass
        finally:
            if self._cluster is not None:
                self._cluster.close()

    def turn(self) -> float:
        """Do what is due; return how long to wait then."""
        pulse, now = self._pulse, self._clock()
        if pulse is None:
            self._loop_side.post(_nothing)
            return IDLE_S
        late_s = pulse.interval_s * LATE_SHARE
        if self.has_news and pulse.sent_as == self.heard.lost_as:
            self._loop_side.post(_nothing)
            return min(IDLE_S, late_s)
        due_at = max(pulse.due_at + late_s, self._not_before)
        if now < due_at:
            return min(due_at - now, IDLE_S)
        if self._does_loop_run(late_s):
            self._is_over = False
            self._not_before = self._clock() + late_s
        elif now >= pulse.over_at:
            self._give_up()
            return min(IDLE_S, late_s)
        elif self._begin(pulse):
            self._beat(pulse)
        return 0.0

    def _give_up(self) -> None:
        """Say once that the application is not waited for any more."""
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
        self._loop_side.post(answered.set)
        return answered.wait(patience_s)

    def _begin(self, pulse: Pulse) -> bool:
        """Begin to speak, unless the loop has spoken meanwhile."""
        with self._lock:
            if self._pulse is not pulse or self._ending.is_set():
                return False
            self._begun += 1
            return True

    def _beat(self, pulse: Pulse) -> None:
        """Send a heartbeat, and tell the loop what becomes of it."""
        begun_as, sent_as = self._chain
        if pulse.sent_as != begun_as:
            sent_as = pulse.sent_as
        identity, answer, error = sent_as, None, None
        sent_at = self._clock()
        try:
            identity, answer = self._speak(pulse, sent_as)
        except KafkaError as failure:
            error = failure
        self._chain = pulse.sent_as, identity
        self._note(pulse, sent_as, sent_at, error)
        outcome = Outcome(sent_as, identity, answer, error, sent_at)
        self._loop_side.post(lambda: self._loop_side.take(outcome))

    def _note(
        self, pulse: Pulse, sent_as: Identity, sent_at: float, error: KafkaError | None
    ) -> None:
        """Note when the member was heard of, and when to speak again."""
        recovery = Recovery.RETRY if error is None else recovery_for(error)
        if error is None or recovery is Recovery.REBALANCE:
            self.heard = Heard(sent_at)
            self._not_before = sent_at + pulse.interval_s
            return
        self._not_before = self._clock() + min(RETRY_S, pulse.interval_s)
        if recovery.is_about_membership:
            self.heard = Heard(self.heard.at, pulse.sent_as)
        if not self._ending.is_set():
            log.info(
                "group %s: a heartbeat sent by the heartbeat thread failed: %s",
                self._group_id,
                error,
            )

    def _speak(self, pulse: Pulse, sent_as: Identity) -> tuple[Identity, Response]:
        """Send a heartbeat; look for the coordinator if it has moved, and try once more."""
        if pulse.node != self._told_node:
            self._told_node = self._node = pulse.node
        try:
            return pulse.voice.beat(self._sender(pulse), sent_as)
        except KafkaError as error:
            if self._ending.is_set() or recovery_for(error) is not Recovery.REDISCOVER:
                raise
            self._node = None
        return pulse.voice.beat(self._sender(pulse), sent_as)

    def _sender(self, pulse: Pulse) -> Send:
        if self._cluster is None:
            self._cluster = self._open_cluster(self._pause)
        cluster = self._cluster
        if self._node is None:
            node_id = cluster.coordinator(self._group_id)
            self._node = cluster.view.nodes[node_id]
        connection = self._connection = cluster.connection(self._node)
        self._raise_if_ending()

        def send(request: Request[R]) -> R:
            return connection.request(request, timeout_s=cluster.config.request_timeout_s)

        return send

    def _pause(self, delay_s: float) -> None:
        """Wait, but not beyond the end."""
        self._ending.wait(delay_s)
        self._raise_if_ending()

    def _raise_if_ending(self) -> None:
        if self._ending.is_set():
            raise ClientClosedError("the consumer is being stopped")


def _nothing() -> None:
    """Do nothing, on the loop: it is there."""


class StandIn:
    """The loop's side of one membership's thread, where there is to be one.

    Args:
        group_id: The group.
        open_cluster: Makes the thread's connections; None: there is no thread.
        scope: Supervises the task that has the thread run.
        hear: Told of each outcome, with the loop time at which the heartbeat was sent.
    """

    def __init__(
        self,
        group_id: str,
        open_cluster: OpenCluster | None,
        *,
        scope: TaskScope,
        hear: Callable[[Outcome, float], None],
    ) -> None:
        self._group_id = group_id
        self._scope = scope
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self._ended = Event()
        self._task: asyncio.Task[None] | None = None
        self._speaker: Speaker | None = None
        if open_cluster is not None:
            self._speaker = Speaker(group_id, open_cluster, self)
        # How many heartbeats of the thread were answered.
        self.count = 0

    # --- Its life -------------------------------------------------------------------------
    @property
    def is_there(self) -> bool:
        """Whether there is a thread."""
        return self._speaker is not None

    def start(self) -> None:
        """Start the task that has the thread run."""
        if self._speaker is not None:
            self._task = self._scope.spawn(self._run(self._speaker), name=NAME)

    async def _run(self, speaker: Speaker) -> None:
        thread = threading.Thread(
            target=self._run_thread,
            args=(speaker,),
            name=f"heartbeats of {self._group_id}",
            daemon=True,
        )
        thread.start()
        try:
            await self._ended.wait()
        finally:
            speaker.end()
            with suppress(asyncio.TimeoutError):  # while it connects: it ends when that does
                async with timeout(END_S):
                    await self._ended.wait()
                thread.join()  # that was its last word

    def _run_thread(self, speaker: Speaker) -> None:
        try:
            speaker.run()
        except Exception as error:  # noqa: BLE001 -- raised by every get
            failure = error  # which the name of an exception handler does not outlive
            with suppress(LoopClosedError):
                self.post(lambda: self._scope.fail(failure, name=NAME))
        with suppress(LoopClosedError):
            self.post(self._ended.set)

    def post(self, call: Callable[[], None]) -> None:
        """Have the loop call a function; see LoopSide."""
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError as error:
            raise LoopClosedError from error

    def abandon(self) -> None:
        """Begin to end the thread, and with it the task; waits for nothing."""
        if self._speaker is not None:
            self._speaker.end()

    async def end(self) -> None:
        """End the thread, and wait for that as long as it can be expected to take."""
        if self._task is not None:
            await self._scope.stop(self._task)

    # --- Speaking in turns ----------------------------------------------------------------
    def rest(self) -> None:
        """Let the thread be silent: there is nobody to speak for."""
        if self._speaker is not None:
            self._speaker.claim(None)

    def note_next(
        self,
        voice: Voice,
        sent_as: Identity,
        node: Node | None,
        *,
        next_s: float,
        interval_s: float,
        left_s: float,
    ) -> bool:
        """Say when the loop will be heard next: the thread speaks if it is not.

        Args:
            voice: Makes heartbeats.
            sent_as: As whom.
            node: The coordinator, as far as known.
            next_s: In how many seconds.
            interval_s: Between two heartbeats of the thread.
            left_s: In how many seconds the application has been away for too long.

        Returns:
            Whether the loop may speak now: the thread does not.
        """
        if self._speaker is None:
            return True
        now = time.monotonic()
        pulse = Pulse(voice, sent_as, node, now + next_s, interval_s, now + left_s)
        return self._speaker.claim(pulse)

    async def wait_for_turn(
        self, note_next: Callable[[], bool], wait_for_change: Callable[[], Awaitable[None]]
    ) -> None:
        """Wait until the loop may speak: for the outcome of what the thread has begun, or its end.

        Args:
            note_next: Says when the loop will be heard next; returns whether it may speak now.
            wait_for_change: Waits for an outcome, among other things.
        """
        until = self._loop.time() + TURN_S
        while not note_next():
            try:
                async with timeout_at(until):
                    await wait_for_change()
            except asyncio.TimeoutError:
                if self._speaker is not None:
                    self._speaker.hang_up()
                until = self._loop.time() + TURN_S

    # --- What the thread has heard --------------------------------------------------------
    def take(self, outcome: Outcome) -> None:
        """Take the outcome of a heartbeat of the thread."""
        if self._speaker is not None:
            self._speaker.note_taken()
        if outcome.error is None:
            self.count += 1
        sent_at = self._as_loop_time(outcome.sent_at)
        self._scope.guard(lambda: self._hear(outcome, sent_at), name=NAME)()

    def heard(self, identity: Identity) -> Elsewhere:
        """Return what the thread has heard, and the loop may not know yet; see Ear."""
        if (speaker := self._speaker) is None:
            return Elsewhere(-math.inf, is_lost=False)
        at, lost_as = speaker.heard
        is_lost = speaker.has_news and lost_as == identity != NO_IDENTITY
        return Elsewhere(self._as_loop_time(at), is_lost)

    def _as_loop_time(self, at: float) -> float:
        return self._loop.time() - (time.monotonic() - at)
