"""The cluster of a run: three nodes of the embedded broker, each on a simulated host of its own."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from aiokafka_lite.broker.groups.kip848.group import ConsumerGroup
from aiokafka_lite.errors import CoordinatorNotAvailableError, NoError, UnknownMemberIdError
from aiokafka_lite.simulation.cluster import SimulatedCluster
from aiokafka_lite.simulation.engine import Loop
from aiokafka_lite.simulation.history import Facts
from aiokafka_lite.structs import TopicPartition
from tests.simulation.calls import CallLog, Letter
from tests.simulation.handling import DELAYS_S, RETRY
from tests.simulation.plan import NODES, Plan

INPUT: Final = "in"
# Half of the keys are written to this topic, if the plan has a second one.
SECOND: Final = "in2"
PATTERN: Final = "^in.*$"
# When a second topic that members get by a pattern is created.
SECOND_AT_S: Final = 10.0
OUTPUT: Final = "out"
DEAD: Final = "dead"
# Of handlers whose calls took too long.
LATE: Final = "late"
# Of topics whose records tell when they were appended.
APPEND_TIMES: Final[Mapping[str, str | float | bool]] = {"message.timestamp.type": "LogAppendTime"}
RACKS: Final = ("a", "b", "c")
# Of a topic that is compacted, which the last segment of a log is not.
COMPACTED: Final[Mapping[str, str | float | bool]] = {
    "cleanup.policy": "compact",
    "segment.ms": 2_000,
    "min.cleanable.dirty.ratio": 0.0,
}
GROUP: Final = "g"
SESSION_MS: Final = 6_000
KEYS: Final = 7


@dataclass
class GroupFacts(Facts):
    """What the cluster has at the end of a run of the group.

    Attributes:
        output: The values of the output topic that a read_committed reader gets.
        dead: The values in the topic of dead letters.
        attempts: Each attempt to connect: when, from which host, to which.
        topic_ids: The ids of all topics with records of the group.
        call_log: What handlers did.
        letters: All dead letters of handlers.
        delayed: What is in delay topics.
        requests: How many requests arrived of a client, at a node, of an API, in one second.
    """

    output: list[bytes] = field(default_factory=list)
    dead: list[bytes] = field(default_factory=list)
    attempts: list[tuple[float, str, str]] = field(default_factory=list)
    requests: Counter[tuple[str, int, str, int]] = field(default_factory=Counter)
    topic_ids: dict[str, bytes] = field(default_factory=dict)
    call_log: CallLog = field(default_factory=CallLog)
    letters: list[Letter] = field(default_factory=list)
    delayed: list[Letter] = field(default_factory=list)


class GroupCluster(SimulatedCluster):
    """A cluster with the topics of the group."""

    def __init__(self, loop: Loop, plan: Plan) -> None:
        super().__init__(
            loop,
            len(NODES),
            group_consumer_session_timeout_ms=SESSION_MS,
            group_share_session_timeout_ms=SESSION_MS,
            group_share_heartbeat_interval_ms=SESSION_MS // 3,
            # It takes time, and few seeds suffice for the rules that read it.
            request_log_size=1_000 if plan.has_request_log else 0,
            racks=RACKS if plan.has_racks else (),
        )
        self._configs = COMPACTED if plan.is_compacted else None
        self._partitions, self._second = plan.partitions, plan.second
        self._has_delays, self._has_handlers = plan.has_delays, plan.handling is not None
        self.call_log = CallLog()
        self._seen_requests = 0
        # Of Fetch, whose responses may be small, only those refused.
        self._requests: Counter[tuple[str, int, str, int]] = Counter()

    async def start(self) -> None:
        await self.broker.start()
        self.broker.create_topic(INPUT, self._partitions, self._configs)
        if self._second == "named":
            self.create_second()
        elif self._second == "pattern":
            self.loop.call_later(SECOND_AT_S, self.create_second)
        self.broker.create_topic(OUTPUT, self._partitions)
        configs = APPEND_TIMES if self._has_handlers else None
        for topic in (DEAD, *self._letter_topics()):
            self.broker.create_topic(topic, self._partitions, configs)

    def _letter_topics(self) -> list[str]:
        """Return the topics of delayed records, and those of handlers' letters but the first."""
        delays = [f"{RETRY}.{delay_s}" for delay_s in DELAYS_S] if self._has_delays else []
        return [*delays, LATE] if self._has_handlers else delays

    def delay_facts(self) -> GroupFacts:
        """Return the delay topics and their commits."""
        facts = GroupFacts(committed=self.broker.committed(GROUP))
        if self._has_delays:
            topics = [each for each in self._letter_topics() if each != LATE]
            self.add_logs(facts, self.partitions_of(*topics))
        return facts

    def create_second(self) -> None:
        if not self.broker.has_topic(SECOND):
            self.broker.create_topic(SECOND, self._partitions, self._configs)

    def input_partitions(self) -> list[TopicPartition]:
        return self.partitions_of(INPUT, SECOND)

    def topic_for(self, number: int) -> str:
        """Return the topic of a record's key."""
        return SECOND if number % KEYS % 2 and self.broker.has_topic(SECOND) else INPUT

    def raise_epoch(self, member_id: str) -> None:
        """Give a member two newer epochs, as if it had not received the answers with them.

        The coordinator refuses the epoch that the member has, and keeps the member.

        Raises:
            CoordinatorNotAvailableError: The group has no coordinator now.
            UnknownMemberIdError: The group has no such member.
        """
        node = self.broker.nodes.get(self.broker.coordinator_of(GROUP))
        if node is None or node.groups.availability(GROUP) is not NoError:
            raise CoordinatorNotAvailableError(GROUP)
        group = node.groups.groups.get(GROUP)
        if not isinstance(group, ConsumerGroup) or member_id not in group.members:
            raise UnknownMemberIdError(member_id)
        member, epoch = group.members[member_id], group.epoch + 2
        newer = dataclasses.replace(member, epoch=epoch, previous_epoch=epoch - 1)
        records = [
            group.epoch_record(epoch, group.metadata_hash),
            group.assignment_record(newer),
        ]
        node.groups._append(GROUP, records)

    def count_requests(self) -> None:
        """Count the requests that have arrived since the last call."""
        seen, self._seen_requests = self._seen_requests, self.broker.requests.total
        new_count = self._seen_requests - seen
        for each in [*self.broker.requests][-new_count:] if new_count else ():
            if each.api != "Fetch" or each.error_codes:
                client_id, second = each.client_id or "", int(each.arrived_at)
                self._requests[client_id, each.node_id, each.api, second] += 1

    def progress(self) -> GroupFacts:
        """Return the input and the commits as they are now."""
        facts = GroupFacts(
            committed=self.broker.committed(GROUP),
            attempts=self.loop.net.attempts,
            requests=self._requests,
        )
        self.add_logs(facts, self.input_partitions())
        if self._has_handlers:
            facts.call_log = self.call_log
            for name in (INPUT, SECOND, *self._letter_topics()):
                if (topic := self.broker.topic(name)) is not None:
                    facts.topic_ids[name] = topic.topic_id
            facts.letters = [*self.call_log.letters]
            for name in (DEAD, *self._letter_topics()):
                records = self.broker.records(name, isolation_level="read_committed")
                of = facts.delayed if name.startswith(RETRY) else facts.letters
                of.extend(map(Letter.of, records))
        return facts

    def facts(self) -> GroupFacts:
        """Return what the logs and the group have now."""
        facts = self.progress()
        for topic, values in ((OUTPUT, facts.output), (DEAD, facts.dead)):
            records = self.broker.records(topic, isolation_level="read_committed")
            values.extend(record.value or b"" for record in records)
        return facts
