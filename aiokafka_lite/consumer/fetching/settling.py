"""What one partition's share of a fetch answer means: records, an error, or nothing new.

Each share is settled exactly once. Errors:

    leader moved, epoch fenced, topic unknown     refresh metadata, back off, ask again
    other retriable errors                        back off, ask again
    offset out of range, says a follower          back off, ask the leader
    offset out of range, says the leader          reset by policy; without one: raised, sticky
    everything else, unknown codes included       raised once per backoff, position unchanged
"""

from __future__ import annotations

import logging
import random
from typing import Final

from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.delivery.fetch_queue import FetchQueue
from aiokafka_lite.consumer.delivery.fetched import FetchedPartition, FetchedResponse
from aiokafka_lite.consumer.fetching.session import FetchTarget
from aiokafka_lite.consumer.state import PartitionState, SubscriptionState
from aiokafka_lite.errors import (
    CorruptRecordException,
    FencedLeaderEpochError,
    InconsistentTopicIdError,
    KafkaError,
    OffsetOutOfRangeError,
    UnknownError,
    UnknownLeaderEpochError,
    UnknownTopicIdError,
    for_code,
)
from aiokafka_lite.protocol.messages.fetch import PartitionData
from aiokafka_lite.records import RecordSet, end_offset

log = logging.getLogger(__name__)

LAST_BACKOFF_S: Final = 1.0
OUT_OF_RANGE: Final = "out of range"
# They say that metadata is out of date, whatever their class says.
STALE_METADATA: Final = (
    FencedLeaderEpochError,
    UnknownLeaderEpochError,
    UnknownTopicIdError,
    InconsistentTopicIdError,
)


class Settling:
    """Turns partitions' answers into buffered shares, backoffs and errors."""

    def __init__(
        self,
        config: ConsumerConfig,
        state: SubscriptionState,
        queue: FetchQueue,
        rng: random.Random,
    ) -> None:
        self._config = config
        self._state = state
        self._queue = queue
        self._rng = rng
        self._check_crcs = config.check_crcs
        self._is_read_committed = config.is_read_committed
        # Set when an answer shows that the metadata is out of date; whoever acts on it resets it.
        self.is_metadata_stale = False

    def backoff_s(self, failure_count: int) -> float:
        """Return the delay after so many failures in a row: doubling up to 1 s, with jitter."""
        delay_s = min(self._config.retry_backoff_s * 2.0 ** min(failure_count, 10), LAST_BACKOFF_S)
        return delay_s * self._rng.uniform(1.0, 1.2)

    def back_off(
        self, partition: PartitionState, error_class: type[KafkaError], now: float
    ) -> None:
        """Have nothing asked of a partition for a while, longer with each failure in a row."""
        partition.retry_at = now + self.backoff_s(partition.failure_count)
        partition.retry_reason = error_class.__name__
        partition.failure_count += 1

    def settle(
        self, target: FetchTarget, answer: PartitionData, response: FetchedResponse, now: float
    ) -> FetchedPartition | None:
        """Settle an answer that is not stale; return the share to buffer, if it has records."""
        partition = target.partition
        partition.last_fetch_at = now
        if answer.error_code:
            self._settle_error(partition, for_code(answer.error_code), answer.error_code, now)
            return None
        partition.failure_count = 0
        partition.retry_reason = ""
        partition.high_watermark = answer.high_watermark
        is_stable_known = answer.last_stable_offset >= 0  # not by old brokers
        partition.last_stable_offset = answer.last_stable_offset if is_stable_known else None
        partition.log_start_offset = answer.log_start_offset
        if not answer.records:
            return None
        view = memoryview(answer.records)
        return FetchedPartition(
            partition,
            self._queue.delivery,
            response=response,
            records=RecordSet(
                partition.tp.topic,
                partition.tp.partition,
                view,
                fetch_offset=target.offset,
                check_crcs=self._check_crcs,
                aborted=aborted_transactions(answer) if self._is_read_committed else None,
            ),
            end_offset=end_offset(view),
        )

    def _settle_error(
        self, partition: PartitionState, error_class: type[KafkaError], code: int, now: float
    ) -> None:
        if partition.failure_count == 0:  # one line per change of state
            log.warning(
                "fetching %s/%s at offset %s: %s",
                *partition.tp,
                partition.fetched,
                error_class.__name__,
            )
        self.back_off(partition, error_class, now)
        if error_class is OffsetOutOfRangeError:
            # A follower may lag, or have deleted more: only the leader can say it for certain.
            if partition.preferred_replica is None:
                self._settle_out_of_range(partition)
            return
        if error_class.invalid_metadata or error_class in STALE_METADATA:
            self.is_metadata_stale = True
        is_passing = error_class.retriable or error_class.invalid_metadata
        if code == UnknownError.errno or (is_passing and error_class is not CorruptRecordException):
            return
        if error_class is UnknownError:
            text = f"the broker answered with error code {code}, which this version does not know"
        else:
            text = "the broker cannot serve it"
        topic, number = partition.tp
        text = f"partition {number} of topic {topic} at offset {partition.fetched}: {text}"
        self._queue.put_error(partition, error_class(text).at(partition.tp, partition.fetched))

    def _settle_out_of_range(self, partition: PartitionState) -> None:
        offset = partition.fetched
        if offset != partition.position:
            return  # records ahead of it are still to be handed out: asked again after them
        timestamp = self._config.reset_timestamp
        if timestamp is not None:
            log.warning(
                "offset %s of %s/%s is out of range: reset to the %s offset",
                offset,
                *partition.tp,
                self._config.auto_offset_reset,
            )
            self._state.request_reset(partition, timestamp, reason=OUT_OF_RANGE)
            return
        error = OffsetOutOfRangeError({partition.tp: offset}).at(partition.tp, offset)
        self._queue.put_error(partition, error, is_sticky=True)


def aborted_transactions(answer: PartitionData) -> list[tuple[int, int]]:
    """Return producer id and first offset of the transactions to leave out of a record set."""
    return [
        (aborted.producer_id, aborted.first_offset) for aborted in answer.aborted_transactions or ()
    ]
