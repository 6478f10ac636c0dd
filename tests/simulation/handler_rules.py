"""What must hold of runs whose handlers the plan decides, next to the rules of `rules.py`.

A record has a stage: 0 in its own partition, and the number of its delays in a delay topic. A stage
ends when a handler has finished the record, when its dead letter is written, when it is written to
the next delay topic, or when it is dropped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from aiokafka_lite.consumer.assignment.finished import decode
from aiokafka_lite.simulation.history import Kind, Violation
from aiokafka_lite.simulation.rules import COMMIT_SLACK_S, place_of
from aiokafka_lite.structs import TopicPartition
from tests.simulation.calls import Call, Handled, Letter
from tests.simulation.handling import (
    BAD,
    DELAYS_S,
    ENDLESS,
    KEYS_OF_FUNCTION,
    MOST_PER_SECOND,
    Act,
    End,
    Handling,
    number_of,
)

if TYPE_CHECKING:
    from tests.simulation.rules import Run

NEVER: Final = float("inf")
KEYS: Final = 7
ERRORS: Final = {
    Act.BAD: "BadRecordError",
    Act.NOT_OURS: "NotOursError",
    Act.FAILS: "ConnectionError",
    Act.HANGS: "TimeoutError",
}
LETTER_TOPICS: Final = {End.DEAD: "dead", End.LATE: "late"}
# How much longer than its limit a call may take, with what a handler does after its cancellation.
LATE_S: Final = 0.1
# Calls that are made up for at once, after a time without calls.
BURST: Final = 1
MOST_CALLS: Final = 20
# Timers of some loops are early by as much.
EARLY_S: Final = 0.01


class Stage(NamedTuple):
    """A record, as it was read from its own partition or a delay topic."""

    tp: TopicPartition
    offset: int
    value: bytes
    number: int


def may_time_out(run: Run) -> bool:
    """Whether any call may exceed its limit, because the loop was blocked meanwhile."""
    handling = run.plan.handling
    has_limit = handling is not None and handling.timeout_s is not None
    return has_limit and any(fault.name == "loop blocked" for fault in run.plan.faults)


def is_ended_elsewhere(run: Run, value: bytes) -> bool:
    """Whether a record ends, or may end, without a handler that finishes it."""
    handling = run.plan.handling
    assert handling is not None
    may_be_dropped = handling.letters == "drop" and may_time_out(run)
    is_dead = handling.end_of(value) is not End.DONE or may_be_dropped
    return is_dead or value in run.ends.letter_values


class Ends:
    """When the stages of records have ended in a run."""

    def __init__(self, run: Run) -> None:
        assert run.plan.handling is not None
        self._run, self.handling = run, run.plan.handling
        facts = run.facts
        self.letter_values = {letter.value for letter in facts.letters}
        self.stages = {
            letter.there: Stage(letter.tp, letter.offset, letter.value, letter.delay_count)
            for letter in facts.delayed
        }
        self.killed_at = {event.who: event.at_s for event in run.history.of(Kind.KILLED)}
        self._at: dict[Stage, float] = {}
        for letter in facts.letters:
            self._note(letter, letter.delay_count, letter.at_s)
        for letter in facts.delayed:
            self._note(letter, letter.delay_count - 1, letter.at_s)
        for call in facts.call_log.calls:
            self._note_call(call)

    def at(self, stage: Stage) -> float:
        return self._at.get(stage, NEVER)

    def stage_of(self, handled: Handled) -> Stage:
        own = Stage(handled.tp, handled.offset, handled.value, 0)
        return self.stages.get((handled.read_tp, handled.read_offset), own)

    def end_of(self, call: Call) -> float:
        return min(call.ended_at_s, self.killed_at.get(call.who, NEVER))

    def _note(self, letter: Letter, number: int, at_s: float) -> None:
        stage = Stage(letter.tp, letter.offset, letter.value, number)
        self._at[stage] = min(at_s, self.at(stage))

    def _note_call(self, call: Call) -> None:
        for each in call.records:
            stage = self.stage_of(each)
            if call.outcome == "finished" or (call.outcome and self._may_drop(call, each.value)):
                self._at[stage] = min(call.ended_at_s, self.at(stage))

    def _may_drop(self, call: Call, value: bytes) -> bool:
        if len(call.records) > 1:
            return False
        by_limit = self.handling.letters == "drop" and may_time_out(self._run)
        return by_limit or self.handling.end_of(value) is End.DROPPED


Rule: TypeAlias = "Callable[[Run, Handling], Iterator[Violation]]"


# --- Ends of records ------------------------------------------------------------------------
def commits_cover_ended_records(run: Run, handling: Handling) -> Iterator[Violation]:
    """No commit is above a record whose stage had not ended."""
    ends, checked = run.ends, Counter[TopicPartition]()
    logs = {
        tp: {offset: Stage(tp, offset, value, 0) for offset, value in log.items()}
        for tp, log in run.facts.logs.items()
        if tp not in run.rewritten()
    }
    for (tp, offset), stage in ends.stages.items():
        if stage.tp not in run.rewritten():
            logs.setdefault(tp, {})[offset] = stage
    for event in run.history.of(Kind.COMMITTED):
        if event.tp is None or event.tp not in logs:
            continue
        for offset in range(checked[event.tp], event.offset):
            there = logs[event.tp].get(offset)
            if there is not None and ends.at(there) > event.at_s + COMMIT_SLACK_S:
                text = f"{place_of(event.tp, event.offset)} is committed, {there} has not ended"
                yield Violation("commit ahead", text, event.at_s)
                break
        checked[event.tp] = max(checked[event.tp], event.offset)


def records_end_as_they_must(run: Run, handling: Handling) -> Iterator[Violation]:
    """A record that cannot be handled has a letter in the right topic, and no other record has."""
    letters: dict[bytes, set[str]] = defaultdict(set)
    for letter in run.facts.letters:
        letters[letter.value].add(letter.topic)
    for tp, offset, value in run.to_read():
        end, found, place = handling.end_of(value), letters[value], place_of(tp, offset)
        wanted = LETTER_TOPICS.get(end)
        if wanted is not None and handling.letters == "function":
            wanted = "function"
        if wanted is not None and not found:
            yield Violation("no letter", f"{value!r} at {place} has no letter")
        if found - {wanted} and not may_time_out(run):
            text = f"{value!r} at {place}, which is {end.value}, has letters in {sorted(found)}"
            yield Violation("needless letter", text)


def letters_tell_what_happened(run: Run, handling: Handling) -> Iterator[Violation]:
    """Letters have the number of attempts, the errors and the place of their records."""
    rewritten = run.rewritten()
    for letter in (*run.facts.letters, *run.facts.delayed):
        log = run.facts.logs.get(letter.tp, {})
        if letter.tp not in rewritten and log.get(letter.offset, letter.value) != letter.value:
            yield Violation("another letter", f"{letter} is not of {log[letter.offset]!r}")
        act = handling.act_of(letter.value)
        if may_time_out(run):
            continue
        is_dead = letter.topic in (*LETTER_TOPICS.values(), "function")
        stages = len(DELAYS_S) if handling.after and act not in BAD else 0
        attempts = handling.attempts_of(letter.value)
        if not is_dead:
            stages = letter.delay_count
            attempts = None if handling.has_breaker else handling.after + stages - 1
        if attempts not in (None, letter.attempts):
            yield Violation("attempts", f"{letter} has had {attempts} attempts", letter.at_s)
        error = first = ERRORS.get(act)
        if act is Act.FAILS and stages > (0 if is_dead else 1):
            error = "ConnectionResetError"
        if act in ENDLESS and letter.error != error:
            yield Violation("another error", f"{letter} has failed by {error}", letter.at_s)
        if letter.delay_count != stages:
            yield Violation("delays", f"{letter} has had {stages} delays", letter.at_s)
        if act in ENDLESS and stages and letter.first_error != first:
            yield Violation("first error", f"{letter} has failed first by {first}", letter.at_s)


def letters_are_written_once(run: Run, handling: Handling) -> Iterator[Violation]:
    """In transactions, or without a harmful fault, a record has one letter of a kind."""
    is_calm = run.plan.is_harmless and run.plan.habit != "times out"
    if not (handling.is_atomic or is_calm) or run.plan.listener == "raises":
        return
    counts = Counter(
        (letter.topic, Stage(letter.tp, letter.offset, letter.value, letter.delay_count))
        for letter in (*run.facts.letters, *run.facts.delayed)
        if letter.tp not in run.rewritten()
    )
    for (topic, stage), count in counts.items():
        if count > 1:
            yield Violation("repeated letter", f"{stage} has {count} letters in {topic}")


# --- Order ----------------------------------------------------------------------------------
def _lane_of(handling: Handling, tp: TopicPartition, value: bytes) -> Hashable:
    """Return the name of the lane of a record in a partition. None: it has none."""
    if handling.order == "partition":
        return tp
    number = number_of(value)
    keys = {"key": KEYS, "function": KEYS_OF_FUNCTION}.get(handling.order)
    is_without_key = handling.order == "key" and value.startswith(b"w")
    return None if keys is None or is_without_key else (tp, number % keys)


def records_of_a_lane_begin_in_order(run: Run, handling: Handling) -> Iterator[Violation]:
    """A record begins when all before it of its lane have ended in their partition."""
    ends = run.ends
    # By lane: the offsets in their order, and of each when all before it had ended.
    offsets: dict[Hashable, list[int]] = defaultdict(list)
    free_at: dict[Hashable, list[float]] = defaultdict(lambda: [0.0])
    for tp, log in run.facts.logs.items():
        if tp in run.rewritten():
            continue
        for offset, value in sorted(log.items()):
            if (lane := _lane_of(handling, tp, value)) is not None:
                offsets[lane].append(offset)
                ended_at = ends.at(Stage(tp, offset, value, 0))
                free_at[lane].append(max(free_at[lane][-1], ended_at))
    for call in run.facts.call_log.calls:
        seen = set[Hashable]()
        for each in call.records:
            lane = _lane_of(handling, each.tp, each.value)
            if each.is_delayed or lane not in offsets or lane in seen:
                continue
            seen.add(lane)
            number = bisect_right(offsets[lane], each.offset - 1)
            if free_at[lane][number] > call.began_at_s + COMMIT_SLACK_S:
                place = place_of(each.tp, each.offset)
                text = f"{call.who} begins {each.value!r} at {place} before those ahead have ended"
                yield Violation("order", text, call.began_at_s)


def calls_of_a_lane_follow_each_other(run: Run, handling: Handling) -> Iterator[Violation]:
    """A member has one call at a time for the records of a lane, and without faults the group."""
    latest: dict[Hashable, Call] = {}
    for call in run.facts.call_log.calls:
        for each in call.records:
            lane = _lane_of(handling, each.read_tp, each.value)
            if lane is None:
                continue
            owner = lane if run.plan.is_harmless else (call.who, lane)
            other = latest.get(owner)
            latest[owner] = call
            if other not in (None, call) and run.ends.end_of(other) > call.began_at_s:
                place = place_of(each.read_tp, each.read_offset)
                text = f"{call.who} begins {place} while {other.who} handles {other.records}"
                yield Violation("key twice", text, call.began_at_s)


# --- Repetitions ----------------------------------------------------------------------------
def _assigned_at(run: Run) -> dict[tuple[str, TopicPartition], list[float]]:
    """Return when each member's assignments of a partition have begun or ended."""
    found: dict[tuple[str, TopicPartition], list[float]] = defaultdict(list)
    for event in run.history.of(Kind.ASSIGNED, Kind.REVOKED, Kind.LOST):
        if event.tp is not None:
            found[event.who, event.tp].append(event.at_s)
    return found


def finished_records_are_not_handled_again(run: Run, handling: Handling) -> Iterator[Violation]:
    """A record that a handler has finished does not begin again in the same assignment.

    Nor does one that a commit from before the assignment covers. Transactions that fail have their
    records handled again.
    """
    may_abort = handling.copies and (run.plan.faults or run.plan.habit == "times out")
    assigned_at, rewritten = _assigned_at(run), run.rewritten()
    covered = _Covered(run)
    finished: set[tuple[str, TopicPartition, int, int]] = set()
    calls = run.facts.call_log.calls
    for at_s, number, is_end in sorted(
        [(call.began_at_s, n, False) for n, call in enumerate(calls)]
        + [(call.ended_at_s, n, True) for n, call in enumerate(calls) if call.outcome == "finished"]
    ):
        call = calls[number]
        for each in call.records:
            if each.tp in rewritten:
                continue
            times = assigned_at.get((call.who, each.read_tp), [])
            epoch = bisect_right(times, call.began_at_s)
            key = (call.who, each.read_tp, each.read_offset, epoch)
            if is_end:
                finished.add(key)
                continue
            place = place_of(each.read_tp, each.read_offset)
            if key in finished and not may_abort:
                text = f"{call.who} begins {place} again, which it has finished"
                yield Violation("handled again", text, at_s)
            if epoch and covered.at(each.read_tp, each.read_offset, times[epoch - 1]):
                text = f"{call.who} begins {place}, which was committed before its assignment"
                yield Violation("handled again", text, at_s)


class _Covered:
    """What commits of a run have covered, also by their metadata."""

    def __init__(self, run: Run) -> None:
        self._commits: dict[TopicPartition, list[tuple[float, int, frozenset[int]]]] = {}
        for event in run.history.of(Kind.COMMITTED):
            if event.tp is None or event.tp in run.rewritten():
                continue
            topic_id = run.facts.topic_ids.get(event.tp.topic, b"")
            found = decode(topic_id, event.offset, event.note)
            ahead = frozenset(
                offset
                for each in (() if found is None else found.ranges)
                for offset in range(each.first, each.end)
            )
            self._commits.setdefault(event.tp, []).append((event.at_s, event.offset, ahead))

    def at(self, tp: TopicPartition, offset: int, at_s: float) -> bool:
        before = [each for each in self._commits.get(tp, ()) if each[0] < at_s - COMMIT_SLACK_S]
        if not before:
            return False
        _, committed, ahead = before[-1]
        return offset < committed or offset in ahead


# --- Limits ---------------------------------------------------------------------------------
def calls_keep_their_limits(run: Run, handling: Handling) -> Iterator[Violation]:
    """Calls are not too many at once or in a second, and none takes longer than its limit."""
    most = MOST_CALLS if handling.limit == "changing" else handling.concurrency
    is_blocked = any(fault.name == "loop blocked" for fault in run.plan.faults)
    open_until: dict[str, list[float]] = defaultdict(list)
    began: dict[str, list[float]] = defaultdict(list)
    for call in run.facts.call_log.calls:
        at_s, end_s = call.began_at_s, run.ends.end_of(call)
        still = open_until[call.who] = [each for each in open_until[call.who] if each > at_s]
        still.append(end_s)
        if len(still) > most:
            yield Violation("calls", f"{call.who} has {len(still)} calls of {most}", at_s)
        recent = began[call.who] = [each for each in began[call.who] if each > at_s - 1.0]
        recent.append(at_s)
        if handling.limit == "rate" and len(recent) > MOST_PER_SECOND + BURST:
            yield Violation("calls", f"{call.who} begins {len(recent)} calls in a second", at_s)
        took_s = end_s - at_s
        if handling.timeout_s is None or is_blocked or handling.form == "plain":
            continue
        if took_s > handling.timeout_s + (LATE_S if call.outcome != "finished" else 0.001):
            text = f"a call of {call.who} for {call.records} was {call.outcome} in {took_s:.2f} s"
            yield Violation("time limit", text, at_s)


def delayed_records_are_waited_for(run: Run, handling: Handling) -> Iterator[Violation]:
    """A delayed record begins when its delay is over, by a clock that is not set."""
    if any(fault.name == "clock skew" for fault in run.plan.faults):
        return
    due_at = {
        letter.there: letter.at_s + DELAYS_S[letter.delay_count - 1] for letter in run.facts.delayed
    }
    for call in run.facts.call_log.calls:
        for each in call.records:
            early_s = due_at.get((each.read_tp, each.read_offset), 0.0) - call.began_at_s
            if early_s > EARLY_S:
                text = f"{call.who} begins {each} {early_s:.2f} s too early"
                yield Violation("early", text, call.began_at_s)


def lists_have_what_they_may(run: Run, handling: Handling) -> Iterator[Violation]:
    """Lists are small enough, and have records of one handler, partition or key if they must."""
    most = handling.batch_size or 1
    has_two = handling.form == "dict" and run.plan.second != "pattern"
    for call in run.facts.call_log.calls:
        places = {each.read_tp for each in call.records}
        keys_in_all = KEYS_OF_FUNCTION if handling.order == "function" else KEYS
        keys = {(each.read_tp, number_of(each.value) % keys_in_all) for each in call.records}
        is_of_many = (
            len(call.records) > most
            or (handling.batch_by == "partition" and len(places) > 1)
            or (handling.batch_by == "key" and len(keys) > 1)
            or (has_two and len({each.tp.topic for each in call.records}) > 1)
        )
        if is_of_many:
            yield Violation("list", f"{call.who} gets {call.records} at once", call.began_at_s)


RULES: Final[Sequence[Rule]] = (
    commits_cover_ended_records,
    records_end_as_they_must,
    letters_tell_what_happened,
    letters_are_written_once,
    records_of_a_lane_begin_in_order,
    calls_of_a_lane_follow_each_other,
    finished_records_are_not_handled_again,
    calls_keep_their_limits,
    delayed_records_are_waited_for,
    lists_have_what_they_may,
)


def _of_handlers(rule: Rule) -> Callable[[Run], Iterator[Violation]]:
    def check(run: Run) -> Iterator[Violation]:
        if run.plan.handling is not None:
            yield from rule(run, run.plan.handling)

    check.__name__ = rule.__name__
    return check


HANDLER_RULES: Final = tuple(map(_of_handlers, RULES))
