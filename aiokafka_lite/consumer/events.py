"""Publishes a consumer's events to subscribers, synchronously and without errors."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from aiokafka_lite.events import ConsumerEvent, EventSubscription

log = logging.getLogger(__name__)

DEFAULT_BUFFERED_EVENTS: Final = 1_000
# At most one log line in this time for each kind of event and subject.
LOG_INTERVAL_S: Final = 60.0
MAX_LOG_SUBJECTS: Final = 1_000


class LogLimit:
    """Permits one log line a minute for each subject, and counts the others."""

    def __init__(self) -> None:
        # The time of the latest line, and the number of lines suppressed since.
        self._logged: dict[object, tuple[float, int]] = {}

    def let_in(self, subject: object, now: float) -> str | None:
        """Return the suffix of a line logged at loop time `now`. None: do not log it."""
        logged_at, kept_back = self._logged.get(subject, (-LOG_INTERVAL_S, 0))
        if now - logged_at < LOG_INTERVAL_S:
            self._logged[subject] = logged_at, kept_back + 1
            return None
        if len(self._logged) >= MAX_LOG_SUBJECTS:
            self._logged.clear()
        self._logged[subject] = now, 0
        return f" ({kept_back} like it before)" if kept_back else ""


class Events:
    """Counts and logs a consumer's events, and passes them to the subscribers."""

    def __init__(self) -> None:
        # By name.
        self.counts: dict[str, int] = {}
        # Offsets lost by resets, and the number that the brokers still had.
        self.lost_offsets = (0, 0)
        # Weak, so that a subscription ends with its task.
        self._subscriptions: weakref.WeakKeyDictionary[EventSubscription, None] = (
            weakref.WeakKeyDictionary()
        )
        self._log_limit = LogLimit()
        self._is_closed = False

    def publish(self, event: ConsumerEvent, *, level: int | None = None) -> None:
        """Publish and log an event, once for each change; `level` replaces that of its class."""
        self.counts[event.name] = self.counts.get(event.name, 0) + 1
        level = event.level if level is None else level
        if level is not None:
            subject = event.name, level, event.subject
            if (ending := self._log_limit.let_in(subject, event.at_s)) is not None:
                log.log(level, "%s%s", event, ending)
        for subscription in self._subscriptions:
            subscription.put(event)

    def count_lost(self, lost: int, skipped: int) -> None:
        self.lost_offsets = self.lost_offsets[0] + lost, self.lost_offsets[1] + skipped

    def subscribe(self, max_buffered: int = DEFAULT_BUFFERED_EVENTS) -> EventSubscription:
        from aiokafka_lite.events import EventSubscription

        subscription = EventSubscription(self._subscriptions, max_buffered)
        if self._is_closed:
            subscription.close()
        return subscription

    def close(self) -> None:
        self._is_closed = True
        for subscription in tuple(self._subscriptions):
            subscription.end()
