"""Bugs to plant: each replaces text of the package's source, which must be there exactly once.

They are other clients' bugs, and our own of former times. The campaign has to find them: a rule
that no planted bug breaks may be unable to fail. `planting.py` runs them.

This must not import the package, whose source is replaced when it is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from tests.simulation.handling import Handling
from tests.simulation.plan import ACKS, COPIES, HANDLERS, PROTOCOLS, RUNS, SHARING, WAYS, Plan
from tests.simulation.plan import READS as NEXT_READS

READS: Final = (*NEXT_READS, "batch")
CLASSIC: Final = ("range", "cooperative")
# The plans in which a rule holds. Others hold in all.
HOLDS_IN: Final[Mapping[str, Callable[[Plan], bool]]] = MappingProxyType(
    {
        "raised": lambda plan: plan.is_harmless,
        "repeated": lambda plan: plan.forbids_repeats,
        "waits": lambda plan: plan.forbids_waits,
    }
)


class Edit(NamedTuple):
    """A replacement of text in a module of the package."""

    module: str
    text: str
    replacement: str


@dataclass(frozen=True)
class Bug:
    """A planted bug.

    Attributes:
        name: For the table and the command.
        what: What is wrong, in a sentence.
        rule: The rule that is expected to find it. Seeds in which it does not hold are left out.
        ways: The ways of reading that can meet it. Seeds with others are left out.
        protocols: The same for group protocols.
        producers: The same: one of these kinds of producers writes.
        faults: The same: one of these faults happens. Empty: none is needed.
        lasts_s: The least time that this fault lasts.
        is_slow: The same: handling takes time.
        is_harmless: The same: members notice its faults only as a delay.
        is_static: The same: members have instance ids.
        habits: The same: members have one of these habits.
        heartbeat_ms: The same: heartbeats have this interval.
        auto_commit_ms: The same: auto-commit has this interval.
        metadata_ms: The same: metadata are kept so long.
        is_bounded: The same: buffers are small.
        has_reader: The same: a reader without a group seeks and pauses.
        has_tasks: The same: several tasks read.
        handling: Of handlers of the plan: whether the bug can be met.
        is_sharing: The same: members share a group.
        missed_because: Why no seed is expected to find it. These are thoughts, not measurements.
    """

    name: str
    what: str
    rule: str
    edits: tuple[Edit, ...]
    ways: tuple[str, ...] = WAYS
    protocols: tuple[str, ...] = PROTOCOLS
    producers: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    lasts_s: float = 0.0
    is_slow: bool = False
    is_harmless: bool = False
    is_static: bool = False
    habits: tuple[str, ...] = ()
    heartbeat_ms: int = 0
    auto_commit_ms: int = 0
    metadata_ms: int = 0
    is_bounded: bool = False
    has_reader: bool = False
    has_tasks: bool = False
    handling: Callable[[Handling], bool] | None = None
    is_sharing: bool = False
    missed_because: str = ""

    @property
    def way(self) -> str:
        """The one way of reading of the seeds that can meet it, if they are not drawn of all."""
        if self.is_sharing:
            return SHARING
        return HANDLERS if self.handling is not None else ""

    def can_be_met(self, plan: Plan) -> bool:
        holds = HOLDS_IN.get(self.rule)
        long = {fault.name for fault in plan.faults if fault.lasts_s >= self.lasts_s}
        return (
            (holds is None or holds(plan))
            and plan.way in ((self.way,) if self.way else self.ways)
            and plan.protocol in self.protocols
            and (not self.producers or not set(self.producers).isdisjoint(plan.producers))
            and (not self.faults or not long.isdisjoint(self.faults))
            and (not self.is_slow or plan.handling_s > 0)
            and (not self.is_harmless or plan.is_harmless)
            and (not self.is_static or plan.static)
            and (not self.habits or plan.habit in self.habits)
            and self.heartbeat_ms in (0, plan.heartbeat_ms)
            and self.auto_commit_ms in (0, plan.auto_commit_ms)
            and self.metadata_ms in (0, plan.metadata_ms)
            and (not self.is_bounded or plan.buffer_bytes is not None)
            and (not self.has_reader or plan.has_reader)
            and (not self.has_tasks or plan.tasks > 1)
            and (plan.handling is None or self.handling is None or self.handling(plan.handling))
        )


def _edit(module: str, text: str, replacement: str) -> Edit:
    return Edit(f"aiokafka_lite.{module}", text, replacement)


# --- Commits --------------------------------------------------------------------------------
_COMMITS: Final = (
    Bug(
        "commits one too far",
        "A commit has the offset after the next one.",
        "commit ahead",
        (
            _edit(
                "consumer.commits.commits",
                "CommittedOffset(*offset, self._leader_epoch(commit, tp))",
                "CommittedOffset(offset[0] + 1, offset[1], self._leader_epoch(commit, tp))",
            ),
        ),
    ),
    Bug(
        "auto-commit of records being processed",
        "Auto-commit covers the records that the latest read has returned.",
        "commit ahead",
        (
            _edit(
                "consumer.assignment.finished",
                "tp: self._decided(partition, partition.processed)\n",
                "tp: self._decided(partition, partition.position or 0)\n",
            ),
        ),
        ways=READS,
    ),
    Bug(
        "commit of the highest finished record",
        "With records finished one by one, the commit covers the unfinished ones before the last.",
        "commit ahead",
        (
            _edit(
                "consumer.assignment.progress",
                "return self._handed_out[0] if self._handed_out else None\n\n    @property\n"
                "    def uncommitted_count",
                "return self._handed_out[-1] if self._handed_out else None\n\n    @property\n"
                "    def uncommitted_count",
            ),
        ),
        ways=RUNS,
    ),
    Bug(
        "a cancelled handler has finished its record",
        "A record counts as finished when its handler is called.",
        "commit ahead",
        (
            _edit(
                "consumer.processing.run",
                "            running.update((each, task) for chain in chains for each in chain)\n",
                "            running.update((each, task) for chain in chains for each in chain)\n"
                "            self.finish(job)\n",
            ),
        ),
        ways=("run", "dead letters"),
    ),
    Bug(
        "finished ranges hide the record after them",
        "The ranges finished before a revocation hide the record after each.",
        "lost",
        (
            _edit(
                "consumer.assignment.progress",
                "while ahead and ahead[0].end <= offset:",
                "while ahead and ahead[0].end < offset:",
            ),
        ),
        ways=RUNS,
        habits=("times out",),
        is_slow=True,
    ),
    Bug(
        "commit retried across generations",
        "A refused commit is sent again under whatever generation is the present one.",
        "commit back",
        (
            _edit(
                "consumer.commits.commits",
                "            sender = self.member.commits_as(\n"
                "                made_as, has_waited=has_waited, is_departed=commit.is_departed\n"
                "            )\n",
                "            sender = self.assigned_as\n",
            ),
            _edit(
                "consumer.commits.commits",
                "                if tp not in self._cursors\n"
                "                or not (has_waited or self._cursors[tp] is commit.cursors[tp])\n",
                "                if False\n",
            ),
            _edit(
                "consumer.commits.commits",
                "            raise self._rejection(commit) from error\n",
                "            return True\n",
            ),
        ),
        faults=("loop blocked", "session expires", "partition", "hang", "one-way cut"),
        habits=("names commits",),
    ),
    Bug(
        "an older commit after a newer one",
        "A retried commit sends offsets that a later commit has replaced, and does not look at the "
        "present position.",
        "commit back",
        (
            _edit(
                "consumer.commits.commits",
                "            if self._latest.get(tp, said_at) > said_at:\n",
                "            if self._latest.get(tp, said_at) > said_at + 1_000_000:\n",
            ),
            _edit(
                "consumer.commits.commits",
                "if not commit.is_departed and commit.made_as == assigned_as:",
                "if False:",
            ),
            _edit(
                "consumer.commits.commits",
                "            self._catch_up_with_later_ones(commit)\n",
                "            pass\n",
            ),
        ),
        habits=("names commits",),
    ),
    Bug(
        "no last commit before a revocation",
        "Partitions are revoked without a commit of the finished records.",
        "repeated",
        (
            _edit(
                "consumer.membership.handover",
                "            await self._commit_last(gone, deadline)\n",
                "",
            ),
        ),
    ),
    Bug(
        "revocation does not wait for the application",
        "A rebalance takes partitions while the application processes their records.",
        "repeated",
        (
            _edit(
                "consumer.membership.handover",
                "if waits and self._why_lost() is None:",
                "if waits and not gone:",
            ),
        ),
        ways=NEXT_READS,
        faults=("member joins", "member stops"),
        is_slow=True,
    ),
    Bug(
        "commits without leader epoch",
        "A commit has no leader epoch, so a truncation before a restart is not seen.",
        "lost",
        (
            _edit(
                "consumer.commits.commits",
                "return NO_EPOCH if cursor is None else cursor.epoch_before",
                "return NO_EPOCH if cursor is not None else cursor.epoch_before",
            ),
        ),
        faults=("unflushed",),
    ),
    Bug(
        "commit with the new topic's id",
        "Commits name topics, so offsets of a deleted one are committed for its successor.",
        "commit ahead",
        (
            _edit(
                "consumer.commits.commits",
                "        ids = TopicIds({tp: commit.topic_ids[tp] for tp in commit.left})\n",
                "        ids = TopicIds({})\n",
            ),
            _edit(
                "consumer.commits.commits",
                "        self._leave_out_former_logs(commit)\n",
                "",
            ),
        ),
        protocols=CLASSIC,
        faults=("recreated", "refilled", "recreated smaller", "topic deleted"),
        auto_commit_ms=200,
    ),
    Bug(
        "a refused OffsetFetch reads as no committed offset",
        "If the coordinator refuses OffsetFetch for now, nothing counts as committed.",
        "commit back",
        (
            _edit(
                "consumer.commits.commits",
                "                last_error = error\n            else:\n",
                "                return dict.fromkeys(asked)\n            else:\n",
            ),
        ),
        faults=("refusals",),
    ),
    Bug(
        "a task for each auto-commit",
        "Each auto-commit begins a task that ends with the consumer.",
        "tasks grow",
        (
            _edit(
                "consumer.commits.auto_commit",
                "                latest_at = loop.time()\n                self._look_for",
                "                latest_at = loop.time()\n"
                "                self._scope.spawn(asyncio.sleep(1e3), name='leak')\n"
                "                self._look_for",
            ),
        ),
    ),
    Bug(
        "the last commit of stop is left out",
        "A stop leaves the group without a commit.",
        "repeated",
        (
            _edit(
                "consumer.commits.commits",
                "        last = self.make(self.not_committed_yet(offsets), CommitKind.DEPARTED)\n",
                "        last = self.make({}, CommitKind.DEPARTED)\n",
            ),
        ),
        faults=("member stops",),
    ),
    Bug(
        "a commit does not follow its coordinator",
        "commit() raises if the coordinator has moved.",
        "raised",
        (
            _edit(
                "consumer.commits.commits",
                "        return recovery not in (Recovery.FENCED, Recovery.SURFACE)\n",
                "        return recovery is Recovery.RETRY\n",
            ),
        ),
        ways=("batch",),
        faults=("coordinator moves",),
    ),
)

# --- Fetching and positions -----------------------------------------------------------------
_FETCHING: Final = (
    Bug(
        "aborted records are returned",
        "The list of aborted transactions in a Fetch response is ignored.",
        "aborted read",
        (
            _edit(
                "consumer.fetching.answer",
                "aborted=aborted_transactions(answer) if self._is_read_committed else None",
                "aborted=()",
            ),
        ),
        producers=("transactional",),
    ),
    Bug(
        "aborted ranges apply one batch late",
        "The first batch of an aborted transaction counts as committed.",
        "aborted read",
        (
            _edit(
                "records.transactions",
                "self._to_come[-1][0] <= header.last_offset",
                "self._to_come[-1][0] < header.base_offset",
            ),
        ),
        producers=("transactional",),
    ),
    Bug(
        "an abort hides the next transaction",
        "An aborted transaction does not end at its marker, and hides later records.",
        "lost",
        (
            _edit(
                "records.transactions",
                "self._open.discard(producer_id)",
                "self._open.discard(-producer_id)",
            ),
        ),
        producers=("transactional",),
    ),
    Bug(
        "a response after a seek is taken",
        "A response counts although the position has changed since its request.",
        "order",
        (
            _edit(
                "consumer.fetching.session",
                "        loan = self._loans.pop(tp, None)\n",
                "        loan = self._loans.get(tp)\n",
            ),
            _edit("consumer.fetching.answer", "if cursor.loan is loan:", "if cursor is not None:"),
        ),
    ),
    Bug(
        "records after a revocation",
        "Records that are buffered when a revocation begins are returned during it.",
        "repeated",
        (
            _edit(
                "consumer.assignment.assignment",
                "            cursor.withhold()\n            self.refetch(cursor)\n",
                "",
            ),
        ),
    ),
    Bug(
        "a paused partition is returned",
        "The buffered records of a paused partition are returned.",
        "paused",
        (
            _edit(
                "consumer.buffer.chunk_queue",
                "            if partition.is_paused or partition.has_enough:\n",
                "            if partition.has_enough:\n",
            ),
            _edit(
                "consumer.assignment.cursor",
                "return self.search is None and not self.is_paused and not self.is_withheld",
                "return self.search is None and not self.is_withheld",
            ),
        ),
        has_reader=True,
    ),
    Bug(
        "the buffer has no bound",
        "A response is kept although the buffer has no room for it, and as much is requested.",
        "buffer",
        (
            _edit(
                "consumer.buffer.budget",
                "        return not held_bytes or held_bytes + size_bytes <= self.room_bytes\n",
                "        return True\n",
            ),
            _edit(
                "consumer.buffer.budget",
                "        granted = min(wanted_bytes, self.room_bytes - taken_bytes)\n",
                "        granted = wanted_bytes\n",
            ),
            _edit(
                "consumer.buffer.budget",
                "            1, (self.room_bytes - self._kept_free_bytes()) //",
                "            1, 10**9 //",
            ),
        ),
        is_bounded=True,
    ),
    Bug(
        "a truncation by one record is not seen",
        "A log that ends one record before the position counts as complete.",
        "lost",
        (
            _edit(
                "consumer.positions.resolver",
                "if end.end_offset >= position:",
                "if end.end_offset + 1 >= position:",
            ),
        ),
        faults=("truncation",),
    ),
    Bug(
        "truncations are not looked for",
        "A position is not validated when its leader epoch is a new one.",
        "lost",
        (
            _edit(
                "consumer.assignment.cursor",
                "and current_epoch > max(newest, self.validated_epoch)",
                "and current_epoch < newest",
            ),
        ),
        faults=("truncation",),
    ),
    Bug(
        "an older leader epoch is believed",
        "Metadata from a broker that is behind replace newer ones.",
        "not settled",
        (
            _edit(
                "client.view",
                "if NO_EPOCH < answered.leader_epoch < known.leader_epoch:",
                "if False:",
            ),
        ),
        faults=("stale metadata",),
        missed_because="the old leader refuses, and no rule limits the delay of a record",
    ),
    Bug(
        "a back-off never ends",
        "A partition that has failed is not fetched any more.",
        "not settled",
        (
            _edit(
                "consumer.fetching.answer",
                "cursor.failed(now + delay_s * self._sources.rng.uniform(1.0, 1.2), reason)",
                "cursor.failed(now + 1e9, reason)",
            ),
        ),
        faults=("refusals",),
    ),
    Bug(
        "an evicted fetch session goes on",
        "After an error of the fetch session, requests continue with its id.",
        "not settled",
        (
            _edit(
                "consumer.fetching.source",
                "        if error_class is FetchSessionIdNotFound:\n"
                "            self._session.forget()\n"
                "        else:\n"
                "            self._session.replace()\n",
                "",
            ),
        ),
        faults=("sessions evicted",),
    ),
    Bug(
        "a failed OffsetFetch is not repeated",
        "Partitions whose committed offset could not be read stay without a position.",
        "not settled",
        (
            _edit(
                "consumer.commits.commits",
                "                last_error = error\n            else:\n",
                "                await asyncio.sleep(1e9)\n            else:\n",
            ),
        ),
        faults=("refusals",),
    ),
    Bug(
        "a reset goes to the end",
        "A position out of range is reset to the end, whatever auto_offset_reset is.",
        "lost",
        (
            _edit(
                "consumer.fetching.answer",
                "by_config = self._sources.config.reset_timestamp",
                "by_config = -1",
            ),
        ),
        faults=("retention",),
    ),
    Bug(
        "the recreated topic continues at the old position",
        "A topic that was recreated is read from the position in its predecessor.",
        "lost",
        (
            _edit(
                "consumer.positions.topic_changes",
                '            self._start_over(partition, topic_id, f"{event}")\n',
                "            partition._name(topic_id)\n",
            ),
        ),
        protocols=CLASSIC,
        faults=("refilled",),
    ),
    Bug(
        "a record is skipped after a chunk",
        "The fetch after a buffered response begins one record too late.",
        "order",
        (
            _edit(
                "consumer.assignment.cursor",
                "            self.fetched = end_offset\n        if self.search is None:",
                "            self.fetched = end_offset + 1\n        if self.search is None:",
            ),
        ),
    ),
    Bug(
        "offsets are one too high",
        "The offset of a record is that of the next one.",
        "another record",
        (
            _edit(
                "records._decode_py",
                "            self._base_offset + offset_delta,\n",
                "            self._base_offset + offset_delta + 1,\n",
            ),
        ),
    ),
    Bug(
        "two records swap their values",
        "The first two records of a read have each other's values.",
        "another record",
        (
            _edit(
                "consumer.buffer.chunk",
                "            self.held_bytes = 0\n            return decoded\n",
                "            self.held_bytes = 0\n            if len(decoded) > 1:\n"
                "                one, two = decoded[:2]\n"
                "                one.value, two.value = two.value, one.value\n"
                "            return decoded\n",
            ),
        ),
        ways=("getmany", "batch", "run", "dead letters"),
    ),
)

# --- Groups ---------------------------------------------------------------------------------
_GROUPS: Final = (
    Bug(
        "the session's end is left to the broker",
        "A member that is cut off returns records, although others own its partitions.",
        "returned by a former owner",
        (
            _edit(
                "consumer.membership.heartbeat",
                "return is_lost or self._loop.time() >= self._ends_at",
                "return is_lost",
            ),
        ),
        faults=("loop blocked",),
        lasts_s=13.0,
    ),
    Bug(
        "no heartbeats while the group rebalances",
        "A member sends no heartbeat from JoinGroup until it has its assignment and longer.",
        "not settled",
        (
            _edit(
                "consumer.membership.classic.member",
                "is_joining = self.state is MemberState.JOINING and not self.delivers",
                "is_joining = self.state is not MemberState.UNJOINED",
            ),
        ),
        protocols=CLASSIC,
    ),
    Bug(
        "a cooperative member keeps what it must revoke",
        "Partitions that the leader has given to another member are not revoked.",
        "two owners",
        (
            _edit(
                "consumer.membership.classic.membership",
                '        if gone:\n            await self._handover.revoke(gone, "the partitions',
                '        if False:\n            await self._handover.revoke(gone, "the partitions',
            ),
        ),
        protocols=("cooperative",),
    ),
    Bug(
        "a cooperative leader assigns at once",
        "Partitions are assigned in the rebalance in which their former owner revokes them.",
        "two owners",
        (
            _edit(
                "consumer.assignors.cooperative_sticky",
                "tp for tp in partitions if moving.get(tp) != member",
                'tp for tp in partitions if moving.get(tp) != ""',
            ),
        ),
        protocols=("cooperative",),
    ),
    Bug(
        "no second cooperative rebalance",
        "A member that has revoked partitions does not join again, so nobody gets them.",
        "not settled",
        (
            _edit(
                "consumer.membership.classic.membership",
                "        return bool(gone)\n",
                "        return False\n",
            ),
        ),
        protocols=("cooperative",),
    ),
    Bug(
        "a lost generation keeps its partitions",
        "A cooperative member that was removed from the group keeps its partitions.",
        "kept",
        (
            _edit(
                "consumer.membership.classic.membership",
                "if self._is_cooperative and self._state.assignment and self._state.is_subscribed:"
                "\n            await self._handover.lose()",
                "if False:\n            await self._handover.lose()",
            ),
        ),
        protocols=("cooperative",),
        faults=("session expires",),
        missed_because="what the next join revokes includes them",
    ),
    Bug(
        "a fenced member keeps its partitions",
        "A KIP-848 member whose epoch is fenced keeps its partitions and positions.",
        "kept",
        (
            _edit(
                "consumer.membership.kip848.membership",
                "        await self._handover.lose()\n        self.held.clear()\n",
                "        if loss is not Interruption.LOST_GENERATION:\n"
                "            await self._handover.lose()\n            self.held.clear()\n",
            ),
        ),
        protocols=("consumer",),
        faults=("member fenced",),
    ),
    Bug(
        "a removed member does not join again",
        "The heartbeat's error for a removed member is ignored.",
        "not settled",
        (
            _edit(
                "consumer.membership.classic.heartbeat",
                "            member.interrupt(outcome.sent_as, interruption)\n        elif",
                "            pass\n        elif",
            ),
        ),
        protocols=CLASSIC,
    ),
    Bug(
        "a rebalance is not noticed",
        "REBALANCE_IN_PROGRESS in a heartbeat's response is ignored.",
        "not settled",
        (
            _edit(
                "consumer.membership.classic.heartbeat",
                "if interruption is not None and self._is_stable:",
                "if interruption is not None and not self._is_stable:",
            ),
        ),
        protocols=CLASSIC,
    ),
    Bug(
        "a lost assignment is not requested again",
        "After a lost response, brief heartbeats follow, and the assignment never arrives.",
        "not settled",
        (
            _edit(
                "consumer.membership.kip848.heartbeat",
                "def note_failure(self) -> None:\n        self._told_change_count = None\n",
                "def note_failure(self) -> None:\n        pass\n",
            ),
        ),
        protocols=("consumer",),
        faults=("lost heartbeat",),
        missed_because="24 seeds lost such responses, and healed for a reason that is not known",
    ),
    Bug(
        "an empty assignment is no change",
        "An assignment without partitions reads as none, so nothing is revoked.",
        "not settled",
        (
            _edit(
                "consumer.membership.kip848.heartbeat",
                "    if answer.assignment is None:\n",
                "    if answer.assignment is None or not answer.assignment.topic_partitions:\n",
            ),
        ),
        protocols=("consumer",),
        habits=("subscribes again",),
    ),
    Bug(
        "partitions are given up before their commit",
        "Heartbeats report partitions as revoked before the last commit and the listener.",
        "two owners",
        (
            _edit(
                "consumer.membership.kip848.membership",
                "            await self._handover.revoke(set(step.to_revoke.values()), reason)\n"
                "            self._let_go(step.to_revoke)\n",
                "            self._let_go(step.to_revoke)\n"
                "            await self._handover.revoke(set(step.to_revoke.values()), reason)\n",
            ),
        ),
        protocols=("consumer",),
    ),
    Bug(
        "a revocation is not reported",
        "No heartbeat tells the coordinator that partitions were revoked.",
        "not settled",
        (
            _edit(
                "consumer.membership.kip848.membership",
                "            self.held.pop(each, None)\n"
                "        self._schedule.note_change(self._loop.time())\n",
                "            self.held.pop(each, None)\n",
            ),
            _edit(
                "consumer.membership.kip848.membership",
                "        if is_answered:\n            self._schedule.confirm(self._loop.time())\n",
                "",
            ),
        ),
        protocols=("consumer",),
    ),
    Bug(
        "a member that was removed keeps its epoch",
        "A member that the coordinator does not know any more does not join again.",
        "not settled",
        (
            _edit(
                "consumer.membership.kip848.heartbeat",
                "            if member.drop(sent.sent_as, loss, self.why_silent or str(error)):\n",
                "            if not loss:\n",
            ),
        ),
        protocols=("consumer",),
        faults=("session expires", "loop blocked"),
    ),
    Bug(
        "partitions of a recreated topic are not asked for",
        "An assigned topic id that is not in the metadata is not looked up.",
        "not settled",
        (
            _edit(
                "consumer.membership.kip848.member",
                "            unknown.add(each.topic_id)\n            continue\n",
                "            continue\n",
            ),
        ),
        protocols=("consumer",),
        faults=("recreated",),
        metadata_ms=300_000,
    ),
    Bug(
        "a former member asks for names",
        "A member that joins again waits for a time that is over.",
        "hot loop",
        (
            _edit(
                "consumer.membership.kip848.membership",
                "        if self._member.state in PRESENT:\n            if self.was_settled:\n",
                "        if True:\n"
                "            if self.was_settled and self._member.state in PRESENT:\n",
            ),
            _edit(
                "consumer.membership.kip848.membership",
                "        self._last_leave = None\n        self._unknown_since = None\n",
                "        self._last_leave = None\n",
            ),
        ),
        protocols=("consumer",),
        faults=("recreated",),
        missed_because="10 seeds did not meet it. A seed of an earlier plan did",
    ),
    Bug(
        "the coordinator is not looked up again",
        "NOT_COORDINATOR does not make the client look for the new coordinator.",
        "not settled",
        (
            _edit(
                "consumer.membership.coordinator",
                "                    if recovery_for(error) is Recovery.REDISCOVER:\n",
                "                    if recovery_for(error) is Recovery.FENCED:\n",
            ),
        ),
        faults=("coordinator moves", "crash", "power cut", "shutdown"),
    ),
    Bug(
        "the group is not left",
        "A member that stops sends no LeaveGroup: its partitions wait for the end of its session.",
        "waits",
        (
            _edit(
                "consumer.membership.grouped",
                "        group_id = self._member.group_id\n        while True:\n",
                "        group_id = self._member.group_id\n        while False:\n",
            ),
        ),
        faults=("member stops",),
    ),
    Bug(
        "a static member that is back gives up",
        "An instance id that is not released yet is an error at once.",
        "gives up",
        (
            _edit(
                "consumer.membership.kip848.heartbeat",
                "        if self._loop.time() - self.trouble_since > session_s:\n",
                "        if self._loop.time() - self.trouble_since >= 0:\n",
            ),
        ),
        protocols=("consumer",),
        is_static=True,
        faults=("member killed",),
    ),
    Bug(
        "another member id after a fenced epoch",
        "A member whose epoch is fenced joins under a new id, and waits for its former session.",
        "waits",
        (
            _edit(
                "consumer.membership.kip848.member",
                "self.reset(keeps_id=loss is not Interruption.LOST_MEMBERSHIP)",
                "self.reset(keeps_id=False)",
            ),
        ),
        protocols=("consumer",),
        faults=("member fenced",),
    ),
)

# --- Handlers, dead letters, transactions ---------------------------------------------------
_PROCESSING: Final = (
    Bug(
        "a dead letter is forgotten",
        "A failed record is finished without an acknowledged dead letter.",
        "no letter",
        (
            _edit(
                "processing",
                "        await self._producer.send_and_wait(**letter._asdict())\n",
                '        if len(letter.value or b"") % 2 == 0:\n            return\n'
                "        await self._producer.send_and_wait(**letter._asdict())\n",
            ),
        ),
        ways=("dead letters",),
    ),
    Bug(
        "a failed dead letter finishes its record",
        "If the dead letter cannot be written, its record counts as finished.",
        "no letter",
        (
            _edit(
                "consumer.processing.run",
                "            self._attempts.letter_failed(job, failure)\n            return\n",
                "            pass\n",
            ),
        ),
        ways=("dead letters",),
    ),
    Bug(
        "a letter of the next record",
        "The dead letter has the record that follows the failed one in its lane.",
        "needless letter",
        (
            _edit(
                "consumer.processing.run",
                "DeadRecord(job.record, error, job.attempts, job, history)",
                "DeadRecord((job.follower or job).record, error, job.attempts, job, history)",
            ),
        ),
        ways=("dead letters",),
    ),
    Bug(
        "a revoked record is parked for ever",
        "Records that are withheld when they could begin are not begun after the rebalance.",
        "not settled",
        (
            _edit(
                "consumer.processing.run",
                "if cursor in self._parked and not (cursor.is_withheld or cursor.is_paused):",
                "if False:",
            ),
        ),
        ways=RUNS,
        habits=("pauses",),
    ),
    Bug(
        "the lane of a revoked record stands",
        "A record that was revoked before it began blocks the later ones of its key.",
        "not settled",
        (
            _edit(
                "consumer.processing.run",
                "                ready.popleft()\n                self._lanes.leave(job)\n",
                "                ready.popleft()\n",
            ),
        ),
        ways=RUNS,
    ),
    Bug(
        "records of a key are not in order",
        "A record begins although an earlier one of its key is being handled or retried.",
        "order",
        (
            _edit(
                "consumer.processing.lanes",
                "            if last is None:\n                ready.append(job)\n",
                "            if last is None or True:\n                ready.appendleft(job)\n",
            ),
            _edit(
                "consumer.processing.lanes",
                "            del lane[job.name]\n        else:\n"
                "            self.ready.append(follower)\n",
                "            lane.pop(job.name, None)\n",
            ),
        ),
        ways=RUNS,
    ),
    Bug(
        "outputs without offsets",
        "A transaction commits outputs without the offsets of their inputs.",
        "copied twice",
        (
            _edit(
                "producing.transactions",
                "        group, offsets = delivery.to_commit()\n        if not offsets:\n"
                "            return\n",
                "        group, offsets = delivery.to_commit()\n        if offsets:\n"
                "            return\n",
            ),
        ),
        ways=("copy",),
    ),
    Bug(
        "offsets without outputs",
        "Offsets are committed although the transaction of their outputs was not.",
        "not copied",
        (
            _edit(
                "consumer.processing.outbox",
                "            refused = await self._write(lease, offsets, seeks)\n",
                "            try:\n                refused = await self._write(lease, offsets, "
                "seeks)\n            except KafkaError:\n                refused = {}\n",
            ),
        ),
        ways=("copy",),
    ),
    Bug(
        "a transaction under a newer generation",
        "Offsets in a transaction have the present generation, not that of their records.",
        "copied twice",
        (
            _edit(
                "producing.transactions",
                "            committed = group_offsets.commit_request(self._id, producer, group, ",
                "            group = group.offsets.group()\n"
                "            committed = group_offsets.commit_request(self._id, producer, group, ",
            ),
        ),
        ways=("copy",),
        faults=("session expires",),
        is_slow=True,
        missed_because="a delivery of a former assignment is refused before it is sent",
    ),
    Bug(
        "an abort commits",
        "The end of an aborted transaction is sent as a commit.",
        "aborted read",
        (
            _edit(
                "producing.transactions",
                "await self._end(is_commit=False)",
                "await self._end(is_commit=True)",
            ),
        ),
        producers=("transactional",),
    ),
    Bug(
        "a commit does not wait for its records",
        "A transaction is committed while its records are in flight.",
        "acknowledged, lost",
        (
            _edit(
                "producing.transactions",
                "        await self._accumulator.flush()\n        if self._storing:",
                "        if self._storing:",
            ),
        ),
        producers=("transactional",),
    ),
    Bug(
        "two letters of a record",
        "A dead letter is written twice.",
        "repeated letter",
        (
            _edit(
                "processing",
                "            await writer.write(dead, letter)\n        except TOO_LARGE as error:",
                "            await writer.write(dead, letter)\n"
                "            await writer.write(dead, letter)\n        except TOO_LARGE as error:",
            ),
        ),
        ways=("dead letters",),
        is_harmless=True,
    ),
)

# --- Handlers -------------------------------------------------------------------------------
_HANDLERS: Final = (
    Bug(
        "a record is finished before it is delayed",
        "A record is committed before its delay topic or dead letters have acknowledged it.",
        "commit ahead",
        (
            _edit(
                "consumer.processing.run",
                "        try:\n            await letter(DeadRecord(",
                "        if job.origin is None:\n"
                "            self._finish_or_commit(job)\n"
                "        try:\n            await letter(DeadRecord(",
            ),
        ),
        handling=lambda handling: handling.after > 0 and not handling.copies,
    ),
    Bug(
        "delay topics are read from their beginning",
        "The next owner of a delay topic handles all its records again.",
        "handled again",
        (
            _edit(
                "consumer.positions.resolver",
                "self._state.start_at(partition, committed.offset, committed.leader_epoch)\n",
                "self._state.start_at(\n"
                "            partition,\n"
                "            0 if partition.tp.topic.startswith('retry') else committed.offset,\n"
                "            committed.leader_epoch,\n"
                "        )\n",
            ),
        ),
        faults=("member killed", "member joins", "member stops", "session expires"),
        handling=lambda handling: handling.after > 0,
    ),
    Bug(
        "attempts before a delay are forgotten",
        "A delayed record has had no attempts.",
        "attempts",
        (
            _edit(
                "consumer.processing.job",
                "self.attempts = origin, origin.record, origin.attempts\n",
                "self.attempts = origin, origin.record, 0\n",
            ),
        ),
        handling=lambda handling: handling.after > 0,
    ),
    Bug(
        "the history of a delayed record has its latest error",
        "The headers with the first error are written anew with each delay.",
        "first error",
        (
            _edit(
                "processing",
                "        if not history:\n            history = {\n",
                "        if True:\n            history |= {\n",
            ),
        ),
        handling=lambda handling: handling.after > 0,
    ),
    Bug(
        "delayed records are not waited for",
        "A delayed record is handled as soon as it is read.",
        "early",
        (
            _edit(
                "consumer.processing.delays",
                "        now = self._loop.time() + TOLERANCE_S\n",
                "        now = self._loop.time() + 3_600\n",
            ),
        ),
        handling=lambda handling: handling.after > 0,
    ),
    Bug(
        "halving loses one half",
        "Of a list that has failed, only the first half is handled again.",
        "not settled",
        (
            _edit(
                "consumer.processing.run",
                "        self._lanes.ready.extendleft(chain[0] for chain in reversed(chains))\n",
                "        first_half = chains[: (len(chains) + 1) // 2]\n"
                "        self._lanes.ready.extendleft(each[0] for each in reversed(first_half))\n",
            ),
        ),
        handling=lambda handling: handling.batch_size is not None and handling.order != "partition",
    ),
    Bug(
        "a failed list is an attempt of its records",
        "The attempts of a record have those of its lists, too.",
        "attempts",
        (
            _edit(
                "consumer.processing.run",
                "        halve([job for chain in chains for job in chain])\n",
                "        halve([job for chain in chains for job in chain])\n"
                "        for chain in chains:\n"
                "            chain[0].attempts += 1\n",
            ),
        ),
        handling=lambda handling: handling.batch_size is not None,
    ),
    Bug(
        "lists are of any partition",
        "batch_by has no effect.",
        "list",
        (
            _edit(
                "consumer.processing.lists",
                "        if self._by is None:\n            return list_of\n",
                "        return list_of\n",
            ),
        ),
        handling=lambda handling: handling.batch_by is not None,
    ),
    Bug(
        "a late call stays late",
        "After a call that took too long, the next one of its worker counts as too long.",
        "needless letter",
        (
            _edit(
                "consumer.processing.time_limit",
                "        self._late.pop(task, None)\n",
                "        pass\n",
            ),
        ),
        handling=lambda handling: handling.timeout_s is not None and handling.form != "plain",
    ),
    Bug(
        "a late call that returns has finished its record",
        "A handler that undoes its cancellation by the time limit, and returns, is successful.",
        "commit ahead",
        (
            _edit(
                "consumer.processing.run",
                "                    if limit is not None and limit.is_late(task):\n",
                "                    if False:\n",
            ),
        ),
        handling=lambda handling: handling.timeout_s is not None and handling.form != "plain",
    ),
    Bug(
        "a retry begins without the time limit",
        "Only the first call for a record has a time limit.",
        "time limit",
        (
            _edit(
                "consumer.processing.time_limit",
                "            if job.state is DEAD or task in self._spared:\n",
                "            if job.error is not None or task in self._spared:\n",
            ),
        ),
        handling=lambda handling: handling.timeout_s is not None and handling.form != "plain",
    ),
    Bug(
        "a dropped record is not finished",
        "DROP leaves the record uncommitted.",
        "not settled",
        (
            _edit(
                "consumer.processing.run",
                "        self._finish_or_commit(job)\n        self._lanes.leave(job)\n",
                "        if repr(letter) != 'DROP':\n"
                "            self._finish_or_commit(job)\n"
                "        self._lanes.leave(job)\n",
            ),
        ),
        handling=lambda handling: handling.letters in ("drop", "by error"),
    ),
    Bug(
        "the most general class has the letter",
        "Of the classes of an error, the most general one decides where its letter is written.",
        "needless letter",
        (
            _edit(
                "consumer.processing.handling",
                "        for kind in reversed(bases):\n",
                "        for kind in bases:\n",
            ),
        ),
        handling=lambda handling: handling.letters == "by error",
    ),
    Bug(
        "bad records are retried",
        "The errors of `dead` have further attempts.",
        "attempts",
        (
            _edit(
                "consumer.processing.handling",
                '        if self.is_bad_record(error):\n            return "dead"\n',
                "",
            ),
        ),
        handling=lambda handling: handling.letters in ("topic", "function"),
    ),
    Bug(
        "retries have no rate",
        "max_per_second counts only the first call for a record.",
        "calls",
        (
            _edit(
                "consumer.processing.run",
                "            if rate is not None:\n                rate.take()\n",
                "            if rate is not None and chains[0][0].error is None:\n"
                "                rate.take()\n",
            ),
        ),
        handling=lambda handling: handling.limit == "rate",
    ),
)


# --- Blocks, tasks and transactions ---------------------------------------------------------
_SEAMS: Final = (
    Bug(
        "a looked-up seek keeps finished ranges",
        "After a seek to the beginning, records stay finished that were before.",
        "lost",
        (
            _edit(
                "consumer.assignment.progress",
                "    def forget_ahead(self) -> None:\n",
                "    def forget_ahead(self) -> None:\n        return\n",
            ),
        ),
        ways=(*ACKS, *RUNS),
        missed_because="50 seeds had no finished ranges when they sought the beginning",
    ),
    Bug(
        "a read finishes the records of other tasks",
        "The next read of one task says that the records of all tasks are processed.",
        "commit ahead",
        (
            _edit(
                "consumer.assignment.readers",
                "        return not self._left and not any(\n",
                "        return True or not any(\n",
            ),
        ),
        ways=NEXT_READS,
        is_slow=True,
        has_tasks=True,
    ),
    Bug(
        "a block that is left by an error is done",
        "A batch counts as processed, whatever ends its block.",
        "commit ahead",
        (
            _edit(
                "consumer.delivery.batch",
                "            self._end(is_done=self._is_done)\n",
                "            self._end(is_done=True)\n",
            ),
        ),
        ways=("batch", "acks in batch"),
        habits=("times out",),
        is_slow=True,
    ),
    Bug(
        "a truncation forgets no commit",
        "An offset of truncated records counts as committed for their replacements.",
        "not settled",
        (
            _edit(
                "consumer.assignment.cursor",
                "        return committed if len(epochs) < 2 else None\n",
                "        return committed if epochs else committed\n",
            ),
        ),
        faults=("truncation", "unflushed"),
        missed_because="50 seeds committed again at the same offset by chance",
    ),
    Bug(
        "a commit has the epoch of the first record",
        "A commit has the oldest leader epoch of the returned records.",
        "lost",
        (
            _edit(
                "consumer.assignment.cursor",
                "        for start in reversed(self.epoch_starts):\n"
                "            if start.offset < offset:\n",
                "        for start in self.epoch_starts:\n            if start.offset < offset:\n",
            ),
        ),
        faults=("truncation", "unflushed"),
    ),
    Bug(
        "commit() covers what handlers work on",
        "A commit of positions includes records whose handlers have not returned.",
        "commit ahead",
        (
            _edit(
                "consumer.assignment.finished",
                "        return partition.processed if is_processed else partition.position\n",
                "        return partition.position if is_processed else partition.position\n",
            ),
        ),
        ways=RUNS,
        habits=("commits",),
        is_slow=True,
    ),
    Bug(
        "a cancelled commit does not wait for its outcome",
        "A cancelled block of a transaction ends while EndTxn is in flight.",
        "foreign error",
        (
            _edit(
                "producing.transactions",
                "        await _outlast(task)\n        if self.is_open and self._may_abort():\n",
                "        if self.is_open and self._may_abort():\n",
            ),
        ),
        ways=("copy batches",),
        habits=("times out",),
    ),
    Bug(
        "a batch counts as processed though its transaction is aborted",
        "The outcome of a transaction does not matter to the batch whose offsets it has.",
        "not copied",
        (
            _edit(
                "consumer.delivery.batch",
                "        self._is_aborted = not is_committed\n",
                "        self._is_aborted = False\n",
            ),
        ),
        ways=("copy batches",),
    ),
    Bug(
        "a transaction names the offset after the next",
        "Offsets in a transaction are one too high.",
        "not copied",
        (
            _edit(
                "consumer.commits.transactional",
                "cursor.tp: CommittedOffset(*offset, cursor.epoch_before(offset.offset))\n",
                "cursor.tp: CommittedOffset(offset[0] + 1, offset[1], -1)\n",
            ),
        ),
        ways=("copy batches",),
    ),
    Bug(
        "a transaction commits without its offsets",
        "A transaction is committed though the coordinator has refused its offsets.",
        "copied twice",
        (
            _edit(
                "producing.group_offsets",
                "            if partition.error_code == NoError.errno:\n                continue\n"
                "            error_class",
                "            if True:\n                continue\n            error_class",
            ),
        ),
        ways=COPIES,
    ),
    Bug(
        "a transaction of unknown outcome counts as aborted",
        "The records of a transaction are read again, though it may have been committed.",
        "copied twice",
        (
            _edit(
                "consumer.commits.transactional",
                "            self._offsets.begin_anew(self._seeks)\n",
                "            pass\n",
            ),
        ),
        ways=("copy batches",),
        missed_because="50 seeds had no copied batch whose EndTxn got no response in time",
    ),
    Bug(
        "outputs of an aborted transaction count as written",
        "Handlers' outputs count as written if their transaction is aborted.",
        "not copied",
        (
            _edit(
                "producing.lease",
                "        if error is not None and not refused:\n            raise error\n"
                "        return refused\n",
                "        if error is not None and self.fatal_error is not None:\n"
                "            raise error\n        return refused\n",
            ),
        ),
        ways=("copy", "copy lists", "copy with letters"),
        missed_because="50 seeds aborted no handler's transaction without a fatal error",
    ),
    Bug(
        "a transaction that is over takes records",
        "A send of a transaction that has ended goes into the next one.",
        "foreign error",
        (
            _edit(
                "producing.transactions",
                "        if transaction is None or transaction is not self.current:\n"
                "            raise IllegalOperation(\n"
                "                \"Can't send messages while not in transaction: this",
                "        if transaction is None:\n"
                "            raise IllegalOperation(\n"
                "                \"Can't send messages while not in transaction: this",
            ),
        ),
        ways=("copy batches",),
    ),
    Bug(
        "a dead letter is not waited for",
        "A record is finished before its dead letter is acknowledged.",
        "no letter",
        (
            _edit(
                "processing",
                "        await self._producer.send_and_wait(**letter._asdict())\n",
                "        await self._producer.send(**letter._asdict())\n",
            ),
        ),
        ways=("dead letters",),
    ),
    Bug(
        "a dead letter of unknown outcome is written again",
        "Nobody looks whether a fenced producer's transaction was committed.",
        "repeated letter",
        (
            _edit(
                "consumer.processing.outbox",
                "            if not await self._is_committed_after_all(offsets):\n",
                "            if True:\n",
            ),
        ),
        ways=("letters in transactions",),
        faults=("lost answers", "crash", "power cut", "reset"),
        missed_because="50 seeds fenced no producer of letters while EndTxn was in doubt",
    ),
    Bug(
        "a dead letter is written outside of its transaction",
        "A letter is written by a producer without transactions.",
        "repeated letter",
        (
            _edit(
                "processing",
                "        if self._transactional_id is None:\n            producer = make()\n",
                "        if run.outbox is None:\n"
                '            make.keywords.pop("transactional_id")\n'
                "            producer = make()\n",
            ),
        ),
        ways=("letters in transactions",),
        faults=("member killed",),
    ),
)

# --- Producers ------------------------------------------------------------------------------
_PRODUCERS: Final = (
    Bug(
        "another sequence after a lost response",
        "A batch that is sent again gets another sequence number.",
        "written twice",
        (
            _edit(
                "producing.partition_queue",
                "            self.retry_count -= 1\n        else:\n",
                "            self.retry_count -= 1\n"
                "            batch.number(self.identity or identity, self.next_sequence)\n"
                "            self.next_sequence = batch.next_sequence\n        else:\n",
            ),
        ),
    ),
    Bug(
        "a lost response acknowledges",
        "A batch whose response was lost counts as written.",
        "acknowledged, lost",
        (
            _edit(
                "producing.sender",
                "            if error.retriable:\n                self._retry(batch, error)\n",
                "            if error.retriable:\n                "
                "self._acknowledge(batch, -1, -1, -1)\n",
            ),
        ),
    ),
    Bug(
        "another epoch after a failure",
        "A batch that has failed is sent under another epoch, and may be written twice.",
        "written twice",
        (
            _edit(
                "producing.partition_queue",
                "        batch.state = BatchState.TO_RETRY\n        batch.due_at = retry_at\n"
                "        self.retry_count += 1\n",
                "        batch.state = BatchState.TO_RETRY\n        batch.due_at = retry_at\n"
                "        self.retry_count += 1\n"
                "        self.is_broken |= batch.attempts > 0\n",
            ),
        ),
        producers=("idempotent",),
    ),
    Bug(
        "a flush waits for the next batch",
        "A flush waits for a batch that nobody has appended.",
        "producer stands",
        (
            _edit(
                "producing.accumulator",
                "            self._flushes.append((self._made_count, done))\n",
                "            self._flushes.append((self._made_count + 1, done))\n",
            ),
        ),
    ),
    Bug(
        "a timer's callback fails",
        "The callback that ends a batch's back-off raises TypeError.",
        "unhandled",
        (
            _edit(
                "producing.sender",
                "            self._loop.call_later(delay_s, self.wake, queue)\n",
                "            self._loop.call_later(delay_s, self.wake, queue, batch)\n",
            ),
        ),
    ),
)

# --- Connections ----------------------------------------------------------------------------
_CONNECTIONS: Final = (
    Bug(
        "a silent broker is waited for",
        "A connection without an answer stays in use.",
        "not settled",
        (
            _edit(
                "client.wire",
                "            if pending.deadline > now:\n                continue\n",
                "            if pending.deadline > 0:\n                continue\n",
            ),
        ),
        faults=("lost answers", "lost requests"),
    ),
    Bug(
        "the reconnect forgets the throttle",
        "A new connection sends requests before the broker's throttle time is over.",
        "throttle",
        (
            _edit(
                "client.pool",
                "        slot.connection = None\n        slot.muted_until = "
                "connection.muted_until\n        if self._loop",
                "        slot.connection = None\n        if self._loop",
            ),
        ),
        faults=("throttled, reset",),
    ),
    Bug(
        "a retry without a pause",
        "Attempts to reconnect have no pause between them.",
        "hot loop",
        (
            _edit(
                "client.backoff",
                "return delay_s * rng.uniform(1 - JITTER, 1 + JITTER)",
                "return 0.0 * delay_s",
            ),
        ),
        faults=("crash", "power cut", "shutdown"),
    ),
    Bug(
        "stop takes longer than its timeout",
        "The parts of a client have five times its timeout to stop.",
        "late stop",
        (
            _edit(
                "client.life",
                "        deadline = self._loop.time() + (timeout_s or 0.0)\n",
                "        deadline = self._loop.time() + 5 * (timeout_s or 0.0)\n",
            ),
        ),
        faults=("stop in an outage",),
    ),
    Bug(
        "stop leaves a connection",
        "Connections stay open after a stop, because their nodes are forgotten before.",
        "connection left",
        (
            _edit(
                "client.pool",
                "        self.disconnect()\n        self._nodes.clear()\n",
                "        self._nodes.clear()\n        self.disconnect()\n",
            ),
        ),
    ),
    Bug(
        "stop leaves a task",
        "A task that watches the connections goes on after a stop.",
        "task left",
        (
            _edit(
                "consumer.membership.heartbeat",
                "        if self._beating is not None:\n"
                "            await self._scope.stop(self._beating)\n"
                "        await self.thread.end()\n",
                "        asyncio.ensure_future(asyncio.sleep(1e3))\n"
                "        if self._beating is not None:\n"
                "            await self._scope.stop(self._beating)\n"
                "        await self.thread.end()\n",
            ),
        ),
    ),
)

# --- The embedded broker --------------------------------------------------------------------
_BROKER: Final = (
    Bug(
        "replay loses the last commit",
        "A coordinator that loads its log leaves out the last batch.",
        "commit back",
        (
            _edit(
                "broker.groups.coordinator_log",
                "                for entry in self._entries(partition, header, batch):\n",
                "                if header.last_offset + 1 >= log.high_watermark:\n"
                "                    return\n"
                "                for entry in self._entries(partition, header, batch):\n",
            ),
        ),
        faults=("coordinator moves", "crash", "power cut", "shutdown"),
    ),
    Bug(
        "replay loses tombstones",
        "A coordinator that loads its log ignores the removal of members and offsets.",
        "waits",
        (
            _edit(
                "broker.groups.coordinator_log",
                "            if decoded is not None:\n",
                "            if decoded is not None and decoded.value is not None:\n",
            ),
        ),
        protocols=("consumer",),
        faults=("coordinator moves", "crash", "power cut", "shutdown"),
        missed_because="31 seeds did not meet it: a member of the log hardly ever gets a partition",
    ),
    Bug(
        "a commit is answered and not logged",
        "A coordinator applies commits to its memory only.",
        "commit back",
        (
            _edit(
                "broker.groups.coordinator",
                "            error = self._append(group_id, records)\n            if error is "
                "NoError:\n                return errors\n",
                "            for record in records:\n                self._replay(record)\n"
                "            if error is NoError:\n                return errors\n",
            ),
        ),
        faults=("coordinator moves", "crash", "power cut", "shutdown"),
    ),
    Bug(
        "commits of former generations are accepted",
        "A coordinator does not compare the generation of a commit.",
        "commit back",
        (
            _edit(
                "broker.groups.classic.machine",
                "        error = self.check_member(member_id, instance_id, generation)\n"
                "        if error is NoError and self.state is COMPLETING:\n"
                "            return RebalanceInProgressError\n"
                "        if error is NoError:\n"
                "            self._restart_session",
                "        error = self.check_member(member_id, instance_id, generation)\n"
                "        if member_id not in self.members:\n            return NoError\n"
                "        error = NoError\n"
                "        if error is NoError:\n"
                "            self._restart_session",
            ),
        ),
        protocols=CLASSIC,
        faults=("partition", "one-way cut"),
        lasts_s=8.0,
    ),
    Bug(
        "sessions do not end",
        "A coordinator of KIP-848 keeps members that send no heartbeats.",
        "not settled",
        (
            _edit(
                "broker.groups.modern.machine",
                "if member is not None and deadline.epoch in (None, member.epoch):",
                "if member is None:",
            ),
        ),
        protocols=("consumer",),
        faults=("member killed",),
    ),
    Bug(
        "a partition is assigned before its owner has revoked it",
        "The coordinator of KIP-848 does not look at the present owner.",
        "two owners",
        (
            _edit(
                "broker.groups.kip848.machine",
                "            group.held_in,\n",
                "            lambda topic_id, number: -1,\n",
            ),
        ),
        protocols=("consumer",),
    ),
    Bug(
        "duplicates are appended",
        "A broker appends a batch again that it has already.",
        "written twice",
        (
            _edit(
                "broker.log.producers",
                "            if (batch.first_sequence, batch.last_sequence) == wanted:\n"
                "                return batch\n",
                "            if (batch.first_sequence, batch.last_sequence) == wanted:\n"
                "                return None\n",
            ),
            _edit(
                "broker.log.producers",
                "        if first != expected:\n",
                "        if first > expected:\n",
            ),
        ),
    ),
    Bug(
        "open transactions can be read",
        "The last stable offset ignores open transactions.",
        "aborted read",
        (
            _edit(
                "broker.handlers.fetch",
                "        stable = partition.log.last_stable_offset\n",
                "        stable = end_offset\n",
            ),
        ),
        producers=("transactional",),
    ),
    Bug(
        "a fenced producer can write",
        "A broker accepts batches and offsets of a former producer epoch.",
        "part of a transaction",
        (
            _edit(
                "broker.log.producers",
                "if producer is not None and header.producer_epoch < producer.epoch:",
                "if False:",
            ),
        ),
        producers=("transactional",),
        faults=("twin producer",),
        missed_because="the verification of a transaction (KIP-890) refuses the batch, too",
    ),
    Bug(
        "an incremental response leaves out records",
        "A fetch session does not return partitions whose high watermark has changed.",
        "not settled",
        (
            _edit(
                "broker.fetch_sessions",
                "            or data.high_watermark != self.sent_high_watermark\n",
                "",
            ),
            _edit(
                "broker.fetch_sessions",
                "            data.records\n",
                "            False\n",
            ),
        ),
    ),
    Bug(
        "a coordinator cannot load its log",
        "The second part of a long log of commits counts as damaged.",
        "broker failed",
        (
            _edit(
                "broker.groups.coordinator_log",
                "            yield entries\n            if offset == start:\n",
                "            yield entries\n            if offset > start + 20:\n",
            ),
        ),
        faults=("coordinator moves", "crash", "power cut", "shutdown"),
    ),
)


_SHARING: Final = (
    Bug(
        "locks are never renewed",
        "A share consumer lets the locks of long handlers end.",
        "lock lost",
        (
            _edit(
                "consumer.sharing.leases",
                "        may_renew = lease_range.is_renewable and lease_range.until < end_at\n",
                "        may_renew = False\n",
            ),
        ),
        is_sharing=True,
    ),
    Bug(
        "share acknowledgements have no epoch",
        "ShareAcknowledge has the epoch of a new session.",
        "lock lost",
        (
            _edit(
                "consumer.sharing.session",
                "            FINAL_EPOCH if is_last else self.next_epoch(),\n",
                "            FINAL_EPOCH if is_last else NEW_EPOCH,\n",
            ),
        ),
        is_sharing=True,
    ),
    Bug(
        "gaps are not acknowledged",
        "Locked offsets without a record stay locked.",
        "not settled",
        (
            _edit(
                "consumer.sharing.leases",
                're.compile(rb"G+|A+|R+|J+")\n',
                're.compile(rb"A+|R+|J+")\n',
            ),
        ),
        is_sharing=True,
    ),
    Bug(
        "a moved leader keeps its leases",
        "A share consumer takes its locks for those of the next leader.",
        "delivered again",
        (
            _edit(
                "consumer.sharing.sharing",
                "                self.leases.lose_partition(former, why)\n",
                "                del why\n",
            ),
            _edit(
                "consumer.sharing.source",
                "            self._leases.lose_partition(partition, str(error))\n",
                "            pass\n",
            ),
        ),
        is_sharing=True,
        faults=("leader moves",),
    ),
    Bug(
        "a lost connection keeps its leases",
        "A share consumer takes locks of a session that is over for its own.",
        "delivered again",
        (
            _edit(
                "consumer.sharing.source",
                "        self._leases.lose_node(self.node_id, str(error))\n",
                "        pass\n",
            ),
        ),
        is_sharing=True,
        faults=("reset", "half-close", "partition", "share answers lost"),
    ),
    Bug(
        "handled records are released",
        "`run` of a share consumer releases what handlers have finished.",
        "delivered again",
        (
            _edit(
                "consumer.sharing.run",
                '["finished_total"] += self._settle(job, AckType.ACCEPT)\n',
                '["finished_total"] += self._settle(job, AckType.RELEASE)\n',
            ),
        ),
        is_sharing=True,
    ),
    Bug(
        "a returned share partition is forgotten",
        "A partition whose leader has moved away and back is fetched no more.",
        "silent",
        (
            _edit(
                "consumer.sharing.session",
                "[self.partitions[key] for key in self.partitions if key not in wanted]\n",
                "[old for key, old in self.partitions.items() if wanted.get(key) is not old]\n",
            ),
        ),
        is_sharing=True,
        faults=("leader moves", "power cut", "crash", "stale metadata", "shutdown"),
    ),
    Bug(
        "a session's end releases at all nodes",
        "When one share session ends, other nodes release the member's records, too.",
        "delivered again",
        (
            _edit(
                "broker.share.partitions",
                "partition is not None and partition.leader_id == node_id:\n",
                "partition is not None:\n",
            ),
        ),
        is_sharing=True,
        faults=("reset", "half-close", "partition", "share answers lost", "session expires"),
    ),
    Bug(
        "lost acknowledgements are not told",
        "A share consumer says nothing about acknowledgements whose effect is unknown.",
        "delivered again",
        (
            _edit(
                "consumer.sharing.leases",
                "        if portion.type in (AckType.ACCEPT, AckType.REJECT):\n",
                "        if portion.type in ():\n",
            ),
        ),
        is_sharing=True,
        faults=("reset", "share answers lost", "share refusals", "power cut", "crash", "partition"),
    ),
    Bug(
        "deliveries are not counted",
        "The broker says of each delivery that it is the first.",
        "delivery count",
        (
            _edit(
                "broker.share.partition",
                "            each.delivery_count += 1\n",
                "            each.delivery_count = 1\n",
            ),
        ),
        is_sharing=True,
    ),
    Bug(
        "a stop accepts what it has interrupted",
        "A share consumer that stops accepts records whose handlers have not ended.",
        "lost",
        (
            _edit(
                "consumer.sharing.run",
                "            self._settle(job, AckType.RELEASE)\n",
                "            self._settle(job, AckType.ACCEPT)\n",
            ),
        ),
        is_sharing=True,
        missed_because="25 seeds of 30 s found nothing: few members stop while handlers run",
    ),
    Bug(
        "acknowledgements are not in order",
        "A share consumer sends acknowledgements in the order of acquisition.",
        "lock lost",
        (
            _edit(
                "consumer.sharing.leases",
                "        partition: sorted(mine, key=lambda portion: portion.first_offset)\n",
                "        partition: mine\n",
            ),
        ),
        is_sharing=True,
    ),
    Bug(
        "only the first lost lease is told",
        "LeaseLost names one record of several.",
        "delivered again",
        (
            _edit(
                "consumer.sharing.life",
                "            offsets = OffsetRange(first, last + 1)\n",
                "            offsets = OffsetRange(first, first + 1)\n",
            ),
        ),
        is_sharing=True,
        faults=("reset", "half-close", "partition", "share answers lost", "share refusals"),
    ),
    Bug(
        "a fetch is in flight for ever",
        "The records of an answer stay those that are to come.",
        "not settled",
        (
            _edit(
                "consumer.sharing.source",
                "            self._demand.note_answer(self.node_id, acquired_count, took_s)\n",
                "            del took_s\n",
            ),
        ),
        is_sharing=True,
    ),
    Bug(
        "anyone may acknowledge a lock",
        "The broker takes acknowledgements of members that do not hold the record.",
        "delivered again",
        (
            _edit(
                "broker.share.partition",
                "not all(each.is_held_by(member_id) for each in held):\n",
                "not all(each.state is ACQUIRED for each in held):\n",
            ),
        ),
        is_sharing=True,
        missed_because="25 seeds of 30 s found nothing: our members acknowledge their own records",
    ),
)


def _by_name() -> Mapping[str, Bug]:
    bugs = (
        *_COMMITS,
        *_FETCHING,
        *_GROUPS,
        *_PROCESSING,
        *_HANDLERS,
        *_SHARING,
        *_SEAMS,
        *_PRODUCERS,
        *_CONNECTIONS,
        *_BROKER,
    )
    named = {bug.name: bug for bug in bugs}
    if len(named) < len(bugs):
        raise ValueError("two bugs have one name")
    return MappingProxyType(named)


BUGS: Final = _by_name()
