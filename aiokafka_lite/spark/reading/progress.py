"""The progress of fetching a range of offsets, without I/O."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Final, NamedTuple

from aiokafka_lite.client.view import Node
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.spark.ranges import KafkaOffsetRange
from aiokafka_lite.structs import TopicPartition

# The size of a record of a topic that was not read yet.
FIRST_GUESS_BYTES: Final = 1024.0
# The size of a topic's first fetch: rows arrive soon, and the next fetch has a better estimate.
FIRST_FETCH_BYTES: Final = 1024 * 1024
# Added to the expected size of the rest of a range, because it has to end with a whole batch.
SPARE_SHARE: Final = 1.05
SPARE_BYTES: Final = 16 * 1024
# The factor by which the limit grows when a batch of the range did not fit.
SPARE_GROWTH: Final = 8


class FetchedChunk(NamedTuple):
    """The records of a range in one response."""

    progress: RangeProgress
    fetch_offset: int
    records: memoryview
    aborted: list[tuple[int, int]] | None


class RangeProgress:
    """A range that is being fetched. Only the fetching thread changes it.

    Attributes:
        topic_id: The id of the topic that is read, which is a new one if data loss is tolerated.
        node: The node to fetch from. None until it is in the metadata.
        is_located: Whether `node` may be used: not after an error, until the next lookup.
        failing_since: The first failure since records were received.
        failures: The number of failures since then.
        empty_answers: The number of empty responses in a row that count.
    """

    def __init__(self, wanted: KafkaOffsetRange, record_bytes: MutableMapping[str, float]) -> None:
        self.topic = wanted.topic
        self.partition = wanted.partition
        self.tp = TopicPartition(wanted.topic, wanted.partition)
        self.position = wanted.start
        self.end = wanted.end
        self.topic_id = wanted.topic_id
        self.node: Node | None = wanted.leader
        self.leader_epoch = wanted.leader_epoch
        self.is_located = wanted.leader is not None
        self.failing_since: float | None = None
        self.failures = 0
        self.retry_at = 0.0
        self.error: KafkaError | None = None
        self.empty_answers = 0
        self._record_bytes = record_bytes
        self._spare_bytes = SPARE_BYTES

    @property
    def is_done(self) -> bool:
        return self.position >= self.end

    @property
    def left_bytes(self) -> int:
        """About how many bytes the rest of the range has."""
        record_bytes = self._record_bytes.get(self.topic, FIRST_GUESS_BYTES)
        return int((self.end - self.position) * record_bytes)

    def limit_bytes(self, most: int) -> int:
        """Return the size of the next fetch: not much beyond the end."""
        if self.topic not in self._record_bytes:
            most = min(most, FIRST_FETCH_BYTES)
        return min(most, int(self.left_bytes * SPARE_SHARE) + self._spare_bytes)

    def ask_for_more(self) -> None:
        """Request a larger batch with the next fetch.

        Only the first partition of a response gets a batch beyond its limit (KIP-74).
        """
        self._spare_bytes *= SPARE_GROWTH

    def advance(self, position: int, size_bytes: int) -> None:
        # Only the latest response counts, because sizes of records change over time.
        self._record_bytes[self.topic] = size_bytes / (position - self.position)
        self.position = position
        self.failing_since = self.error = None
        self.failures = 0
        self.empty_answers = 0

    def failed(self, error: KafkaError, now: float) -> None:
        """Note a failure. The node is not used again before it is looked up."""
        self.error = error
        self.failures += 1
        self.is_located = False
        if self.failing_since is None:
            self.failing_since = now

    def __str__(self) -> str:
        where = (
            ""
            if self.node is None
            else f" from node {self.node.id} ({self.node.host}:{self.node.port})"
        )
        return f"partition {self.partition} of topic {self.topic} at offset {self.position}{where}"
