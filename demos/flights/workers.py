"""The consumer group: each worker is one consumer with an `async for` in its own task."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from aiokafka_lite._compat import timeout
from aiokafka_lite._tasks import TaskScope
from aiokafka_lite.cli.problems import CommandError
from aiokafka_lite.consumer import AIOKafkaConsumer
from aiokafka_lite.errors import KafkaError
from demos.flights.problems import StalledError
from demos.flights.scoreboard import Scoreboard

_HEARTBEAT_MS = 500
"""A heartbeat shows that the other worker has joined. In the default of 3 s one worker would read
all flights."""
_LOOK_EVERY_S = 0.1


@dataclass(slots=True)
class Worker:
    name: str
    consumer: AIOKafkaConsumer
    scoreboard: Scoreboard
    counted: int = 0

    async def run(self) -> None:
        count = self.scoreboard.count
        async for record in self.consumer:
            if count(record):
                self.counted += 1


@dataclass(slots=True)
class Group:
    """Workers that read one topic under their own group id."""

    bootstrap_servers: str
    topic: str
    scoreboard: Scoreboard
    worker_count: int = 2
    stall_timeout_s: float = 60.0
    group_id: str = field(default_factory=lambda: f"flights-{uuid.uuid4().hex[:12]}")
    workers: list[Worker] = field(default_factory=list)

    async def run(self, on_progress: Callable[[int], None]) -> None:
        """Read the topic up to the scoreboard's goal, then stop the consumers.

        Consumers that stop in order commit all records that they returned.

        Raises:
            StalledError: No record was received for `stall_timeout_s`.
            KafkaError: A consumer could not start, or failed.
        """
        self.workers = [self._new_worker(number) for number in range(1, self.worker_count + 1)]
        failed: list[CommandError | KafkaError] = []
        scope = TaskScope(self.group_id)

        async def run_worker(worker: Worker) -> None:
            # These errors are the user's to read, not a fault of the task.
            try:
                await worker.consumer.start()
                await worker.run()
            except (CommandError, KafkaError) as error:
                failed.append(error)

        try:
            for worker in self.workers:
                scope.spawn(run_worker(worker), name=worker.name)
            await self._watch(scope, failed, on_progress)
        finally:
            await asyncio.gather(*(worker.consumer.stop() for worker in self.workers))
            await scope.close()

    async def _watch(
        self,
        scope: TaskScope,
        failed: list[CommandError | KafkaError],
        on_progress: Callable[[int], None],
    ) -> None:
        """Wait for the goal, show progress and raise errors."""
        loop = asyncio.get_running_loop()
        counted, last_progress = 0, loop.time()
        while not self.scoreboard.finished.is_set():
            try:
                async with timeout(_LOOK_EVERY_S):
                    await self.scoreboard.finished.wait()
            except asyncio.TimeoutError:
                pass
            scope.raise_if_failed()
            if failed:
                raise failed[0]
            on_progress(self.scoreboard.counted)
            if self.scoreboard.counted > counted:
                counted, last_progress = self.scoreboard.counted, loop.time()
            elif loop.time() - last_progress > self.stall_timeout_s:
                raise StalledError(self._stalled())
        on_progress(self.scoreboard.counted)

    def _stalled(self) -> str:
        missing = ", ".join(
            f"{number} ({count:,} records)" for number, count in self.scoreboard.missing().items()
        )
        return (
            f"no records arrived for {self.stall_timeout_s:g} s, but these partitions of "
            f"{self.topic!r} have unread records: {missing}. Check that the broker at "
            f"{self.bootstrap_servers} is running"
        )

    def _new_worker(self, number: int) -> Worker:
        name = f"worker-{number}"
        consumer = AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap_servers,
            client_id=f"aiokafka-lite-flights-{name}",
            group_id=self.group_id,
            auto_offset_reset="earliest",
            enable_auto_commit=True,
            heartbeat_interval_ms=_HEARTBEAT_MS,
        )
        return Worker(name, consumer, self.scoreboard)
