"""Whether gets hand out anything just now, and what the next one raises.

**Holds** are reasons why gets hand out nothing; they wait meanwhile. A hold ends when whoever set
it says so, whatever other holds there are:

    LISTENER  membership: from the new assignment on until the listener was told of it
    CUT_OFF   the lease: no heartbeat was answered for a session, so that others may have the
              partitions; until one is, or they are given up
    LOST      an answer said that the group does not count this member in any more; until the
              group task, which that answer wakes, has given the partitions up

**Errors**, the first of these that there is:

    refusal   the consumer is not started, or it is stopped (life.py): every get, until it changes
    death     what a background task died of: every get, until the stop
    untold    the listener did not finish taking partitions: every get, until it is told again, or
              they are given up
    posted    what membership, commits or positions met and could not settle: one get each
    listener  what the rebalance listener raised: one `poll`, and no other get

Errors of a partition stand in the buffer behind its records, and are raised in their turn.

While `is_troubled` is false there is no refusal, no death and nothing posted: a get that finds
nothing wrong looks at that and at `holds`, and at nothing else.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from aiokafka_lite._tasks import own_copy
from aiokafka_lite.errors import KafkaError


class Hold(enum.Enum):
    """Why gets hand out nothing; the values are a sentence about it."""

    LISTENER = "the rebalance listener has not returned yet"
    CUT_OFF = (
        "no heartbeat was answered within the session timeout, so another member may own the "
        "partition"
    )
    LOST = "the group has removed this member, so the partition is lost"


class Gate:
    """Holds and errors of one consumer's gets.

    Args:
        note_raised: Told of each posted error, just before a get raises it.
    """

    __slots__ = (
        "_death",
        "_listener_error",
        "_look",
        "_note_raised",
        "_observers",
        "_posted",
        "_refuse",
        "_untold",
        "holds",
        "is_troubled",
    )

    def __init__(self, note_raised: Callable[[BaseException], None]) -> None:
        # Written here only; replaced, never changed.
        self.holds: frozenset[Hold] = frozenset()
        self.is_troubled = False
        self._note_raised = note_raised
        self._look: Callable[[], None] | None = None
        self._observers: list[Callable[[], None]] = []
        self._refuse: Callable[[], Exception] | None = None
        self._death: BaseException | None = None
        self._untold: Callable[[], KafkaError | None] | None = None
        # Each is raised by one get.
        self._posted: list[KafkaError] = []
        self._listener_error: Exception | None = None

    def on_change(self, observer: Callable[[], None]) -> None:
        """Call `observer` when gets that wait, or hand out record by record, have to look again."""
        self._observers.append(observer)

    def forget(self, observer: Callable[[], None]) -> None:
        """Undo `on_change`."""
        self._observers.remove(observer)

    def _changed(self) -> None:
        for observer in self._observers:
            observer()

    # --- Holds ----------------------------------------------------------------------------
    def hold(self, reason: Hold) -> None:
        """Hand out nothing until this reason is released; idempotent."""
        self._set_holds(self.holds | {reason})

    def look_by(self, look: Callable[[], None]) -> None:
        """Set the function that holds gets if the clock says so."""
        self._look = look

    def look_no_more_by(self, look: Callable[[], None]) -> None:
        """Undo `look_by`, unless another function was set since."""
        if self._look == look:
            self._look = None

    def look(self) -> None:
        """Hold gets if the clock says so, in a loop that was blocked and has run no timer since."""
        if self._look is not None:
            self._look()

    def release(self, *reasons: Hold) -> None:
        """Undo `hold` for these reasons; gets hand out again once there is none. Idempotent."""
        self._set_holds(self.holds.difference(reasons))

    def _set_holds(self, holds: frozenset[Hold]) -> None:
        is_turned = bool(holds) != bool(self.holds)
        self.holds = holds
        if is_turned:
            self._changed()

    # --- Errors ---------------------------------------------------------------------------
    def refuse(self, error: Callable[[], Exception]) -> None:
        """Let every get raise what `error` returns until `admit`: each a new one.

        The traceback of one that was raised holds whoever has asked.
        """
        self._refuse = error
        self._trouble()

    def admit(self) -> None:
        """Let gets in: the consumer is being started. What its tasks died of before is over."""
        self._refuse = self._death = None

    def die(self, error: BaseException) -> None:
        """Let every get raise what a background task died of."""
        self._death = error
        self._trouble()

    def leave_untold(self, error: Callable[[], KafkaError | None]) -> None:
        """Let every get raise what `error` returns, until that is None."""
        self._untold = error
        self._trouble()

    def post(self, error: KafkaError) -> None:
        """Let one get raise `error`: the waiting one, or the next.

        What is met again before a get has raised it is one error: so there are few of them, and
        none that was over long ago, however long the application stays away.
        """
        if any(type(e) is type(error) and e.tp == error.tp for e in self._posted):
            return
        self._posted.append(error)
        self._trouble()

    def post_to_poll(self, error: Exception) -> None:
        """Let one `poll` raise what the listener raised; of several before it, the first."""
        if self._listener_error is None:
            self._listener_error = error
            self._changed()

    def _trouble(self) -> None:
        self.is_troubled = True
        self._changed()

    @property
    def posted_error(self) -> KafkaError | None:
        """The error that the next get raises, unless the consumer is stopped or dead."""
        if self._untold is not None and (untold := self._untold()) is not None:
            return untold
        return self._posted[0] if self._posted else None

    def check(self) -> None:
        """Raise what keeps a get from going on.

        Raises:
            ConsumerStoppedError: The consumer is stopped.
            IllegalStateError: It was not started.
            BaseException: What a background task died of, until the consumer is stopped.
            KafkaTimeoutError: The listener did not finish taking partitions.
            KafkaError: What was posted, once.
        """
        if self._refuse is not None:
            raise self._refuse()
        if self._death is not None:
            # A copy: the traceback of what is raised holds whoever has asked, and is kept here.
            raise own_copy(self._death)
        if self._untold is not None:
            if (untold := self._untold()) is not None:
                raise untold
            self._untold = None
        if self._posted:
            error = self._posted.pop(0)
            self._note_raised(error)
            raise error.with_traceback(None)
        self.is_troubled = False

    def check_poll(self) -> None:
        """Raise what only `poll` raises: the listener's error, once."""
        if self._listener_error is not None:
            error, self._listener_error = self._listener_error, None
            raise error
