"""What became of each record in each group, and what must not be.

A record is *finished* when the application is done with it, and *settled* when the consumer has
promised not to return it again: the application has told it so, and has not lost the partition
before. A rule that is broken is a violation:

- lost: a record was never finished by any member;
- repeated: a settled record is returned again, and no kill or missed session excuses that;
- ahead: a commit covers a record that is not finished;
- back: a commit covers less than the one before, and no seek explains that;
- out of order: a record begins before an earlier one of its key, or partition, is finished;
- twice, missing: the output of a transaction, or a dead letter, is not there exactly once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from aiokafka_lite.structs import TopicPartition
from tests.model.pairs.book import Book, Written

SHOWN: Final = 12
# For so long after a topic was recreated clients take the new one for the old one.
RECREATED_S: Final = 3.0
LAST_LINES: Final = 4_000


class Commit(NamedTuple):
    """What a group has committed of a partition: an offset, and ranges finished behind it."""

    offset: int
    ranges: tuple[tuple[int, int], ...]
    life: int


@dataclass
class GroupState:
    """What one group has done, by the numbers of records."""

    finished: set[int] = field(default_factory=set)
    settled: set[int] = field(default_factory=set)
    covered: set[int] = field(default_factory=set)
    # In a commit or a transaction that is ending, or whose outcome the application was not told.
    in_commit: Counter[int] = field(default_factory=Counter)
    # Which a seek passed over.
    passed_over: set[int] = field(default_factory=set)
    # How many times more than once a record may be processed, because of seeks.
    may_repeat: Counter[int] = field(default_factory=Counter)
    excused_until: float = 0.0
    commits: dict[TopicPartition, Commit] = field(default_factory=dict)
    # Where seeks led that no commit has followed yet.
    sought: dict[TopicPartition, list[int]] = field(default_factory=lambda: defaultdict(list))
    sought_at: dict[TopicPartition, float] = field(default_factory=dict)
    # Its offsets are committed by the names of topics: in transactions.
    commits_by_name: bool = False
    # Records whose dead letters were written by themselves, as the consumer said.
    dead: set[int] = field(default_factory=set)
    returned: int = 0
    repeated: int = 0


class Journal:
    """Written by members and the conductor at the moment itself; it judges as it is written.

    Args:
        book: Which records there are.
        now: Returns the world's time.
    """

    def __init__(self, book: Book, now: Callable[[], float]) -> None:
        self._book = book
        self._now = now
        self.groups: dict[str, GroupState] = defaultdict(GroupState)
        self.violations: list[str] = []
        self._lines: list[str] = []
        self._recreated_at: dict[str, float] = {}

    # --- Lines ----------------------------------------------------------------------------
    def note(self, who: str, words: str) -> None:
        """Keep a line for whoever looks for the cause of a violation."""
        self._lines.append(f"{self._now():9.3f} {who:<8} {words}")
        if len(self._lines) > 2 * LAST_LINES:
            del self._lines[:LAST_LINES]

    def lines(self, count: int) -> list[str]:
        """Return the latest lines."""
        return self._lines[-count:] if count else []

    def violate(self, rule: str, who: str, words: str) -> None:
        """Note that a rule is broken."""
        self.violations.append(f"{rule}: {who} at {self._now():.3f}: {words}")
        self.note(who, f"VIOLATION {rule}: {words}")

    # --- Records --------------------------------------------------------------------------
    def return_(
        self,
        group: str,
        who: str,
        tp: TopicPartition,
        offset: int,
        number: int,
        *,
        is_excused: bool = False,
    ) -> None:
        """Note that a read has returned a record, or that a handler begins with it."""
        state, written = self.groups[group], self._book.records[number]
        state.returned += 1
        if (written.tp, written.offset) != (tp, offset):
            self.violate("of another place", who, f"{tp} {offset} is returned as {written}")
        is_covered = number in state.covered
        # A commit that was on its way while the application sought is no promise.
        is_promised = number in state.settled or (is_covered and not state.may_repeat[number])
        is_of_former = self.is_recreated(tp.topic) and number in self._book.gone
        if not is_promised or is_of_former:
            return
        state.settled.discard(number)
        state.repeated += 1
        if is_covered or not self.is_excused(group):
            words = f"{place(written)}{', which a commit covers' if is_covered else ''}"
            self.violate("repeated", who, words)

    def finish(self, group: str, numbers: Iterable[int], *, settles: bool) -> None:
        """Note that the application is done with records."""
        state = self.groups[group]
        for number in numbers:
            state.finished.add(number)
            del state.in_commit[number]
            if settles:
                state.settled.add(number)

    def may_be_finished(self, group: str, numbers: Iterable[int]) -> None:
        """Note that a commit, or a transaction, with these records begins to end."""
        self.groups[group].in_commit.update(numbers)

    def is_not_finished(self, group: str, numbers: Iterable[int]) -> None:
        """Note that such a transaction is known to be aborted."""
        # Not with another member's transaction, whose outcome may be unknown for ever.
        self.groups[group].in_commit -= Counter(numbers)

    def check_order(self, group: str, who: str, number: int, *, by_key: bool) -> None:
        """Hold a record that begins against those before it."""
        written = self._book.records[number]
        early = [
            each.offset
            for each in self._book.log(written.tp)[: written.offset]
            if (not by_key or each.key == written.key) and not self._is_done(group, each.number)
        ]
        if early and number not in self._book.gone:
            self.violate("out of order", who, f"{place(written)} begins before {early[:SHOWN]}")

    def _is_done(self, group: str, number: int) -> bool:
        state = self.groups[group]
        return (
            number in state.finished
            or number in state.in_commit
            or number in state.passed_over
            or number in self._book.gone
        )

    def first_unfinished(self, group: str, tp: TopicPartition) -> int:
        """Return the first offset of a log that nobody has finished."""
        log = self._book.log(tp)
        left = (each.offset for each in log if not self._is_done(group, each.number))
        return next(left, len(log))

    def unsettle(self, group: str, tp: TopicPartition, first: int) -> None:
        """Take back the promise for what is finished from an offset on."""
        self.groups[group].settled -= {each.number for each in self._book.log(tp)[first:]}

    # --- What changes what may be -----------------------------------------------------------
    def seek(self, group: str, tp: TopicPartition, offset: int) -> None:
        """Note that the application asks for the records from an offset on."""
        state, log = self.groups[group], self._book.log(tp)
        state.passed_over.update(each.number for each in log[:offset])
        state.sought_at[tp] = self._now()
        state.sought[tp].append(offset)
        for each in log[offset:]:
            state.settled.discard(each.number)
            state.covered.discard(each.number)
            state.may_repeat[each.number] += 1

    def deleted(self, topic: str) -> None:
        """Note that a topic is being deleted: its records may be returned still."""
        self._recreated_at[topic] = self._now()

    def recreated(self, topic: str) -> None:
        """Note that a topic was deleted and created again.

        For a while records of the old one may be returned again: nobody can commit them any more.
        Where coordinators know topics by name only, offsets of the old one may be committed to the
        new one until a member's metadata tell it, as those of Java's client are.
        """
        self._recreated_at[topic] = self._now()
        for state in self.groups.values():
            for tp in state.commits.keys() & set(self._book.partitions):
                if tp.topic == topic and state.commits_by_name:
                    state.sought[tp].append(0)

    def is_recreated(self, topic: str) -> bool:
        """Whether a topic was recreated a moment ago."""
        return self._now() < self._recreated_at.get(topic, -RECREATED_S) + RECREATED_S

    def is_recreated_since(self, topic: str, at: float) -> bool:
        """Whether a topic was recreated at a time or later."""
        return self._recreated_at.get(topic, -1.0) >= at

    def has_partition(self, tp: TopicPartition) -> bool:
        """Whether a partition is one of the present topic."""
        return tp in self._book.partitions

    def is_gone(self, number: int) -> bool:
        """Whether no log holds a record any more."""
        return number in self._book.gone

    def is_in_log(self, number: int) -> bool:
        """Whether a record is one of the present log, perhaps before its first offset."""
        written = self._book.records[number]
        log = self._book.log(written.tp)
        return written.offset < len(log) and log[written.offset].number == number

    def offset_of(self, number: int) -> int:
        """Return where a record is."""
        return self._book.records[number].offset

    def is_excused(self, group: str) -> bool:
        """Whether a member was killed, or a session was missed, a while ago."""
        return self._now() < self.groups[group].excused_until

    def excuse(self, group: str, seconds: float) -> None:
        """Allow for a while that what no commit covers is returned again."""
        state = self.groups[group]
        state.excused_until = max(state.excused_until, self._now() + seconds)

    # --- Commits --------------------------------------------------------------------------
    def see_commit(self, group: str, tp: TopicPartition, commit: Commit) -> None:
        """Note what a group has committed of a partition by now."""
        state, log = self.groups[group], self._book.log(tp)
        before = state.commits.get(tp)
        if before == commit:
            return
        state.commits[tp] = commit
        self.note(group, f"has committed {commit.offset} of {short(tp)}, and {commit.ranges}")
        covered = self._covered_by(tp, commit)
        if before is None or before.life != commit.life:
            before = Commit(0, (), commit.life)
        if lost := self._covered_by(tp, before) - covered:
            self._go_back(group, tp, before, commit, min(lost))
            state.covered.difference_update(log[offset].number for offset in lost)
        early = [
            offset for offset in sorted(covered) if not self._is_done(group, log[offset].number)
        ]
        if early and state.commits_by_name and self.is_recreated(tp.topic):
            # A commit of the old topic: members who know that return the records, others skip them.
            state.passed_over.update(log[offset].number for offset in early)
            state.sought[tp].append(0)
            covered.difference_update(early)
        elif early:
            self.violate("ahead", group, f"{short(tp)} {commit.offset}: {early[:SHOWN]}")
        state.covered.update(log[offset].number for offset in covered)

    def _covered_by(self, tp: TopicPartition, commit: Commit) -> set[int]:
        """Return the offsets of the log's records that a commit says are finished."""
        end = len(self._book.log(tp))
        covered = set(range(min(commit.offset, end)))
        for first, range_end in commit.ranges:
            covered.update(range(first, min(range_end, end)))
        return covered

    def _go_back(
        self, group: str, tp: TopicPartition, before: Commit, commit: Commit, first_lost: int
    ) -> None:
        sought = self.groups[group].sought[tp]
        if explained := [target for target in sought if target <= first_lost]:
            sought.remove(max(explained))
        elif not self.is_recreated(tp.topic):
            then = f"{before.offset} {before.ranges}, then {commit.offset} {commit.ranges}"
            self.violate("back", group, f"{short(tp)}: {then}")

    # --- The end --------------------------------------------------------------------------
    def left_over(self, group: str, topics: Iterable[str]) -> list[Written]:
        """Return the records that nobody has finished."""
        wanted = set(topics)
        return [
            each
            for tp in self._book.partitions
            if tp.topic in wanted
            for each in self._book.log(tp)
            if not self._is_done(group, each.number)
        ]

    def check_outputs(self, group: str, what: str, found: Counter[int], due: set[int]) -> None:
        """Hold what a group has written for each record against what is due."""
        state, records = self.groups[group], self._book.records
        self.check_missing(group, what, found, due - state.passed_over)
        if twice := {n: count for n, count in found.items() if count > 1 + state.may_repeat[n]}:
            places = [f"{place(records[n])} {count} times" for n, count in twice.items()]
            self.violate("twice", group, f"{what} of {places[:SHOWN]}, {len(twice)} in all")

    def check_missing(self, group: str, what: str, found: Counter[int], due: set[int]) -> None:
        """Find records of which a group should have written something."""
        if missing := sorted(due - found.keys()):
            places = [place(self._book.records[n]) for n in missing[:SHOWN]]
            self.violate("missing", group, f"{what} of {places}, {len(missing)} in all")


def short(tp: TopicPartition) -> str:
    """Return a partition in few letters."""
    return f"{tp.topic}/{tp.partition}"


def place(written: Written) -> str:
    """Return where a record is, and its number."""
    return f"{short(written.tp)} {written.offset} (number {written.number})"
