"""What one broker is asked for: the partitions that are read from it, brought into its session."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.fetching.session import FetchSession

if TYPE_CHECKING:
    from aiokafka_lite.consumer.fetching.oversized import OversizeSearch
    from aiokafka_lite.consumer.fetching.source import Source
    from aiokafka_lite.consumer.fetching.sources import Sources


class Claim(NamedTuple):
    """What is asked for alone next, because an answer was more than there was room for."""

    partition: Cursor
    size_bytes: int


class NodeTargets:
    """The partitions of one node; what has changed about them is looked at before a request."""

    def __init__(self, sources: Sources, node: Source, session: FetchSession) -> None:
        self.partitions: set[Cursor] = set()
        # Looked at again before the next request.
        self.touched: dict[Cursor, None] = {}
        # Partitions in a backoff of their own, looked at again when it ends.
        self.backing_off: dict[Cursor, None] = {}
        self._sources = sources
        self._node = node
        self._session = session
        self._loop = asyncio.get_running_loop()
        # Until it is answered, or its partition cannot be asked for.
        self.claim: Claim | None = None
        # Made when an answer is too large to be received.
        self._oversize: OversizeSearch | None = None

    def add(self, partition: Cursor) -> None:
        """Ask for a partition from the next request on."""
        self.partitions.add(partition)

    def remove(self, partition: Cursor) -> None:
        """Do not ask for a partition from the next request on."""
        self.partitions.discard(partition)

    def touch(self, partition: Cursor) -> None:
        """Look at a partition again before the next request."""
        self.touched[partition] = None

    def touch_all(self) -> None:
        """Look at all partitions again before the next request."""
        self.touched.update(dict.fromkeys(self.partitions))

    def forget(self, partition: Cursor) -> None:
        """Know nothing of a partition any more."""
        self.partitions.discard(partition)
        self.touched.pop(partition, None)
        self.backing_off.pop(partition, None)
        self._session.want(partition.tp, None)

    def apply(self) -> float | None:
        """Bring the session's targets up to date; return when the next backoff ends."""
        now = self._loop.time()
        if now >= self._sources.replicas.lease_ends_at:
            self._sources.end_leases(now)
        if self.backing_off:
            for partition in tuple(self.backing_off):
                if partition.retry_at <= now:
                    del self.backing_off[partition]
                    self.touched[partition] = None
        search = self._oversize
        if search is not None and search.is_on:
            search.pass_idle(self.can_be_asked)
            self.touch_all()
        if self.claim is not None and not self.can_be_asked(self.claim.partition):
            self._end_claim()
        touched, self.touched = self.touched, {}
        for partition in touched:
            target = None
            if partition in self.partitions and self._may_ask_for(partition):
                target = self._sources.target(partition, self._node)
                if target is not None and partition.retry_at > now:
                    target = None
                    self.backing_off[partition] = None
            self._session.want(partition.tp, target)
        if not self.backing_off:
            return None
        return min(partition.retry_at for partition in self.backing_off)

    def _may_ask_for(self, partition: Cursor) -> bool:
        """Whether a partition is not left out for the sake of one that is asked for alone."""
        if self.claim is not None and self.claim.partition is not partition:
            return False
        return self._oversize is None or self._oversize.allows(partition)

    @property
    def is_behind(self) -> bool:
        """Whether the next request is known to bring records."""
        if self.claim is not None:
            return True
        return any(self._sources.is_behind(partition) for partition in self._session.partitions)

    def is_unmoved(self, partition: Cursor) -> bool:
        """Whether the latest request asked for what comes next of a partition."""
        target = self._session.wanted(partition.tp)
        return (
            target is not None
            and target.partition is partition
            and target.tag == partition.tag
            and target.offset == partition.fetched
        )

    # --- Answers that are too large --------------------------------------------------------
    def claim_bytes(self, partition: Cursor, size_bytes: int) -> None:
        """Ask next for a partition alone, as soon as there are so many bytes for it."""
        self.claim = Claim(partition, size_bytes)
        self.touch_all()

    def _end_claim(self) -> None:
        self.claim = None
        self._sources.budget.withdraw(self._node)
        self.touch_all()

    def search_oversized(self, size_bytes: int, limit_bytes: int) -> None:
        """Find the partition whose next batch is too large to be received, and give it an error."""
        from aiokafka_lite.consumer.fetching.oversized import OversizeSearch, too_large

        search = self._oversize = self._oversize or OversizeSearch()
        asked = self._session.partitions
        self.touch_all()
        if len(asked) > 1:
            search.begin(asked)
        elif asked and self.is_unmoved(asked[0]) and search.is_found(asked[0]):
            error = too_large(asked[0], size_bytes, limit_bytes)
            self._sources.buffer.put_error(asked[0], error, is_sticky=True)

    def answered(self) -> None:
        """Note that an answer could be received: what was left out for its sake is asked for."""
        if self.claim is not None:
            self._end_claim()
        if self._oversize is not None and self._oversize.is_on:
            self._oversize.answered()
            self.touch_all()

    def can_be_asked(self, partition: Cursor) -> bool:
        """Whether a request could ask for a partition now, were it sent."""
        return (
            partition in self.partitions
            and partition.retry_at <= self._loop.time()
            and self._sources.target(partition, self._node) is not None
        )
