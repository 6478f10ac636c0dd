"""The cluster of a run: three nodes of the embedded broker, each on a simulated host of its own."""

from __future__ import annotations

from typing import Final

from aiokafka_lite.simulation.cluster import SimulatedCluster
from aiokafka_lite.simulation.engine import Loop
from aiokafka_lite.simulation.history import Facts
from aiokafka_lite.structs import TopicPartition
from tests.simulation.plan import NODES, Plan

INPUT: Final = "in"
# Half of the keys are written to this topic, if the plan has a second one.
SECOND: Final = "in2"
PATTERN: Final = "^in.*$"
# When a second topic that members get by a pattern is created.
SECOND_AT_S: Final = 10.0
OUTPUT: Final = "out"
DEAD: Final = "dead"
GROUP: Final = "g"
SESSION_MS: Final = 6_000
KEYS: Final = 7


class GroupCluster(SimulatedCluster):
    """A cluster with the topics of the group."""

    def __init__(self, loop: Loop, plan: Plan) -> None:
        super().__init__(
            loop,
            len(NODES),
            group_consumer_session_timeout_ms=SESSION_MS,
            # It takes time, and few seeds suffice for the rules that read it.
            request_log_size=1_000 if plan.has_request_log else 0,
        )
        self._partitions, self._second = plan.partitions, plan.second

    async def start(self) -> None:
        await self.broker.start()
        self.broker.create_topic(INPUT, self._partitions)
        if self._second == "named":
            self.broker.create_topic(SECOND, self._partitions)
        elif self._second == "pattern":
            self.loop.call_later(SECOND_AT_S, self.broker.create_topic, SECOND, self._partitions)
        self.broker.create_topic(OUTPUT, self._partitions)
        self.broker.create_topic(DEAD, self._partitions)

    def input_partitions(self) -> list[TopicPartition]:
        return self.partitions_of(INPUT, SECOND)

    def topic_for(self, number: int) -> str:
        """Return the topic of a record's key."""
        return SECOND if number % KEYS % 2 and self.broker.has_topic(SECOND) else INPUT

    def facts(self) -> Facts:
        """Return what the logs and the group have now."""
        facts = Facts(
            committed=self.broker.committed(GROUP),
            attempts=self.loop.net.attempts,
            requests=self.requests,
        )
        self.add_logs(facts, self.input_partitions())
        for topic, values in ((OUTPUT, facts.output), (DEAD, facts.dead)):
            records = self.broker.records(topic, isolation_level="read_committed")
            values.extend(record.value or b"" for record in records)
        return facts
