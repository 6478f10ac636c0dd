"""What was handed out and committed, held against what may be.

The rules are about what an application can rely on:

- a group's commits go back only where the application has said so, in its present assignment;
- what nobody has finished is not committed, unless the application has said so;
- nothing is handed out between a revocation and the next assignment, while a listener runs,
  while a partition is paused, of topics that are no longer subscribed, or by a member in whose
  place another has begun already;
- in one assignment offsets come one after the other, from what was committed or sought;
- what a commit and a stop say of themselves is so.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatchmethod
from typing import Final

from aiokafka_lite.structs import TopicPartition
from tests.model.ledger import (
    LOST,
    TO_COMMITTED,
    UNSUBSCRIBED,
    Assigned,
    Blocked,
    Callback,
    CommitAsked,
    CommitDone,
    Committed,
    Crashed,
    Entry,
    Fault,
    Finished,
    Handed,
    Joined,
    Ledger,
    Note,
    Paused,
    Revoked,
    Sought,
    Stopped,
    Stopping,
    Subscribed,
    Violation,
)
from tests.model.tracks import Intervals, Track

GroupPartition = tuple[str, TopicPartition]
# Of a group: how often it was made anew, and the generation since.
Generation = tuple[int, int]
NOT_BEGUN: Final[Generation] = (0, -1)
# How long after its start a member may get its first assignment.
COMES_WITHIN_S: Final = 3.0
# How long a commit may be on its way that was made before a seek.
IN_FLIGHT_S: Final = 0.01
# The shortest request timeout of a member (habits.py).
LEAST_REQUEST_S: Final = 2.0
# So long after a member's end nothing comes of what it has sent.
FORGOTTEN_S: Final = 60.0


def _at(entry: Entry) -> float:
    return entry.at


@dataclass
class _Member:
    """What the ledger has said of one member so far."""

    group: str
    generation: Generation = NOT_BEGUN
    epoch: int = 0
    tracks: dict[TopicPartition, Track] = field(default_factory=dict)
    before: dict[TopicPartition, Track] = field(default_factory=dict)
    is_open: bool = False
    ended_at: float = math.inf
    # When it was first handed out by another, it may not have heard of that for so long.
    hears_within_s: float = 0.0
    # Until when its first assignment is of the newest generation.
    comes_until: float = 0.0
    # A rebalance takes all away and gives it back: a seek or a pause between the two holds.
    is_eager: bool = True
    # What was taken away since the latest assignment, and what had stayed then.
    closed: set[TopicPartition] = field(default_factory=set)
    kept: set[TopicPartition] = field(default_factory=set)
    # Whether the group has removed it since: if it has another member id now, it cannot know that
    # the group is the same.
    is_removed: bool = False
    topics: frozenset[str] = frozenset()
    paused: set[TopicPartition] = field(default_factory=set)
    callbacks: int = 0
    # Seeks that were accepted between two assignments; and before an unsubscribe(), which commits
    # where they went.
    sought_between: dict[TopicPartition, Sought] = field(default_factory=dict)
    sought_last: dict[TopicPartition, Sought] = field(default_factory=dict)
    # Commits, with the assignment that they were asked for in, and where seeks led before.
    asked: dict[int, tuple[CommitAsked, int, dict[TopicPartition, int]]] = field(
        default_factory=dict
    )


class Verdict:
    """Reads a ledger from its beginning, and writes down what is not as it has to be.

    Args:
        ledger: What happened.
        slack_s: How much earlier than noted a commit may have been made.
        excuses_owners: Whether a member may hand out in another's place after a fault.
    """

    def __init__(self, ledger: Ledger, *, slack_s: float, excuses_owners: bool = True) -> None:
        self._ledger = ledger
        self._slack_s = slack_s
        self._excuses_owners = excuses_owners
        self._members: dict[str, _Member] = {}
        self._suspected: list[_Member] = []
        self.commits: dict[GroupPartition, list[Committed]] = defaultdict(list)
        self.finished: dict[GroupPartition, Intervals] = defaultdict(Intervals)
        # The newest generation in which something was handed out, by whom, and when.
        self._newest: dict[GroupPartition, tuple[Generation, str, float]] = {}
        self._holders: dict[tuple[str, TopicPartition, Generation], str] = {}
        self._generations: dict[str, Generation] = {}
        self._owners: dict[GroupPartition, list[tuple[float, str]]] = defaultdict(list)
        # When a hand-out to a member ended at an offset last.
        self._ended: dict[tuple[str, TopicPartition, int], float] = {}
        self._troubled_until = float("-inf")
        # Looked at once all commits are known.
        self._starts: list[tuple[Handed, Track, str]] = []
        self._answers: list[tuple[CommitDone, CommitAsked, Mapping[TopicPartition, int]]] = []
        self._stops: list[tuple[Stopped, dict[TopicPartition, float]]] = []
        self._entries: Sequence[Entry] = ()

    def judge(self) -> None:
        """Read everything."""
        for entry in self._ledger.in_order():
            self._read(entry)
        for handed, track, who in self._starts:
            self._check_start(handed, track, who)
        for done, asked, sought in self._answers:
            self._check_answer(done, asked, sought)
        for stopped, since in self._stops:
            self._check_stop(stopped, since)

    def _violate(self, rule: str, entry: Entry, words: str, tp: TopicPartition | None) -> None:
        self._ledger.violate(Violation(rule, words, entry.group, tp, entry.who, order=entry.order))

    @singledispatchmethod
    def _read(self, entry: Entry) -> None:
        raise AssertionError(f"an entry that nobody judges: {entry}")

    @_read.register(Note)  # and what is one, too
    @_read.register(Stopping)
    def _(self, entry: Entry) -> None:
        pass

    @_read.register
    def _(self, entry: Crashed) -> None:
        if entry.who in self._members:
            self._members[entry.who].is_open = False
            self._members[entry.who].ended_at = entry.at

    @_read.register
    def _(self, entry: Joined) -> None:
        member = self._members[entry.who] = _Member(
            entry.group,
            is_eager=entry.is_eager,
            hears_within_s=entry.hears_within_s,
            comes_until=entry.at + COMES_WITHIN_S,
        )
        self._suspected.append(member)

    @_read.register
    def _(self, entry: Blocked) -> None:
        member = self._members[entry.who]
        member.comes_until = entry.at

    @_read.register
    def _(self, entry: Fault) -> None:
        self._troubled_until = max(self._troubled_until, entry.until)

    # --- Assignments ----------------------------------------------------------------------
    @_read.register
    def _(self, entry: Assigned) -> None:
        member = self._members[entry.who]
        member.epoch += 1
        course, earlier = member.generation
        member.generation = self._in_course(entry)
        # Others can have had its partitions in a generation that it was not in.
        is_unbroken = member.generation <= (course, earlier + 1)
        member.kept = set(entry.tps & member.tracks.keys()) - member.closed
        if not member.is_eager:
            member.paused -= member.closed
            for tp in member.closed & member.sought_between.keys():
                del member.sought_between[tp]
        member.closed.clear()
        member.before, member.tracks = member.tracks, {}
        member.is_open = True
        member.paused &= entry.tps
        for tp in entry.tps:
            if tp in member.kept:
                member.tracks[tp] = member.before[tp]
                member.tracks[tp].epoch = member.epoch
                continue
            track = member.tracks[tp] = Track(member.epoch, entry.at)
            if (before := member.before.get(tp)) is not None:
                track.maybe_carried = before.seeks[-1] if before.seeks else before.maybe_carried
                track.end_from = before.end_from
            sought = member.sought_between.get(tp) if is_unbroken else None
            if sought is not None and (member.is_removed or sought.how == TO_COMMITTED):
                # A commit since the seek may have moved where the partition begins.
                track.maybe_carried = sought
            elif sought is not None:
                track.seeks.append(sought)
                track.carried = sought
                track.next = track.start = sought.target
                if sought.target is None:
                    track.is_at_end = True
                else:
                    self._skip(entry.group, tp, None, sought.target)
            self._owners[entry.group, tp].append((entry.order, entry.who))
            place = (entry.group, tp, member.generation)
            holder = self._holders.setdefault(place, entry.who)
            if holder != entry.who and not self._is_same_instance(holder, entry.who):
                words = f"{holder} has it in generation {entry.generation}, too"
                self._violate("two have one partition", entry, words, tp)
        member.sought_between.clear()
        member.sought_last.clear()
        member.is_removed = False

    def _in_course(self, entry: Assigned) -> Generation:
        """Return a generation so that later ones of a group are greater.

        A group that has no member left is made anew by the next one, with another protocol: it
        counts from the beginning again. Members that it has lost may not know of that.
        """
        course, newest = self._generations.get(entry.group, (0, -1))
        if entry.generation < newest:
            others = [m for who, m in self._members.items() if who != entry.who]
            is_alone = not any(each.is_open for each in others if each.group == entry.group)
            # One that comes is told the newest generation, unless its loop was blocked since.
            if is_alone or entry.at < self._members[entry.who].comes_until:
                course, newest = course + 1, -1
        self._members[entry.who].comes_until = entry.at
        self._generations[entry.group] = course, max(newest, entry.generation)
        return course, entry.generation

    def _is_same_instance(self, one: str, other: str) -> bool:
        return one.partition("@")[2] == other.partition("@")[2] != ""

    @_read.register
    def _(self, entry: Revoked) -> None:
        member = self._members[entry.who]
        member.closed |= entry.tps
        member.is_open = not member.tracks.keys() <= member.closed
        member.paused -= entry.tps
        member.is_removed |= entry.how == LOST
        if entry.how == UNSUBSCRIBED:  # pauses of partitions that were lost before end with it, too
            member.paused.clear()
        if member.sought_between:
            member.sought_last, member.sought_between = member.sought_between, {}

    @_read.register
    def _(self, entry: Subscribed) -> None:
        self._members[entry.who].topics = entry.topics

    @_read.register
    def _(self, entry: Callback) -> None:
        self._members[entry.who].callbacks += -1 if entry.is_over else 1

    # --- Records --------------------------------------------------------------------------
    @_read.register
    def _(self, entry: Handed) -> None:
        member, tp = self._members[entry.who], entry.tp
        self._ended[entry.who, tp, entry.next] = entry.order
        track = member.tracks.get(tp)
        offsets = f"{entry.first} to {entry.next - 1}"
        if not member.is_open or track is None or tp in member.closed:
            self._violate("handed out after revocation", entry, offsets, tp)
            return
        if member.callbacks and not (member.closed or tp in member.kept):
            self._violate("handed out while the listener runs", entry, offsets, tp)
        if tp.topic not in member.topics:
            self._violate("handed out of a topic no longer subscribed", entry, offsets, tp)
        if tp in member.paused:
            self._violate("handed out though paused", entry, offsets, tp)
        if entry.gaps:
            self._violate("offsets left out", entry, entry.gaps, tp)
        self._check_owner(entry, member)
        if track.is_at_end:
            self.finished[entry.group, tp].add(track.end_from, entry.first)
        elif track.next is None:
            self._starts.append((entry, track, entry.who))
            if track.maybe_carried is not None and track.maybe_carried.target is None:
                # Where the end was, this says: what lies before it is left out.
                self.finished[entry.group, tp].add(track.end_from, entry.first)
        elif track.next != entry.first:
            words = f"{offsets} come where {track.next} is next"
            if track.carried is not None:
                words += f", by a seek accepted during the rebalance ({track.carried.how})"
            self._violate("offsets out of order", entry, words, tp)
        track.is_at_end, track.carried = False, None
        track.start = min(entry.first, entry.first if track.start is None else track.start)
        track.next = entry.next

    def _check_owner(self, entry: Handed, member: _Member) -> None:
        """Nobody has begun in this one's place; it may be unaware of that in trouble only."""
        place = entry.group, entry.tp
        generation, who, at = self._newest.get(place, (NOT_BEGUN, "", 0.0))
        if generation <= member.generation:
            self._newest[place] = member.generation, entry.who, entry.at
        elif (
            who != entry.who
            and not (self._excuses_owners and entry.at <= self._troubled_until)
            and entry.at > at + 10 * self._slack_s + member.hears_within_s
        ):
            words = (
                f"{entry.first} to {entry.next - 1} by {entry.who} of generation "
                f"{member.generation[1]}, after {who} of generation {generation[1]} had some"
            )
            self._violate("handed out in another's place", entry, words, entry.tp)

    @_read.register
    def _(self, entry: Finished) -> None:
        for tp, first, end in entry.ranges:
            self.finished[entry.group, tp].add(first, end)

    @_read.register
    def _(self, entry: Paused) -> None:
        member = self._members[entry.who]
        if entry.is_paused:
            member.paused |= entry.tps
        else:
            member.paused -= entry.tps

    @_read.register
    def _(self, entry: Sought) -> None:
        member = self._members[entry.who]
        track = member.tracks.get(entry.tp)
        if not member.is_open:
            member.sought_between[entry.tp] = entry
            if track is not None:
                target = entry.limit if entry.target is None else entry.target
                self._skip(entry.group, entry.tp, track.next, target)
            return
        if track is None:
            return
        track.carried = None
        track.seeks.append(entry)
        if entry.target is None:
            if not track.is_at_end:
                track.end_from = self._low(entry.group, entry.tp, track.next)
            track.is_at_end, track.next = True, None
            return
        self._skip(entry.group, entry.tp, track.next, entry.target)
        if track.is_at_end:
            track.end_left_at = entry.at
        track.is_at_end, track.next = False, entry.target
        track.start = min(entry.target, entry.target if track.start is None else track.start)

    def _low(self, group: str, tp: TopicPartition, position: int | None) -> int:
        """Return the position, or where the group's commits say that it may be."""
        if position is not None:
            return position
        commits = self.commits[group, tp]
        return min((each.offset for each in commits[-3:]), default=0)

    def _skip(self, group: str, tp: TopicPartition, position: int | None, target: int) -> None:
        self.finished[group, tp].add(self._low(group, tp, position), target)

    def _check_start(self, handed: Handed, track: Track, who: str) -> None:
        """The first record of an assignment is the one that was committed."""
        earliest = track.assigned_at - 50 * self._slack_s
        latest = handed.at + self._slack_s
        commits = self.commits[handed.group, handed.tp]
        before = bisect.bisect_right(commits, earliest, key=_at)
        end = bisect.bisect_right(commits, latest, key=_at)
        allowed = {each.offset for each in commits[max(0, before - 1) : end]}
        if not before:
            allowed.add(0)
        if track.maybe_carried is not None and track.maybe_carried.target is not None:
            allowed.add(track.maybe_carried.target)
        elif track.maybe_carried is not None:
            return
        if handed.first not in allowed:
            words = f"begins at {handed.first}, committed was {sorted(allowed)}"
            self._violate("a start that is not what was committed", handed, words, handed.tp)

    # --- Commits --------------------------------------------------------------------------
    @_read.register
    def _(self, entry: CommitAsked) -> None:
        member = self._members[entry.who]
        sought = {}
        for tp, offset in entry.offsets.items():
            track = member.tracks.get(tp)
            seek = member.sought_between.get(tp)
            if seek is None and track is not None and track.seeks:
                seek = track.seeks[-1]
            if seek is not None and seek.target is not None:
                sought[tp] = seek.target
            if not entry.is_stale and track is not None and track.start is not None:
                self.finished[entry.group, tp].add(track.start, offset)
        member.asked[entry.number] = entry, member.epoch, sought

    @_read.register
    def _(self, entry: CommitDone) -> None:
        asked, _, sought = self._members[entry.who].asked[entry.number]
        self._answers.append((entry, asked, sought))

    @_read.register
    def _(self, entry: Committed) -> None:
        place = entry.group, entry.tp
        commits, finished = self.commits[place], self.finished[place]
        went_back = bool(commits) and entry.offset < commits[-1].offset
        if went_back and self._is_overtaken(entry):
            entry.is_late = True
        if went_back and not entry.is_late and not self._may_go_back(entry):
            latest = commits[-1]
            words = f"{latest.offset} (by {latest.who or '?'}) → {entry.offset}, {self._why(entry)}"
            self._violate("a commit went back", entry, words, entry.tp)
        commits.append(entry)
        if not entry.mark:
            self._allow_for_the_end(entry)
            missing = finished.first_missing(entry.offset)
            if missing is not None:
                words = f"{entry.offset}, and nobody has finished {missing}"
                self._violate("committed what is not finished", entry, words, entry.tp)
        finished.add(0, entry.offset)

    def _is_overtaken(self, entry: Committed) -> bool:
        """Whether a broker in trouble has written it after what the same member sent later.

        A request that was given up with its connection may still lie there unread.
        """
        owners = self._owners[entry.group, entry.tp]
        if entry.who or not owners or not self._is_troubled(entry.at):
            return False
        track = self._members[owners[-1][1]].tracks.get(entry.tp)
        return track is not None and track.start is not None and track.start <= entry.offset

    def _allow_for_the_end(self, entry: Committed) -> None:
        """A seek to the end leaves out what is before; where that was, this commit may say."""
        for member in self._suspects(entry):
            for tracks in (member.tracks, member.before):
                track = tracks.get(entry.tp)
                if track is None:
                    continue
                carried = track.maybe_carried
                if carried is not None and carried.target is None and track.next is None:
                    low = self._low(entry.group, entry.tp, None)
                    self.finished[entry.group, entry.tp].add(low, entry.offset)
                if track.is_at_end or entry.at <= track.end_left_at + self._slack_s + IN_FLIGHT_S:
                    self.finished[entry.group, entry.tp].add(track.end_from, entry.offset)

    def _suspects(self, entry: Committed) -> list[_Member]:
        """Return who may have made a commit."""
        if entry.who:
            return [self._members[entry.who]] if entry.who in self._members else []
        # Where many come and go most have ended long ago.
        since = entry.at - FORGOTTEN_S
        self._suspected = [each for each in self._suspected if each.ended_at >= since]
        return [each for each in self._suspected if each.group == entry.group]

    def _may_go_back(self, entry: Committed) -> bool:
        tp = entry.tp
        for member in self._suspects(entry):
            tracks = [member.tracks.get(tp), member.before.get(tp)]
            if any(track is not None and track.may_go_back_to(entry.offset) for track in tracks):
                return True
            for seeks in (member.sought_between, member.sought_last):
                sought = seeks.get(tp)
                if sought is not None and (sought.target is None or sought.target <= entry.offset):
                    return True
            for asked, epoch, _ in member.asked.values():
                is_it = entry.mark and asked.mark == entry.mark
                if is_it and not asked.is_stale and epoch >= member.epoch - 1:
                    return True
                if is_it and asked.is_stale and self._was_nobody_elses(asked.who, entry):
                    return True
        if not entry.mark and self.commits[entry.group, tp][-1].mark:
            return self._is_behind_its_own(entry)  # it has said two things itself
        return False

    def _why(self, entry: Committed) -> str:
        """Say who asked for a commit."""
        if not entry.mark:
            return "by itself, or of the positions"
        stale = any(
            asked.mark == entry.mark and asked.is_stale
            for member in self._members.values()
            for asked, _, _ in member.asked.values()
        )
        return "of an assignment that was over" if stale else "by the application"

    def _was_nobody_elses(self, who: str, entry: Committed) -> bool:
        """Whether a member alone had the partition since the records that an offset is behind."""
        since = self._ended.get((who, entry.tp, entry.offset))
        owners = self._owners[entry.group, entry.tp]
        return since is not None and all(who == each for at, each in owners if at > since)

    def _is_behind_its_own(self, entry: Committed) -> bool:
        """Whether it goes back behind a commit of the same member."""
        latest = self.commits[entry.group, entry.tp][-1]
        if entry.who:
            return latest.who == entry.who
        return len({who for _, who in self._owners[entry.group, entry.tp][-2:]}) == 1

    # --- What calls say -------------------------------------------------------------------
    def _is_troubled(self, at: float) -> bool:
        return any(
            isinstance(entry, Fault) and entry.at <= at <= entry.until
            for entry in self._ledger.entries
        )

    def _check_answer(
        self, done: CommitDone, asked: CommitAsked, sought: Mapping[TopicPartition, int]
    ) -> None:
        for tp, offset in asked.offsets.items():
            commits = self.commits[done.group, tp]
            begin = bisect.bisect_left(commits, asked.at - self._slack_s, key=_at)
            end = bisect.bisect_right(commits, done.at + self._slack_s, key=_at)
            meanwhile = [each for each in commits[begin:end] if each.who in ("", done.who)]
            is_there = any(each.offset == offset and each.mark == asked.mark for each in meanwhile)
            # One that has to be tried again leaves out what a later one has committed: that is
            # more, or is where a seek has led that came before both.
            least = min(offset + 1, sought.get(tp, offset + 1))
            is_overtaken = any(each.offset >= least and not each.mark for each in meanwhile)
            # Nothing is sent of positions that nothing was handed out from, nor of a partition that
            # had its last commit before its revocation. Another member may have committed since.
            before = commits[: bisect.bisect_right(commits, asked.at, key=_at)]
            own = [each for each in before if each.who in ("", done.who)]
            latest = {each[-1].offset for each in (before, own) if each}
            is_there |= not asked.mark and offset in latest
            if not done.error and not is_there and not is_overtaken:
                words = f"{offset} was said to be committed, and is not"
                self._violate("a commit that is none", done, words, tp)
            has_failed = "CommitFailedError" in done.error and asked.mark
            if has_failed and is_there and not self._is_troubled(done.at):
                words = f"{offset} is committed, but it said {done.error}"
                self._violate("a commit that is one after all", done, words, tp)

    @_read.register
    def _(self, entry: Stopped) -> None:
        member = self._members[entry.who]
        since = {tp: track.assigned_at for tp, track in member.tracks.items()}
        member.is_open = False
        member.ended_at = entry.at
        if entry.is_told:
            self._stops.append((entry, since))

    def _check_stop(self, stopped: Stopped, since: Mapping[TopicPartition, float]) -> None:
        left = stopped.left or {}
        for tp, offset in stopped.owed.items():
            commits = self.commits[stopped.group, tp]
            begin = since.get(tp, 0.0) - 50 * self._slack_s
            before = bisect.bisect_left(commits, begin, key=_at)
            end = bisect.bisect_right(commits, stopped.at + self._slack_s, key=_at)
            known = commits[max(0, before - 1) : end]
            is_there = any(each.offset >= offset for each in known)
            if tp not in left and not is_there:
                words = f"{offset} is neither committed nor told ({stopped.how}: {left})"
                self._violate("a stop that is silent about offsets", stopped, words, tp)
            if (
                left.get(tp) == offset
                and known
                and known[-1].offset == offset
                and known[-1].who == stopped.who
                and not self._is_troubled(stopped.at)
                and not self._has_cancelled(stopped.who)  # whose answers nobody has read
                and not self._was_blocked(stopped)  # beyond the deadline of an answer
                and stopped.how == "stop"
            ):
                words = f"{offset} is committed, but it said that it is not"
                self._violate("a stop that is wrong about offsets", stopped, words, tp)

    def _was_blocked(self, stopped: Stopped) -> bool:
        """Whether its loop stood still right before, for longer than a request may take."""
        who = stopped.who
        blocks = [e for e in self._ledger.entries if isinstance(e, Blocked) and e.who == who]
        return any(
            begin.seconds
            and end.at - begin.at >= LEAST_REQUEST_S
            and stopped.at <= end.at + LEAST_REQUEST_S
            for begin, end in itertools.pairwise(blocks)
        )

    def _has_cancelled(self, who: str) -> bool:
        return any(done.who == who and done.error == "cancelled" for done, *_ in self._answers)

    def check_end(self, ends: Mapping[TopicPartition, int], groups: Sequence[str]) -> None:
        """Everything has been finished, and committed, by every group."""
        for group in groups:
            for tp, end in ends.items():
                missing = self.finished[group, tp].first_missing(end)
                if missing is not None:
                    words = f"nobody has finished {missing} of {end}"
                    self._ledger.violate(Violation("lost", words, group, tp))
                commits = self.commits[group, tp]
                committed = commits[-1].offset if commits else 0
                if committed != end:
                    words = f"committed is {committed}, the end {end}, and all have stopped"
                    self._ledger.violate(Violation("not committed at the end", words, group, tp))
