"""What must hold of every run. Each rule is a function that yields violations; tests see each fail.

A fault excuses as little as possible: a rule names what it excuses.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, TypeAlias

from aiokafka_lite.simulation.history import Event, History, Kind, Violation
from aiokafka_lite.simulation.rules import (
    COMMIT_SLACK_S,
    Evidence,
    acknowledged_records_stay,
    commits_cover_finished_records,
    every_record_is_seen,
    idempotent_records_are_written_once,
    judged_commits,
    no_aborted_record_is_read,
    no_record_is_lost,
    place_of,
    polls_are_monotonic,
    polls_skip_nothing,
    records_keep_their_order,
    values_are_those_of_the_log,
)
from aiokafka_lite.structs import TopicPartition
from tests.simulation.cluster import GroupFacts
from tests.simulation.handler_rules import HANDLER_RULES, Ends, is_ended_elsewhere
from tests.simulation.handling import number_of
from tests.simulation.plan import HANDLERS, LETTERS, READS, RUNS, SHARING, Plan
from tests.simulation.share_rules import SHARE_RULES, Delivery, deliveries_of, is_rejected

SESSION_S: Final = 6.0
# How long a member may take to notice that its session is over.
NOTICED_WITHIN_S: Final = 1.0
# How long before it a fault excuses that two members own a partition.
QUIET_S: Final = 20.0
STOP_WITHIN_S: Final = 10.5
# How long commits that waited for a rebalance may take in all.
CALLS_WITHIN_S: Final = 0.1
# The delivery timeout of a producer, for which the end of a transaction may wait in an outage.
DELIVERED_WITHIN_S: Final = 120.0
# Faults after which a partition waits for heartbeats only, not for the end of a session.
PROMPT: Final = frozenset(
    {
        "leader moves",
        "coordinator moves",
        "member joins",
        "member stops",
        "pieces",
        "clock skew",
        "session expires",
        "member fenced",
        "sessions evicted",
        "stale metadata",
        "twin producer",
    }
)
# Faults after which a group may have another coordinator.
MOVES: Final = frozenset({"coordinator moves", "crash", "power cut", "shutdown"})
# How long after other faults a partition may wait.
SETTLES_S: Final = 15.0
# How long a partition may wait for its next owner, if heartbeats are a second apart. It waits
# for a heartbeat of its owner and one of the next, and for a new coordinator. A session is longer.
PROMPT_S: Final = 4.0
# The most attempts to connect to one host, and requests of one kind to one node, in a second.
MOST_ATTEMPTS: Final = 20
MOST_REQUESTS: Final = 60
# Ways in which a handler gets one record.
ONE_BY_ONE: Final = frozenset(RUNS) - {"run lists", "copy lists", HANDLERS}
# Habits send these for many records, also if a member catches up.
MEANT: Final = frozenset(
    {("names commits", "OffsetCommit"), ("commits", "OffsetCommit"), ("seeks", "OffsetFetch")}
)
READS_IN_ORDER: Final = frozenset({*READS, "batch", "copy batches"})


class Run(Evidence):
    """One run of a plan, as the rules read it."""

    facts: GroupFacts

    def __init__(self, plan: Plan, history: History, facts: GroupFacts) -> None:
        super().__init__(history, facts)
        self.plan = plan

    @cached_property
    def ends(self) -> Ends:
        """When records have ended, with the handlers of a plan."""
        return Ends(self)

    @cached_property
    def deliveries(self) -> Mapping[tuple[TopicPartition, int], Sequence[Delivery]]:
        """The deliveries of each record of a share group."""
        return deliveries_of(self)

    def is_dead(self, value: bytes) -> bool:
        if self.plan.way == SHARING:
            return is_rejected(self.plan, value)
        if self.plan.handling is not None:
            return is_ended_elsewhere(self, value)
        return self.plan.way in LETTERS and fails(value)

    def is_idempotent(self, value: bytes) -> bool:
        name = value.partition(b"-")[0]
        return not name.startswith(b"p") or self.plan.producers[int(name[1:])] != "plain"

    def is_of_group(self, who: str) -> bool:
        """Whether the seeks of this one move positions that are committed."""
        return not is_reader(who)

    def of_readers(self) -> Run:
        """Return what those without a group have done, with the changes of logs."""
        history = History()
        history.events = [
            event
            for event in self.history.events
            if is_reader(event.who) or event.kind is Kind.CUT_LOG
        ]
        return Run(self.plan, history, self.facts)


Rule: TypeAlias = Callable[[Run], Iterator[Violation]]
FAILS_EACH: Final = 10


def fails(value: bytes) -> bool:
    """Whether a handler that fails at all fails at this record."""
    return number_of(value) % FAILS_EACH == FAILS_EACH - 1


def is_reader(who: str) -> bool:
    """Whether this one has no group."""
    return who == "r0"


def acknowledged_records_stay_or_are_compacted(run: Run) -> Iterator[Violation]:
    """Brokers compact logs at any time: then a later record of the key replaces others."""
    if not run.plan.is_compacted:
        yield from acknowledged_records_stay(run)


# --- One assignment -------------------------------------------------------------------------
def _key_of(value: bytes) -> int:
    return number_of(value) % 7


def one_assignment_is_in_order(run: Run) -> Iterator[Violation]:
    """In one assignment, offsets rise and none is left out; of `run`, those of a key rise."""
    is_in_order = run.plan.way in READS_IN_ORDER and run.plan.tasks == 1
    in_order = run if is_in_order else run.of_readers()
    for found in (*polls_are_monotonic(in_order), *polls_skip_nothing(in_order)):
        yield found._replace(rule="order")
    if run.plan.way not in RUNS or run.plan.handling is not None:  # it has rules of its own
        return
    last: dict[tuple[str, TopicPartition, int], int] = {}
    rewritten = run.rewritten()
    for event in run.history.events:
        if is_reader(event.who):
            continue
        if event.kind is Kind.RAISED:
            last = {key: offset for key, offset in last.items() if key[0] != event.who}
        elif event.kind in (Kind.ASSIGNED, Kind.REVOKED, Kind.LOST):
            for key in [key for key in last if key[:2] == (event.who, event.tp)]:
                del last[key]
        elif event.kind is Kind.CANCELLED and event.tp is not None:  # it is tried again
            last.pop((event.who, event.tp, _key_of(event.value)), None)
        elif event.kind is Kind.RETURNED and event.tp is not None and event.tp not in rewritten:
            key = (event.who, event.tp, _key_of(event.value))
            if event.offset < (before := last.get(key, -1)):
                place = place_of(event.tp, event.offset)
                text = f"{event.who} got {event.value!r} at {place} after {before}"
                yield Violation("order", text, event.at_s)
            last[key] = max(event.offset, before)


def paused_partitions_return_nothing(run: Run) -> Iterator[Violation]:
    paused: set[tuple[str, TopicPartition | None]] = set()
    kinds = (Kind.PAUSED, Kind.RESUMED, Kind.ASSIGNED, Kind.RETURNED)
    for event in run.history.of(*kinds):
        if event.kind is Kind.PAUSED:
            paused.add((event.who, event.tp))
        elif event.kind is not Kind.RETURNED:
            paused.discard((event.who, event.tp))
        elif (event.who, event.tp) in paused:
            text = f"{event.who} got {place_of(event.tp, event.offset)}, which is paused"
            yield Violation("paused", text, event.at_s)


def records_of_a_key_are_handled_one_by_one(run: Run) -> Iterator[Violation]:
    """Of `run`, a handler begins with a record when that of its key before it has ended."""
    if run.plan.way not in ONE_BY_ONE:
        return
    handled_now: dict[tuple[str, TopicPartition | None, int], bytes] = {}
    for event in run.history.of(Kind.RETURNED, Kind.HANDLED, Kind.CANCELLED):
        if is_reader(event.who) or event.value.startswith(b"w"):  # records without a key
            continue
        key = (event.who, event.tp, _key_of(event.value))
        if event.kind is not Kind.RETURNED:
            handled_now.pop(key, None)
            continue
        other = handled_now.get(key)
        if other not in (None, event.value):  # one that failed is tried again
            text = f"{event.who} begins {event.value!r} while it handles {other!r}"
            yield Violation("key twice", text, event.at_s)
        if not run.is_dead(event.value):  # its end is no event
            handled_now[key] = event.value


# --- Commits --------------------------------------------------------------------------------
def commits_cover_what_is_finished(run: Run) -> Iterator[Violation]:
    """No commit is above a record that was not finished before: by a handler, or elsewhere."""
    if run.plan.handling is None:
        yield from commits_cover_finished_records(run)


def commits_do_not_go_back(run: Run) -> Iterator[Violation]:
    """A partition's commits rise, unless its log was rewritten.

    A seek, and a commit of a named offset, may lower them: then none of an earlier call follows.
    A commit of records that were handled, but not since the seek, was sent before its effect.
    Before a revocation, all handled records are committed: that may be the offset of a call that
    waits for the rebalance with the calls before it, and follows them soon.
    """
    highest: dict[TopicPartition, int] = {}
    calls: dict[tuple[TopicPartition, int], list[int]] = defaultdict(list)
    newest: dict[TopicPartition, int] = {}
    handled: dict[TopicPartition, set[int]] = defaultdict(set)
    handled_to: dict[TopicPartition, int] = {}  # since the last seek, if there was one
    judged = {id(event): event for event, _ in judged_commits(run)}
    commits: dict[tuple[TopicPartition, int], list[float]] = defaultdict(list)
    for event in judged.values():
        if event.tp is not None:
            commits[event.tp, event.offset].append(event.at_s)
    newest_offset: dict[TopicPartition, int] = {}
    events = [*run.history.of(Kind.COMMITTED, Kind.NAMED, Kind.SOUGHT, Kind.HANDLED)]
    events.sort(key=lambda event: event.at_s + (event.kind is Kind.COMMITTED) * COMMIT_SLACK_S / 2)
    for number, event in enumerate(events):
        tp, before = event.tp, highest.get(event.tp, -1) if event.tp is not None else -1
        if tp is None:
            continue
        if event.kind is Kind.NAMED:
            calls[tp, event.offset].append(number)
        elif event.kind is Kind.SOUGHT and event.offset >= 0 and run.is_of_group(event.who):
            highest[tp] = min(before, event.offset)
            handled_to[tp] = event.offset
        elif event.kind is Kind.HANDLED and run.is_of_group(event.who):
            handled[tp].add(event.offset)
            if tp in handled_to:
                handled_to[tp] = max(handled_to[tp], event.offset + 1)
        if id(event) not in judged:
            continue
        last_call = newest.get(tp, -1)
        call = next((call for call in calls[tp, event.offset] if call > last_call), -1)
        newest[tp] = max(call, last_call)
        if call > last_call:
            newest_offset[tp] = event.offset
        else:
            earlier = [each for each in calls[tp, event.offset] if each <= last_call]
            again = commits[tp, newest_offset.get(tp, -1)]
            if earlier and any(0 < at_s - event.at_s < CALLS_WITHIN_S for at_s in again):
                call, last_call, newest[tp] = earlier[-1], -1, earlier[-1]
        if event.offset < before and call > last_call:
            highest[tp] = event.offset
            continue
        if event.offset < before:
            text = f"{place_of(tp, event.offset)} is committed after {before}"
            yield Violation("commit back", text, event.at_s)
        since_seek = range(handled_to.get(tp, event.offset), event.offset)
        if handled[tp].isdisjoint(since_seek):
            highest[tp] = max(before, event.offset)


# --- Owners ---------------------------------------------------------------------------------
def one_member_owns_a_partition(run: Run) -> Iterator[Violation]:
    """Two members own a partition only after a fault, and the first returns nothing of it then."""
    owners: dict[TopicPartition, dict[str, float]] = defaultdict(dict)
    fault_at = -QUIET_S
    for event in run.history.events:
        if is_reader(event.who):
            continue
        if event.kind in (Kind.FAULT, Kind.FAULT_OVER):
            fault_at = event.at_s
        elif event.kind in (Kind.KILLED, Kind.STOPPED) or _is_fatal(event):
            for members in owners.values():
                members.pop(event.who, None)
        elif event.tp is None:
            continue
        elif event.kind in (Kind.REVOKED, Kind.LOST):
            owners[event.tp].pop(event.who, None)
        elif event.kind is Kind.ASSIGNED:
            others = [who for who in owners[event.tp] if who != event.who]
            if others and event.at_s - fault_at > QUIET_S:
                text = f"{event.who} gets {event.tp}, which {others[0]} has"
                yield Violation("two owners", text, event.at_s)
            owners[event.tp][event.who] = event.at_s
        elif event.kind is Kind.RETURNED:
            newest_at = max(owners[event.tp].values(), default=0.0)
            own_at = owners[event.tp].get(event.who, newest_at)
            late_s = event.at_s - newest_at
            if own_at < newest_at and late_s > SESSION_S + NOTICED_WITHIN_S:
                text = (
                    f"{event.who} returns {place_of(event.tp, event.offset)}, {late_s:.1f} s late"
                )
                yield Violation("returned by a former owner", text, event.at_s)


def only_owners_get_records(run: Run) -> Iterator[Violation]:
    """Records of a partition are returned between its assignment and its revocation only.

    With several tasks, one may note a read after another has noted the revocation.
    """
    if run.plan.tasks > 1:
        return
    owned: dict[str, set[TopicPartition]] = defaultdict(set)
    for event in run.history.of(Kind.ASSIGNED, Kind.REVOKED, Kind.LOST, Kind.RETURNED):
        if event.tp is None:
            continue
        if event.kind is Kind.ASSIGNED:
            owned[event.who].add(event.tp)
        elif event.kind is not Kind.RETURNED:
            owned[event.who].discard(event.tp)
        elif event.tp not in owned[event.who]:
            text = f"{event.who} got {place_of(event.tp, event.offset)}, which it does not have"
            yield Violation("returned after a revocation", text, event.at_s)


def confirmed_commits_are_there(run: Run) -> Iterator[Violation]:
    """What commit() and stop() report as committed was committed before they returned."""
    highest: dict[TopicPartition, int] = {}
    rewritten = run.rewritten()
    events = [*run.history.of(Kind.COMMITTED, Kind.CONFIRMED)]
    events.sort(key=lambda event: event.at_s + (event.kind is Kind.CONFIRMED) * COMMIT_SLACK_S)
    for event in events:
        if event.tp is None or event.tp in rewritten:
            continue
        before = highest.get(event.tp, -1)
        if event.kind is Kind.COMMITTED:
            highest[event.tp] = max(before, event.offset)
        elif before < event.offset and event.tp in run.facts.logs:
            text = f"{place_of(event.tp, event.offset)} is confirmed {event.note} of {event.who}"
            yield Violation("not committed", f"{text}, committed was {before}", event.at_s)


def healthy_members_repeat_nothing(run: Run) -> Iterator[Violation]:
    """Without a harmful fault, no record is handled twice and nothing raises.

    A batch that a rebalance takes away is an exception.
    """
    if not run.plan.is_harmless:
        return
    revoked = [event for event in run.history.of(Kind.RAISED) if event.note.startswith("batch")]
    for event in run.history.of(Kind.RAISED):
        if event not in revoked and not event.note.startswith("BoomError"):
            yield Violation("raised", f"{event.who}: {event.note}, without a fault", event.at_s)
    if revoked or not run.plan.forbids_repeats:
        return
    counts = Counter(event.value for event in run.history.of(Kind.HANDLED))
    logged = Counter(value for log in run.facts.logs.values() for value in log.values())
    for value, count in counts.items():
        if count > max(1, logged[value]):
            yield Violation("repeated", f"{value!r} was handled {count} times without a fault")


def _is_fatal(event: Event) -> bool:
    """Whether a member ends by an error. Others have a batch returned again."""
    return event.kind is Kind.RAISED and not event.note.startswith("batch")


def _is_about_outage(event: Event) -> bool:
    """Whether a fault begins or ends that members notice as more than a delay."""
    if event.note.startswith("not possible"):
        return False
    is_fault = event.kind in (Kind.FAULT, Kind.FAULT_OVER) and event.who not in PROMPT
    return is_fault or event.kind is Kind.CALM


def _outages_after(count: int, event: Event) -> int:
    if event.kind is Kind.CALM:
        return 0
    return count + (1 if event.kind is Kind.FAULT else -1)


def _forgets_leaves(run: Run, event: Event) -> bool:
    """Whether the next coordinator may not know that a member has left or was removed.

    The coordinator of a classic group stores that with the next assignment.
    """
    is_classic = run.plan.protocol != "consumer"
    return is_classic and event.kind is Kind.FAULT and event.who in MOVES


def partitions_do_not_wait(run: Run) -> Iterator[Violation]:
    """After gentle faults, a partition gets its next owner before a session could end.

    Others wait for the session of a member whose start was cancelled, because it does not leave,
    and of one that has left the classic group if the coordinator moves during the rebalance.
    """
    if not run.plan.forbids_waits:
        return
    outages, noisy_until, left_at = 0, 0.0, -PROMPT_S
    unassigned_since: dict[str, float] = {}
    owners: dict[TopicPartition, str] = {}
    without: dict[TopicPartition, float] = {}
    alive: set[str] = set()
    for event in run.history.events:
        at_s, who = event.at_s, event.who
        if is_reader(who):
            continue
        if _is_about_outage(event):
            outages = _outages_after(outages, event)
            noisy_until = at_s + SETTLES_S
            without.clear()
        elif event.kind is Kind.SETTLED:
            return
        elif event.kind is Kind.JOINED:
            alive.add(who)
            unassigned_since[who] = at_s
        elif event.kind in (Kind.STOPPING, Kind.KILLED) or _is_fatal(event):
            alive.discard(who)
        is_forgotten = _forgets_leaves(run, event) and at_s - left_at < PROMPT_S
        starts_for_s = at_s - unassigned_since.get(who, -PROMPT_S)
        if is_forgotten or (event.kind is Kind.STOPPING and starts_for_s < PROMPT_S):
            noisy_until = at_s + SETTLES_S
            without.clear()
        if event.kind in (Kind.STOPPED, Kind.FENCED) or _is_fatal(event):
            left_at = at_s
        left: list[TopicPartition] = []
        if event.kind is Kind.STOPPED or _is_fatal(event):
            left = [tp for tp, owner in owners.items() if owner == who]
        elif event.kind in (Kind.REVOKED, Kind.LOST) and event.tp is not None:
            left = [event.tp] if owners.get(event.tp) == who else []
        elif event.kind is Kind.ASSIGNED and event.tp is not None:
            owners[event.tp] = who
            unassigned_since.pop(who, None)
            waited_s = at_s - without.pop(event.tp, at_s)
            if waited_s > PROMPT_S:
                text = f"{event.tp} had no owner for {waited_s:.1f} s before {who}"
                yield Violation("waits", text, at_s)
        for tp in left:
            owners.pop(tp, None)
            if alive and not outages and at_s > noisy_until:
                without.setdefault(tp, at_s)


def fenced_members_lose_partitions(run: Run) -> Iterator[Violation]:
    """A member that the coordinator has removed loses its partitions soon.

    While it cannot reach the coordinator, it keeps them, and returns none of their records.
    """
    blocked_s = sum(fault.lasts_s for fault in run.plan.faults if fault.name == "loop blocked")
    within_s = SESSION_S + 2 * NOTICED_WITHIN_S + blocked_s
    owned: dict[str, set[TopicPartition]] = defaultdict(set)
    kept: dict[str, tuple[float, set[TopicPartition]]] = {}
    outages = 0
    for event in run.history.events:
        if is_reader(event.who):
            continue
        if _is_about_outage(event):
            outages = _outages_after(outages, event)
            kept = {who: (event.at_s + within_s, tps) for who, (_, tps) in kept.items()}
        if _forgets_leaves(run, event):
            kept.clear()
        for who, (until_s, tps) in tuple(kept.items()):
            if event.at_s > until_s and not outages:
                del kept[who]
                text = f"{who} keeps {min(tps)}, from which the coordinator has removed it"
                yield Violation("kept", text, event.at_s)
        if event.kind in (Kind.STOPPING, Kind.KILLED) or _is_fatal(event):
            owned.pop(event.who, None)
            kept.pop(event.who, None)
        elif event.kind is Kind.FENCED and owned[event.who]:
            kept[event.who] = (event.at_s + within_s, {*owned[event.who]})
        elif event.kind is Kind.ASSIGNED and event.tp is not None:
            owned[event.who].add(event.tp)
        elif event.kind in (Kind.REVOKED, Kind.LOST) and event.tp is not None:
            owned[event.who].discard(event.tp)
            if event.who in kept:
                kept[event.who][1].discard(event.tp)
                if not kept[event.who][1]:
                    del kept[event.who]


def static_members_wait_for_their_id(run: Run) -> Iterator[Violation]:
    """A member that follows another one with its instance id waits until that is released."""
    if any(fault.name == "twin member" for fault in run.plan.faults):
        return
    for event in run.history.of(Kind.RAISED):
        if event.note.startswith("UnreleasedInstanceIdError"):
            yield Violation("gives up", f"{event.who}: {event.note}", event.at_s)


# --- Requests -------------------------------------------------------------------------------
def attempts_have_pauses(run: Run) -> Iterator[Violation]:
    """No client connects, or sends requests of a kind, again and again without a pause."""
    seconds = Counter((src, dst, int(at_s)) for at_s, src, dst in run.facts.attempts)
    for (src, dst, second), count in seconds.items():
        if count > MOST_ATTEMPTS:
            text = f"{src} connects to {dst} {count} times in a second"
            yield Violation("hot loop", text, second)
    for (client_id, node_id, api, second), count in run.facts.requests.items():
        is_meant = (run.plan.habit, api) in MEANT
        if count > MOST_REQUESTS and not is_meant:
            text = f"{client_id} sends {count} {api} requests to node {node_id} in a second"
            yield Violation("hot loop", text, second)


def throttled_clients_wait(run: Run) -> Iterator[Violation]:
    """A client that has to wait does so on its next connection, too."""
    for event in run.history.of(Kind.THROTTLED):
        yield Violation("throttle", event.note, event.at_s)


# --- Transactions, dead letters -------------------------------------------------------------
def transactions_are_atomic(run: Run) -> Iterator[Violation]:
    """Readers get all records of a transaction or none."""
    if run.plan.is_compacted or any(run.history.of(Kind.CUT_LOG)):
        return
    there = {value for log in run.facts.logs.values() for value in log.values()}
    for event in run.history.of(Kind.ENDED):
        values = event.value.split()
        found = [value for value in values if value in there]
        if found and len(found) < len(values):
            text = f"{found} of {values} are in the log, {event.note}"
            yield Violation("part of a transaction", text, event.at_s)


def copies_are_made_exactly_once(run: Run) -> Iterator[Violation]:
    """Of a transactional copy, the output has each record of the input once."""
    if not run.plan.copies:
        return
    copies = Counter(run.facts.output)
    inputs = Counter(value for log in run.facts.logs.values() for value in log.values())
    for value, count in copies.items():
        if count > max(1, inputs[value]):
            yield Violation("copied twice", f"{value!r} is in the output {count} times")
    # No record is settled by itself: these are all that are to be read.
    for value in {value: None for _, _, value in run.unread(Kind.SETTLED)}:
        if not copies[value] and not run.is_dead(value):
            yield Violation("not copied", f"{value!r} is not in the output")


def failed_records_are_dead_letters(run: Run) -> Iterator[Violation]:
    """A record that fails is in the topic of dead letters, and no other record is.

    Outside transactions, a fault or a cancelled `run` may come between the letter and its commit.
    """
    if run.plan.way not in LETTERS:
        return
    is_disturbed = run.plan.faults or run.plan.habit == "times out"
    is_atomic = run.plan.way != "dead letters" and not run.rewritten()
    logged = Counter(value for log in run.facts.logs.values() for value in log.values())
    dead = Counter(run.facts.dead)
    for tp, offset, value in run.to_read():
        if fails(value) and not dead[value]:
            yield Violation("no letter", f"{value!r} at {place_of(tp, offset)} has no letter")
    for value, count in dead.items():
        if not fails(value):
            yield Violation("needless letter", f"{value!r} can be handled, and has a letter")
        elif count > max(1, logged[value]) and (is_atomic or not is_disturbed):
            yield Violation("repeated letter", f"{value!r} has {count} letters")


# --- Ends -----------------------------------------------------------------------------------
def members_stop_in_time(run: Run) -> Iterator[Violation]:
    """A member ends within the timeout of `stop`, plus the time for which its loop was blocked.

    The last event of a member that stops counts: before it, the application finishes its records.
    A member that copies also ends its transaction and its producer, which have other timeouts.
    """
    stopping: dict[str, Event] = {}
    within_s = STOP_WITHIN_S + (DELIVERED_WITHIN_S if run.plan.copies else 0.0)
    within_s += sum(fault.lasts_s for fault in run.plan.faults if fault.name == "loop blocked")
    for event in run.history.of(Kind.STOPPING, Kind.STOPPED, Kind.KILLED):
        if event.kind is Kind.STOPPING:
            stopping[event.who] = event
            continue
        begun = stopping.pop(event.who, None)
        if event.kind is Kind.STOPPED and begun is not None:
            took_s = event.at_s - begun.at_s
            if took_s > within_s:
                text = f"{event.who} took {took_s:.1f} s to stop"
                yield Violation("late stop", text, event.at_s)
    for who, event in stopping.items():
        yield Violation("no stop", f"{who} has not stopped", event.at_s)


def only_kafka_errors_are_raised(run: Run) -> Iterator[Violation]:
    """What an application gets is a KafkaError; others are bugs."""
    for event in run.history.of(Kind.RAISED):
        if event.value != b"KafkaError":
            yield Violation("foreign error", f"{event.who}: {event.note}", event.at_s)


RULES: Final[Sequence[Rule]] = (
    no_record_is_lost,
    every_record_is_seen,
    acknowledged_records_stay_or_are_compacted,
    no_aborted_record_is_read,
    idempotent_records_are_written_once,
    records_keep_their_order,
    values_are_those_of_the_log,
    one_assignment_is_in_order,
    paused_partitions_return_nothing,
    records_of_a_key_are_handled_one_by_one,
    commits_cover_what_is_finished,
    commits_do_not_go_back,
    one_member_owns_a_partition,
    only_owners_get_records,
    confirmed_commits_are_there,
    healthy_members_repeat_nothing,
    partitions_do_not_wait,
    fenced_members_lose_partitions,
    static_members_wait_for_their_id,
    attempts_have_pauses,
    throttled_clients_wait,
    transactions_are_atomic,
    copies_are_made_exactly_once,
    failed_records_are_dead_letters,
    members_stop_in_time,
    only_kafka_errors_are_raised,
)


# The rules that hold of share groups, too.
OF_RECORDS: Final[Sequence[Rule]] = (
    no_record_is_lost,
    every_record_is_seen,
    acknowledged_records_stay_or_are_compacted,
    no_aborted_record_is_read,
    idempotent_records_are_written_once,
    values_are_those_of_the_log,
    attempts_have_pauses,
    throttled_clients_wait,
    members_stop_in_time,
    only_kafka_errors_are_raised,
)


def check(run: Run) -> list[Violation]:
    """Return all violations of a run, in the order of the rules."""
    if run.plan.way == SHARING:
        return [violation for rule in (*OF_RECORDS, *SHARE_RULES) for violation in rule(run)]
    return [violation for rule in (*RULES, *HANDLER_RULES) for violation in rule(run)]
