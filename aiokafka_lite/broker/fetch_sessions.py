"""Incremental fetch sessions (KIP-227): requests and responses have only the changes.

    epoch  0  a full request, which creates a session if there is room
    epoch  n  the n-th request of a session: partitions are added, updated or removed, and the
        response omits unchanged partitions
    epoch -1  a full request without a session

The epochs 0 and -1 also close the session with the given id, if any. Kafka:
kafka.server.FetchManager, org.apache.kafka.server.FetchSession.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from aiokafka_lite.errors import (
    BrokerResponseError,
    FetchSessionIdNotFound,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpoch,
    NoError,
)
from aiokafka_lite.protocol.messages.fetch import FetchPartition, PartitionData

NO_SESSION: Final = 0
FULL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_LAST_EPOCH: Final = 2**31 - 1

UNKNOWN_OFFSET: Final = -1


class FetchKey(NamedTuple):
    """A partition in a request: by topic name before version 13, by topic id since."""

    topic: str | bytes
    partition: int


@dataclass
class CachedPartition:
    """One partition of a request, with the offsets that the session's client last received."""

    key: FetchKey
    asked: FetchPartition
    sent_high_watermark: int = UNKNOWN_OFFSET
    sent_log_start_offset: int = UNKNOWN_OFFSET

    def note_sent(self, data: PartitionData) -> None:
        # The next response after an error is sent in any case.
        is_error = data.error_code != NoError.errno
        self.sent_high_watermark = UNKNOWN_OFFSET if is_error else data.high_watermark
        self.sent_log_start_offset = data.log_start_offset

    def is_news(self, data: PartitionData) -> bool:
        """Return whether an incremental response must include this."""
        return bool(
            data.records
            or data.error_code != NoError.errno
            or data.high_watermark != self.sent_high_watermark
            or data.log_start_offset != self.sent_log_start_offset
            or data.diverging_epoch.epoch >= 0
            or data.preferred_read_replica >= 0
        )


ReadPartitions: TypeAlias = Sequence[tuple[CachedPartition, PartitionData]]
# A session id, and the partitions of the response.
SessionReply: TypeAlias = tuple[int, list[tuple[FetchKey, PartitionData]]]


@dataclass
class BrokerFetchSession:
    id: int
    uses_topic_ids: bool
    created_at: float
    last_used_at: float
    epoch: int
    targets: dict[FetchKey, CachedPartition] = field(default_factory=dict)

    def update(self, wanted: Iterable[CachedPartition], forgotten: Iterable[FetchKey]) -> None:
        for target in wanted:
            known = self.targets.get(target.key)
            if known is None:
                self.targets[target.key] = target
            else:
                known.asked = target.asked
        for key in forgotten:
            self.targets.pop(key, None)


@dataclass(eq=False)
class FetchContext:
    """How to read and answer one request, by itself one without a session."""

    targets: Sequence[CachedPartition] = ()
    error: type[BrokerResponseError] = NoError

    def to_send(self, results: ReadPartitions) -> SessionReply:
        """Return the session id and the partitions of the response. Called once."""
        return NO_SESSION, [(target.key, data) for target, data in results]


@dataclass(eq=False, kw_only=True)
class FullContext(FetchContext):
    """A full request whose response creates a session, if there is room."""

    cache: FetchSessionCache
    uses_topic_ids: bool
    now: float

    def to_send(self, results: ReadPartitions) -> SessionReply:
        session_id, partitions = super().to_send(results)
        session = self.cache.create(len(results), self.uses_topic_ids, self.now)
        if session is not None:
            session_id = session.id
            for target, data in results:
                target.note_sent(data)
                session.targets[target.key] = target
        return session_id, partitions


@dataclass(eq=False, kw_only=True)
class IncrementalContext(FetchContext):
    session: BrokerFetchSession
    # Differs from the session's at the response if the client sent another request, which breaks
    # the protocol.
    epoch: int

    def to_send(self, results: ReadPartitions) -> SessionReply:
        session = self.session
        if session.epoch != self.epoch:
            self.error = InvalidFetchSessionEpoch
            return session.id, []
        news = [(target, data) for target, data in results if target.is_news(data)]
        for target, data in news:
            target.note_sent(data)
            if data.records and target.key in session.targets:
                # Partitions with data move to the end, so that all get a turn.
                session.targets[target.key] = session.targets.pop(target.key)
        return session.id, [(target.key, data) for target, data in news]


class FetchSessionCache:
    """All sessions, at most `capacity`. Written only from the broker's loop.

    A new session may replace one that was unused for `eviction_s`, or else the smallest one that is
    smaller than itself and older than that.
    """

    def __init__(self, capacity: int, eviction_s: float, rng: random.Random) -> None:
        self._capacity = capacity
        self._eviction_s = eviction_s
        self._rng = rng
        # The least recently used first.
        self._sessions: dict[int, BrokerFetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def clear(self) -> None:
        self._sessions.clear()

    def context(
        self,
        session_id: int,
        epoch: int,
        wanted: Sequence[CachedPartition],
        forgotten: Iterable[FetchKey],
        *,
        uses_topic_ids: bool,
        now: float,
    ) -> FetchContext:
        if epoch in (FULL_EPOCH, FINAL_EPOCH):
            self._sessions.pop(session_id, None)
            if epoch == FINAL_EPOCH:
                return FetchContext(wanted)
            return FullContext(wanted, cache=self, uses_topic_ids=uses_topic_ids, now=now)
        session = self._sessions.get(session_id)
        if session is None:
            return FetchContext(error=FetchSessionIdNotFound)
        if session.epoch != epoch:
            return FetchContext(error=InvalidFetchSessionEpoch)
        if session.uses_topic_ids != uses_topic_ids:
            return FetchContext(error=FetchSessionTopicIdError)
        session.update(wanted, forgotten)
        if not session.targets:
            del self._sessions[session_id]
            return FetchContext()
        session.epoch = epoch + 1 if epoch < _LAST_EPOCH else 1
        session.last_used_at = now
        self._sessions[session_id] = self._sessions.pop(session_id)
        targets = list(session.targets.values())
        return IncrementalContext(targets, session=session, epoch=session.epoch)

    def keys_of(self, session_id: int) -> Sequence[FetchKey]:
        session = self._sessions.get(session_id)
        return () if session is None else tuple(session.targets)

    def create(self, size: int, uses_topic_ids: bool, now: float) -> BrokerFetchSession | None:
        if len(self._sessions) >= self._capacity and not self._evict_for(size, now):
            return None
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._rng.randrange(1, 2**31)
        session = BrokerFetchSession(session_id, uses_topic_ids, now, now, epoch=1)
        self._sessions[session_id] = session
        return session

    def _evict_for(self, size: int, now: float) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False  # no sessions are kept at all
        if now - oldest.last_used_at > self._eviction_s:
            del self._sessions[oldest.id]
            return True
        settled = [s for s in self._sessions.values() if now - s.created_at > self._eviction_s]
        smallest = min(settled, key=lambda session: len(session.targets), default=None)
        if smallest is None or len(smallest.targets) >= size:
            return False
        del self._sessions[smallest.id]
        return True
