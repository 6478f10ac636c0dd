"""Holds and errors: whether reads may return records, and the error that the next read raises.

Each hold has an owner, which ends it. docs/design.md lists holds and errors. While `is_troubled` is
false, only holds apply.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable

from aiokafka_lite._tasks import own_copy
from aiokafka_lite.errors import KafkaError


class Hold(enum.Enum):
    """Why reads return no records; the values are shown to users."""

    LISTENER = "the rebalance listener has not returned yet"
    CUT_OFF = (
        "no heartbeat was answered within the session timeout, so another member may own the "
        "partition"
    )
    LOST = "the group has removed this member, so the partition is lost"


class Gate:
    """Holds and errors of reads. `note_raised` is called before a posted error is raised."""

    def __init__(self, note_raised: Callable[[BaseException], None]) -> None:
        # Written only here; replaced, never changed.
        self.holds: frozenset[Hold] = frozenset()
        self.is_troubled = False
        self._note_raised = note_raised
        self._look: Callable[[], None] | None = None
        # Loop time from which `look` may set a hold.
        self._look_at = math.inf
        self._observers: list[Callable[[], None]] = []
        self._refuse: Callable[[], Exception] | None = None
        self._death: BaseException | None = None
        self._untold: Callable[[], KafkaError | None] | None = None
        # Each is raised by one read.
        self._posted: list[KafkaError] = []
        self._listener_error: Exception | None = None

    def on_change(self, observer: Callable[[], None]) -> None:
        """Call `observer` when waiting and record-by-record reads have to look again."""
        self._observers.append(observer)

    def forget(self, observer: Callable[[], None]) -> None:
        self._observers.remove(observer)

    def _changed(self) -> None:
        for observer in self._observers:
            observer()

    # --- Holds ----------------------------------------------------------------------------
    def hold(self, reason: Hold) -> None:
        self._set_holds(self.holds | {reason})

    def look_by(self, look: Callable[[], None], at: float) -> None:
        """Set the function that sets a hold if a deadline has passed, and the earliest deadline."""
        self._look = look
        self._look_at = at

    def look_no_more_by(self, look: Callable[[], None]) -> None:
        """Undo `look_by`, unless another function was set since."""
        if self._look == look:
            self._look = None
            self._look_at = math.inf

    def look(self) -> None:
        """Check deadlines, because a blocked loop may have run no timer."""
        if self._look is not None:
            self._look()

    def look_if_due(self, now: float) -> None:
        """As `look`, for each turn of the loop."""
        if now >= self._look_at:
            self.look()

    def release(self, *reasons: Hold) -> None:
        self._set_holds(self.holds.difference(reasons))

    def _set_holds(self, holds: frozenset[Hold]) -> None:
        is_turned = bool(holds) != bool(self.holds)
        self.holds = holds
        if is_turned:
            self._changed()

    # --- Errors ---------------------------------------------------------------------------
    def refuse(self, error: Callable[[], Exception]) -> None:
        """Let every read raise a new `error()` until `admit`."""
        self._refuse = error
        self._trouble()

    def admit(self) -> None:
        """End refusals and former tasks' errors: the consumer is being started."""
        self._refuse = self._death = None

    def die(self, error: BaseException) -> None:
        self._death = error
        self._trouble()

    def leave_untold(self, error: Callable[[], KafkaError | None]) -> None:
        """Let every read raise the result of `error()`, until that is None."""
        self._untold = error
        self._trouble()

    def post(self, error: KafkaError) -> None:
        """Let one read raise `error`, the waiting or the next one. Equal errors count once."""
        if any(type(e) is type(error) and e.tp == error.tp for e in self._posted):
            return
        self._posted.append(error)
        self._trouble()

    def post_to_poll(self, error: Exception) -> None:
        """Let one `poll` raise the listener's error; the first of several."""
        if self._listener_error is None:
            self._listener_error = error
            self._changed()

    def _trouble(self) -> None:
        self.is_troubled = True
        self._changed()

    @property
    def posted_error(self) -> KafkaError | None:
        """The error that the next read raises, unless the consumer is stopped or a task failed."""
        if self._untold is not None and (untold := self._untold()) is not None:
            return untold
        return self._posted[0] if self._posted else None

    def check(self) -> None:
        """Raise the first error that applies."""
        if self._refuse is not None:
            raise self._refuse()
        if self._death is not None:
            # A copy: the traceback of the raised error would keep the caller's frames alive.
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
        """Raise the listener's error, once; only for `poll`."""
        if self._listener_error is not None:
            error, self._listener_error = self._listener_error, None
            raise error
