"""Lanes keep records in order: the records of one lane are handled one after the other.

A lane is a key of a partition (order "key"), what a function of the record returns, within a
partition, too, or a partition (order "partition"). Its first record is ready, is being handled, or
waits for another attempt. The others follow by `Job.follower`. Only the last is kept under the
lane's name, so an empty lane uses no memory.

Lanes do not depend on the assignment: if a partition is revoked and assigned again, its records
follow a record that is still in a handler.

Compiled in place (lanes.pxd).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from aiokafka_lite.consumer.assignment.cursor import Cursor
from aiokafka_lite.consumer.processing.job import DEAD, LISTED, Job, Lane
from aiokafka_lite.structs import ConsumerRecord, TopicPartition

if TYPE_CHECKING:
    from aiokafka_lite.consumer.processing.fair import FairQueue

OrderOf: TypeAlias = Callable[[ConsumerRecord[Any, Any]], Hashable]
Order = Literal["key", "partition"] | OrderOf | None
# Decides about a record whose order is not known: it raises, or the job is dead.
OrderFailed: TypeAlias = Callable[[Job, Exception], None]


def raise_error(job: Job, error: Exception) -> None:
    raise error


class Lanes:
    """The lanes of one run. `ready`: the records that may begin, in order."""

    def __init__(
        self,
        order: Order,
        order_failed: OrderFailed = raise_error,
        ready: FairQueue | None = None,
    ) -> None:
        self.order: Final = order
        self._name_of = None if order is None or isinstance(order, str) else order
        self.is_by_name: Final = self._name_of is not None or order == "key"
        self._order_failed = order_failed
        self.ready: deque[Job] | FairQueue = deque() if ready is None else ready
        self._lanes: dict[TopicPartition, Lane] = {}

    def of(self, tp: TopicPartition) -> Lane | None:
        if self.order is None:
            return None
        if (lane := self._lanes.get(tp)) is None:
            lane = self._lanes[tp] = {}
        return lane

    def put(self, jobs: Iterable[Job]) -> None:
        ready, is_by_name, has_function = self.ready, self.is_by_name, self._name_of is not None
        name: Hashable = None
        for job in jobs:
            lane = job.lane
            if lane is not None and is_by_name:
                name = job.name = self._named(job) if has_function else job.record.key
                if name is None:
                    lane = job.lane = None  # no order without a key
            if lane is None:
                ready.append(job)
                continue
            try:
                last = lane.get(name)
            except TypeError as error:
                raise TypeError(
                    f'order="key" needs hashable keys, but {name!r} is not hashable: let the '
                    "key_deserializer return something hashable, or leave keys as bytes"
                ) from error
            lane[name] = job
            if last is None:
                ready.append(job)
            else:
                last.follower = job

    def _named(self, job: Job) -> Hashable:
        if job.state is DEAD or job.name is not None or self._name_of is None:
            return job.name  # also of a record that is put again
        try:
            name = self._name_of(job.record)
            frozenset((name,))  # it must be hashable
        except Exception as error:  # noqa: BLE001 -- the application's: it is the record's failure
            self._order_failed(job, error)
            return None
        return name

    def put_again(self, jobs: Iterable[Job]) -> None:
        """Add records whose lanes have continued: they are in order among themselves only."""
        lanes: dict[Cursor, Lane] = {}
        again = list(jobs)
        for job in again:
            if job.lane is not None:
                job.lane = lanes.setdefault(job.cursor, {})
            job.follower = None
        self.put(again)

    def leave(self, job: Job) -> None:
        """Take a record, and those before it, out of its lane: the next one may begin."""
        lane = job.lane
        if lane is None:
            return
        follower, job.follower = job.follower, None
        if follower is None:
            del lane[job.name]
        else:
            self.ready.append(follower)

    @staticmethod
    def chain(first: Job, most: int) -> list[Job]:
        """Return a record and the next ones of its lane that may share a list, at most `most`."""
        found, limit = [first], first.list_limit
        while len(found) < most and (follower := found[-1].follower) is not None:
            is_listed = follower.state is LISTED and follower.list_limit == limit
            if not (is_listed and follower.is_current):
                break
            found.append(follower)
        return found
