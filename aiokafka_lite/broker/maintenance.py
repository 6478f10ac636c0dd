"""Periodic jobs: retention, compaction, expiry of offsets and transactional ids.

One task runs one job at a time, in slices of the loop's time, with requests in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from aiokafka_lite.broker.log.compaction import compact
from aiokafka_lite.broker.log.partition_log import count_expired
from aiokafka_lite.broker.slices import run_in_slices
from aiokafka_lite.broker.topics import Topic
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.protocol.source import Steps

logger = logging.getLogger(__name__)

# Kafka's delay of these jobs after the start (log.initial.task.delay.ms).
FIRST_DELAY_S: Final = 30.0


@dataclass(frozen=True)
class Chore:
    """A periodic job. `interval_s` is from its end to its next start."""

    interval_s: float
    steps: Callable[[], Steps[None]]


class Maintenance:
    def __init__(self, jobs: Iterable[Chore]) -> None:
        self._jobs = tuple(jobs)
        self._running = asyncio.Lock()

    async def run(self) -> None:
        """Run each job at its interval until cancelled, possibly in the middle of a job."""
        loop = asyncio.get_running_loop()
        due = {job: loop.time() + min(job.interval_s, FIRST_DELAY_S) for job in self._jobs}
        while due:
            job = min(due, key=lambda job: due[job])
            await asyncio.sleep(due[job] - loop.time())
            async with self._running:
                await run_in_slices(job.steps())
            due[job] = loop.time() + job.interval_s

    async def run_once(self) -> None:
        async with self._running:
            for job in self._jobs:
                await run_in_slices(job.steps())


def delete_expired(topics: Iterable[Topic], now_ms: int) -> Steps[None]:
    """Delete expired segments, one partition per step."""
    for topic in tuple(topics):
        if not topic.config.is_deleted_by_retention:
            continue
        for partition in topic.partitions:
            segments = partition.log.segments
            count = count_expired(segments, topic.config, now_ms)
            # Segments that followers do not have yet are not deleted.
            while count < len(segments) and segments[count].base_offset > partition.high_watermark:
                count -= 1
            if count:
                partition.expire_segments(count)
            yield


def compact_all(topics: Iterable[Topic], now_ms: int) -> Steps[None]:
    """Compact the dirty logs of compacted topics. A failed log is not compacted again."""
    for topic in tuple(topics):
        for partition in topic.partitions if topic.config.is_compacted else ():
            if partition.log.is_uncleanable:
                continue
            try:
                yield from compact(partition.log, topic.config, now_ms)
            except (KafkaError, OSError) as error:
                partition.log.is_uncleanable = True
                logger.error(
                    "compaction of %s-%d failed, and is disabled until the broker restarts: %s",
                    topic.name, partition.index, error,
                )  # fmt: skip
            yield
