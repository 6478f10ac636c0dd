"""The order in which ready records begin with `fair` or `priority`, when handlers are scarce.

Without either, records begin in the order in which they become ready: each lane has one call in a
round. A round of many slow keys takes long, and a quick key then has one record in each.

**Keys** (`fair`). Virtual time passes by the seconds that each waiting or running lane would have
had so far, if all had as many. A lane's own time is that of its last call's begin plus the call's
seconds, or the present if that is later: so a new lane begins at the present, and time without
records is not saved up. The record whose lane has the least time begins first.

**Topics** (`priority`). Likewise, a topic's time passes by the seconds of its calls divided by its
priority. A call that begins is charged with the mean of its topic's calls, and corrected when it
ends, because many begin before the first ends.

**Retries** (`fair`). While first attempts wait, three of ten calls that begin are retries, and none
if so many of the handlers run retries.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, NamedTuple

from aiokafka_lite.consumer.processing.job import DEAD, Job
from aiokafka_lite.consumer.processing.limits import Concurrency

# Of the calls that begin, and of the handlers, for retries while first attempts wait.
RETRY_PART: Final = 0.3
# Of a topic's mean, for its latest call.
LATEST_PART: Final = 0.1
# Lanes whose time is kept, before those are looked for whose time has come.
FEW_LANES: Final = 1_024


class Waiting(NamedTuple):
    virtual_time: float
    number: int
    job: Job


class WaitingTopic:
    """The waiting first attempts and retries of one topic, or of all if no topic has a priority."""

    __slots__ = ("first", "mean_s", "priority", "retries", "running_count", "virtual_time")

    def __init__(self, priority: float) -> None:
        self.priority: Final = priority
        self.first: list[Waiting] = []
        self.retries: list[Waiting] = []
        self.virtual_time = self.mean_s = 0.0
        self.running_count = 0

    def queue(self, *, is_retry: bool) -> list[Waiting]:
        return self.retries if is_retry else self.first

    def charge(self, seconds: float) -> None:
        self.virtual_time += seconds / self.priority


class RunningCall(NamedTuple):
    """A running call: when it began, the time of its lanes then, and what its topic was charged."""

    began_at: float
    virtual_time: float
    topic: WaitingTopic
    charged_s: float
    is_retry: bool


class FairQueue:
    """Ready records: for `Lanes` and `Run` a deque, whose left end is the record to begin next.

    A record that is added at the left end begins before others of its topic and kind, but not
    before their turn: only `put_first` ignores turns.
    """

    def __init__(
        self,
        concurrency: Concurrency,
        priorities: Mapping[str, float] | None,
        *,
        is_fair: bool,
    ) -> None:
        self._concurrency = concurrency
        self._priorities: Final = priorities
        self._is_fair: Final = is_fair
        self._topics: dict[str, WaitingTopic] = {}
        self._numbers = count()
        self._first_count = self._retry_count = self._running_retries = 0
        # From 1 on, a retry is the next record.
        self._retry_credit = 0.0
        # Whether the next call is for retries. None: it is not decided yet.
        self._is_retry_turn: bool | None = None
        # The record at the left end, once somebody has looked at it.
        self._chosen: Job | None = None
        self._running: dict[Job, RunningCall] = {}
        # The time of topics, of lanes, and of each lane that is ahead of it.
        self._topic_time = self._lane_time = 0.0
        self._lanes: dict[Hashable, float] = {}
        self._most_lanes = FEW_LANES

    # --- As a deque -------------------------------------------------------------------------
    def __len__(self) -> int:
        return self._first_count + self._retry_count

    def __iter__(self) -> Iterator[Job]:
        if self._chosen is not None:
            yield self._chosen
        for topic in self._topics.values():
            for waiting in (*topic.first, *topic.retries):
                yield waiting.job

    def __getitem__(self, index: int) -> Job:
        if index or not len(self):
            raise IndexError(index)
        if self._chosen is None:
            self._chosen = self._choose()
        return self._chosen

    def append(self, job: Job) -> None:
        self._add(job, self._time_of(job), next(self._numbers))

    def extend(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self.append(job)

    def appendleft(self, job: Job) -> None:
        self._let_begin_next(None)
        self._add(job, -math.inf, -next(self._numbers))

    def extendleft(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self.appendleft(job)

    def put_first(self, job: Job) -> None:
        """Make one of the records the next to begin, also out of turn."""
        self.remove(job)
        self._let_begin_next(job)
        self._counted(job, 1)

    def _let_begin_next(self, job: Job | None) -> None:
        """Put back the record that was chosen before. None: another one is chosen later."""
        chosen, self._chosen = self._chosen, job
        if chosen is not None:
            self._counted(chosen, -1)
            self._add(chosen, -math.inf, -next(self._numbers))

    def popleft(self) -> Job:
        job = self[0]
        self._chosen = None
        self._counted(job, -1)
        return job

    def remove(self, job: Job) -> None:
        self._counted(job, -1)
        if job is self._chosen:
            self._chosen = None
            return
        queue = self._topic_of(job).queue(is_retry=self._is_retry(job))
        queue[:] = [each for each in queue if each.job is not job]
        heapify(queue)

    def _add(self, job: Job, virtual_time: float, number: int) -> None:
        topic = self._topic_of(job)
        if not (topic.first or topic.retries or topic.running_count):
            topic.virtual_time = max(topic.virtual_time, self._topic_time)
        queue = topic.queue(is_retry=self._is_retry(job))
        heappush(queue, Waiting(virtual_time, number, job))
        self._counted(job, 1)

    def _counted(self, job: Job, by: int) -> None:
        if self._is_retry(job):
            self._retry_count += by
        else:
            self._first_count += by

    def _is_retry(self, job: Job) -> bool:
        if not self._is_fair or job.state is DEAD:
            return False
        return job.error is not None or job.list_limit > 0 or job.attempts > 0

    # --- The order ----------------------------------------------------------------------------
    def _choose(self) -> Job:
        is_retry = self._is_retry_next()
        topic, queue = min(
            (
                (topic, queue)
                for topic in self._topics.values()
                if (queue := topic.queue(is_retry=is_retry))
            ),
            key=lambda found: (found[0].virtual_time, -found[0].priority, found[1][0].number),
        )
        self._topic_time = max(self._topic_time, topic.virtual_time)
        return heappop(queue).job

    def _is_retry_next(self) -> bool:
        if not (self._first_count and self._retry_count):
            return not self._first_count
        if self._is_retry_turn is None:  # all records of a list are of one kind
            self._is_retry_turn = self._decide_turn()
        return self._is_retry_turn

    def _decide_turn(self) -> bool:
        self._retry_credit = min(self._retry_credit, 1) + RETRY_PART
        most = max(1, int(RETRY_PART * self._concurrency.value))
        if self._retry_credit < 1 or self._running_retries >= most:
            return False
        self._retry_credit -= 1
        return True

    def _topic_of(self, job: Job) -> WaitingTopic:
        name = job.record.topic if self._priorities else ""
        if (topic := self._topics.get(name)) is None:
            priority = (self._priorities or {}).get(name, 1)
            topic = self._topics[name] = WaitingTopic(priority)
        return topic

    def _time_of(self, job: Job) -> float:
        if not self._is_fair:
            return 0
        return max(self._lane_time, self._lanes.get(job.order_key, 0))

    # --- Calls --------------------------------------------------------------------------------
    def began(self, chains: Sequence[Sequence[Job]], now: float) -> None:
        self._is_retry_turn = None
        first = chains[0][0]
        topic = self._topic_of(first)
        topic.running_count += 1
        topic.charge(topic.mean_s)
        is_retry = self._is_retry(first)
        self._running_retries += is_retry
        self._running[first] = RunningCall(now, self._lane_time, topic, topic.mean_s, is_retry)

    def ended(self, chains: Sequence[Sequence[Job]], now: float) -> None:
        call = self._running.pop(chains[0][0])
        seconds = now - call.began_at
        topic = call.topic
        topic.running_count -= 1
        topic.charge(seconds - call.charged_s)
        topic.mean_s += LATEST_PART * (seconds - topic.mean_s)
        self._running_retries -= call.is_retry
        if self._is_fair:
            self._charge_lanes(chains, call.virtual_time, seconds)

    def _charge_lanes(
        self, chains: Sequence[Sequence[Job]], began_at: float, seconds: float
    ) -> None:
        sharing = len(self) + len(self._running) + 1
        self._lane_time += seconds / sharing
        a_record_s = seconds / sum(map(len, chains))
        for jobs in chains:
            if (lane := jobs[0].order_key) is not None:
                before = max(began_at, self._lanes.get(lane, 0))
                self._lanes[lane] = before + a_record_s * len(jobs)
        if len(self._lanes) > self._most_lanes:
            self._forget_lanes()

    def _forget_lanes(self) -> None:
        now = self._lane_time
        self._lanes = {lane: time for lane, time in self._lanes.items() if time > now}
        self._most_lanes = max(FEW_LANES, 2 * len(self._lanes))
