"""Rules that hold of every sound run, such as those that Jepsen checks of Kafka and its clients.

Each rule is a function that yields violations. Records are told apart by their values, which must
differ. A log that a fault has rewritten excuses violations that are about its offsets.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from aiokafka_lite.simulation.history import (
    UNKNOWN_PARTITION,
    Event,
    Facts,
    History,
    Kind,
    Violation,
)
from aiokafka_lite.structs import TopicPartition

# Timestamps of commits are whole milliseconds.
COMMIT_SLACK_S: Final = 0.002
# Faults that change what a log has had.
REWRITTEN: Final = frozenset({"truncation", "recreated"})


@dataclass
class Evidence:
    """One run, as the rules read it.

    Attributes:
        group: Whose commits are judged. None: those of all groups.
    """

    history: History
    facts: Facts
    group: str | None = None

    def rewritten(self) -> set[TopicPartition]:
        """Return the partitions whose offsets have not always had the same records."""
        cuts = self.history.of(Kind.CUT_LOG)
        return {event.tp for event in cuts if event.tp is not None and event.who in REWRITTEN}

    def recreated_at(self) -> dict[TopicPartition, float]:
        """Return since when partitions have a new log. It may have been recreated only."""
        other = {event.tp for event in self.history.of(Kind.CUT_LOG) if event.who == "truncation"}
        return {
            event.tp: event.at_s
            for event in self.history.of(Kind.CUT_LOG)
            if event.tp is not None and event.who == "recreated" and event.tp not in other
        }

    def to_read(self) -> Iterator[tuple[TopicPartition, int, bytes]]:
        """Yield the records of the log that are to be read.

        A truncation may remove the marker of an abort. The producer's next marker replaces it.
        """
        aborted = {each.value for each in self.history.of(Kind.REFUSED) if each.note == "aborted"}
        rewritten = self.rewritten()
        for tp, log in self.facts.logs.items():
            for offset, value in log.items():
                if not (value in aborted and tp in rewritten):
                    yield tp, offset, value

    def unread(self, kind: Kind) -> Iterator[tuple[TopicPartition, int, bytes]]:
        """Yield the records that should have an event of a kind, and have none."""
        seen = {event.value for event in self.history.of(kind)}
        return (each for each in self.to_read() if each[2] not in seen)

    def is_dead(self, value: bytes) -> bool:
        return False

    def is_idempotent(self, value: bytes) -> bool:
        """Whether a record was sent by an idempotent producer."""
        return True


Rule: TypeAlias = Callable[[Evidence], Iterator[Violation]]


def place_of(tp: TopicPartition | None, offset: int) -> str:
    return "" if tp is None else f"{tp.topic}/{tp.partition}@{offset}"


# --- Records --------------------------------------------------------------------------------
def no_record_is_lost(run: Evidence) -> Iterator[Violation]:
    """Each record that the log has was handled, or is a dead letter."""
    for tp, offset, value in run.unread(Kind.HANDLED):
        if not run.is_dead(value):
            yield Violation("lost", f"{value!r} at {place_of(tp, offset)} was never handled")


def every_record_is_seen(run: Evidence) -> Iterator[Violation]:
    """Each record that the log has was returned to a consumer."""
    for tp, offset, value in run.unread(Kind.RETURNED):
        yield Violation("unseen", f"{value!r} at {place_of(tp, offset)} was never returned")


def acknowledged_records_stay(run: Evidence) -> Iterator[Violation]:
    """The log has each acknowledged record, unless the log itself was changed."""
    cuts = list(run.history.of(Kind.CUT_LOG))
    there = {value for log in run.facts.logs.values() for value in log.values()}
    for event in run.history.of(Kind.ACKED):
        may_be_gone = any(_may_concern(cut, event.tp) for cut in cuts)
        if event.value not in there and not may_be_gone:
            text = f"{event.value!r} was acknowledged and is not in the log"
            yield Violation("acknowledged, lost", text, event.at_s)


def _may_concern(cut: Event, tp: TopicPartition | None) -> bool:
    if tp is None or cut.tp is None or tp.partition != UNKNOWN_PARTITION:
        return tp in (None, cut.tp)
    return tp.topic == cut.tp.topic


def _is_in_log(run: Evidence, event: Event) -> bool:
    """Whether the log has a record, or had it before its beginning was deleted."""
    if event.tp is None or event.offset < run.facts.starts.get(event.tp, 0):
        return True
    return run.facts.logs.get(event.tp, {}).get(event.offset) == event.value


def no_aborted_record_is_read(run: Evidence) -> Iterator[Violation]:
    """No record of a transaction that was aborted is returned (Jepsen's G1a).

    A later transaction may send its value again. A truncation may keep a record and remove the
    marker of its abort. Then the producer's next marker decides about the record: it may commit it.
    """
    refused = run.history.of(Kind.REFUSED)
    aborted = Counter(event.value for event in refused if event.note == "aborted")
    sent_again = Counter(event.value for event in run.history.of(Kind.SENT)) - aborted
    cuts = [event for event in run.history.of(Kind.CUT_LOG) if event.who == "truncation"]
    for event in run.history.of(Kind.RETURNED):
        if event.value not in aborted:
            continue
        if event.value in sent_again and _is_in_log(run, event):
            continue
        if not any(
            cut.tp == event.tp and cut.offset > event.offset and cut.at_s <= event.at_s
            for cut in cuts
        ):
            text = f"{event.who} got {event.value!r} of an aborted transaction"
            yield Violation("aborted read", text, event.at_s)


def idempotent_records_are_written_once(run: Evidence) -> Iterator[Violation]:
    counts = Counter(value for log in run.facts.logs.values() for value in log.values())
    for value, count in counts.items():
        if count > 1 and run.is_idempotent(value):
            yield Violation("written twice", f"{value!r} is in the log {count} times")


def records_keep_their_order(run: Evidence) -> Iterator[Violation]:
    """In a partition, records of an idempotent sender have the order in which it sent them.

    The events name the sender by its host, and by a note if the host has several.

    Rewritten logs are left out. A leader that has lost its end has forgotten the producer: it
    accepts any next batch, also while an earlier one waits for the answer of the former leader.
    """
    sent: dict[bytes, tuple[Event, int]] = {}
    for number, event in enumerate(run.history.of(Kind.SENT)):
        sent.setdefault(event.value, (event, number))
    rewritten = run.rewritten()
    for tp, log in run.facts.logs.items():
        if tp in rewritten:
            continue
        last: dict[tuple[str, str], tuple[int, bytes]] = {}
        for offset, value in sorted(log.items()):
            if value not in sent or not run.is_idempotent(value):
                continue
            event, number = sent[value]
            sender = event.who, event.note
            before, other = last.get(sender, (-1, b""))
            if number < before:
                place = place_of(tp, offset)
                text = f"{event.who} sent {value!r} before {other!r}, and {place} is after"
                yield Violation("reorder", text)
            last[sender] = max((before, other), (number, value))


def values_are_those_of_the_log(run: Evidence) -> Iterator[Violation]:
    rewritten = run.rewritten()
    for event in run.history.of(Kind.RETURNED):
        if event.tp is None or event.tp in rewritten:
            continue
        there = run.facts.logs.get(event.tp, {}).get(event.offset, event.value)
        if there != event.value:
            text = (
                f"{event.who} got {event.value!r} at {place_of(event.tp, event.offset)}, "
                f"where the log has {there!r}"
            )
            yield Violation("another record", text, event.at_s)


# --- One assignment -------------------------------------------------------------------------
def _reads(run: Evidence) -> Iterator[tuple[Event, TopicPartition, int]]:
    """Yield each record that was returned, and the offset before it in the same assignment; or -1.

    Processes without a rebalance listener are left out. After a seek, that is the offset before its
    goal, if the goal is known.
    """
    last: dict[tuple[str, TopicPartition], int] = {}
    listening = {event.who for event in run.history.of(Kind.ASSIGNED)}
    rewritten = run.rewritten()
    for event in run.history.events:
        tp = event.tp
        if event.kind is Kind.RAISED:
            last = {key: offset for key, offset in last.items() if key[0] != event.who}
        elif tp is None or tp in rewritten:
            continue
        elif event.kind in (Kind.ASSIGNED, Kind.REVOKED, Kind.LOST):
            last.pop((event.who, tp), None)
        elif event.kind is Kind.SOUGHT:
            last[event.who, tp] = max(event.offset, 0) - 1
        elif event.kind is Kind.RETURNED and event.who in listening:
            yield event, tp, last.get((event.who, tp), -1)
            last[event.who, tp] = event.offset


def polls_are_monotonic(run: Evidence) -> Iterator[Violation]:
    """In one assignment, offsets rise."""
    for event, tp, before in _reads(run):
        if event.offset <= before:
            text = f"{event.who} got {event.value!r} at {place_of(tp, event.offset)} after {before}"
            yield Violation("non-monotonic poll", text, event.at_s)


def polls_skip_nothing(run: Evidence) -> Iterator[Violation]:
    """In one assignment, no record of the log is left out."""
    for event, tp, before in _reads(run):
        log = run.facts.logs.get(tp, {})
        left_out = (offset for offset in range(before + 1, event.offset) if offset in log)
        if before >= 0 and (first := next(left_out, None)) is not None:
            place = place_of(tp, event.offset)
            text = f"{event.who} got {place} right after {before}, without {first}"
            yield Violation("poll skip", text, event.at_s)


# --- Commits --------------------------------------------------------------------------------
def judged_commits(run: Evidence) -> Iterator[tuple[Event, TopicPartition]]:
    rewritten = run.rewritten()
    for event in run.history.of(Kind.COMMITTED):
        is_judged = run.group in (None, event.who) and event.tp in run.facts.logs
        if event.tp is not None and is_judged and event.tp not in rewritten:
            yield event, event.tp


def _commits_of_new_logs(run: Evidence) -> Iterator[tuple[Event, TopicPartition]]:
    recreated_at = run.recreated_at()
    for event in run.history.of(Kind.COMMITTED):
        is_judged = run.group in (None, event.who) and event.tp in run.facts.logs
        if event.tp is None or not is_judged or event.tp not in recreated_at:
            continue
        if event.at_s > recreated_at[event.tp] + COMMIT_SLACK_S:
            yield event, event.tp


def commits_cover_finished_records(run: Evidence) -> Iterator[Violation]:
    """No commit is above a record that was not handled before it.

    Of a recreated partition, those after that count: an offset of the former log may be above.
    """
    handled_at: dict[bytes, float] = {}
    for event in run.history.of(Kind.HANDLED):
        handled_at.setdefault(event.value, event.at_s)
    checked: dict[TopicPartition, int] = defaultdict(int)
    for event, tp in (*judged_commits(run), *_commits_of_new_logs(run)):
        log = run.facts.logs[tp]
        for offset in range(checked[tp], event.offset):
            value = log.get(offset)
            if value is None or run.is_dead(value):
                continue
            if handled_at.get(value, float("inf")) > event.at_s + COMMIT_SLACK_S:
                text = f"{place_of(tp, event.offset)} is committed, {offset} is not handled"
                yield Violation("commit ahead", text, event.at_s)
                break
        checked[tp] = max(checked[tp], event.offset)
