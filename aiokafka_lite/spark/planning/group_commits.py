"""Offsets of processed micro-batches, committed to a Kafka group so that its lag can be seen.

Spark uses its checkpoint only. So a failed commit is only retried for some seconds, and the log
warns once.

The group has no members (Kafka's tools show it as Empty). A group with members rejects the commits.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Final

from aiokafka_lite.client.backoff import Backoff
from aiokafka_lite.client.blocking_cluster import BlockingCluster
from aiokafka_lite.client.cluster_requests import coordinator_of, coordinator_request
from aiokafka_lite.client.offset_commits import OffsetToCommit, commit_request, commit_results
from aiokafka_lite.client.offsets import Offsets
from aiokafka_lite.client.view import Node
from aiokafka_lite.errors import (
    GroupAuthorizationFailedError,
    KafkaError,
    RebalanceInProgressError,
    TopicAuthorizationFailedError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka_lite.spark.errors import named

log = logging.getLogger("aiokafka_lite.spark")

# How long a commit may delay a micro-batch.
TRIED_FOR_S: Final = 5.0
# The first and the longest time without commits after failures.
PAUSE_FIRST_S: Final = 1.0
PAUSE_LAST_S: Final = 60.0
# Kafka deletes offsets that were committed seven days ago (by default).
COMMITTED_AGAIN_AFTER_S: Final = 3600.0

_IN_USE: Final = (
    "consumers are members of the group, but this source can only commit to a group without "
    "members: set the option commitOffsetsToGroup to a group that has no members"
)
ADVICE: Final[Mapping[type[KafkaError], str]] = {
    UnknownMemberIdError: _IN_USE,
    RebalanceInProgressError: _IN_USE,
    GroupAuthorizationFailedError: (
        "grant the user READ on the group that the option commitOffsetsToGroup names"
    ),
    TopicAuthorizationFailedError: "grant the user READ on the topics",
}


class GroupCommits:
    def __init__(
        self,
        group_id: str,
        cluster: BlockingCluster,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._group_id = group_id
        self._cluster = cluster
        self._clock = clock
        self._sleep = sleep
        self._coordinator: Node | None = None
        self._committed: Offsets = {}
        self._committed_all_at = float("-inf")
        self._failures = Backoff(PAUSE_FIRST_S, PAUSE_LAST_S, random.Random())
        self._next_attempt_at = float("-inf")
        self._warned_of: type[KafkaError] | None = None

    def commit(self, offsets: Offsets) -> None:
        """Commit the offsets that changed since the last commit. Takes about 5 seconds at most."""
        now = self._clock()
        if now < self._next_attempt_at:
            return
        is_time_for_all = now - self._committed_all_at >= COMMITTED_AGAIN_AFTER_S
        left = {
            tp: offset
            for tp, offset in offsets.items()
            if is_time_for_all or self._committed.get(tp) != offset
        }
        if not left:
            return
        try:
            self._carry_through(left)
        except KafkaError as error:
            self._next_attempt_at = self._clock() + self._failures.next_delay_s()
            self._warn(error, left)
            return
        if is_time_for_all:
            self._committed_all_at = now
        self._failures.reset()
        if self._warned_of is not None:
            self._warned_of = None
            log.warning("group %s: offset commits succeed again", self._group_id)

    def _carry_through(self, left: Offsets) -> None:
        config = self._cluster.config
        backoff = Backoff(config.retry_backoff_s, config.retry_backoff_max_s, random.Random())
        give_up_at = self._clock() + TRIED_FOR_S
        while True:
            try:
                return self._attempt(left, give_up_at)
            except KafkaError as error:
                # After any failure the coordinator is looked up again.
                self._coordinator = None
                delay_s = backoff.next_delay_s()
                if not error.retriable or self._clock() + delay_s >= give_up_at:
                    raise
            self._sleep(delay_s)

    def _left_s(self, give_up_at: float) -> float:
        return min(max(give_up_at - self._clock(), 0.1), self._cluster.config.request_timeout_s)

    def _attempt(self, left: Offsets, give_up_at: float) -> None:
        if self._coordinator is None:
            request = coordinator_request(self._group_id)
            answer = self._cluster.request_any(request, timeout_s=self._left_s(give_up_at))
            self._coordinator = coordinator_of(self._group_id, answer)
        entries = {tp: OffsetToCommit(offset) for tp, offset in left.items()}
        commit = commit_request(self._group_id, entries)
        timeout_s = self._left_s(give_up_at)
        response = self._cluster.request(self._coordinator, commit, timeout_s=timeout_s)
        refusal: KafkaError | None = None
        for tp, code in commit_results(response).items():
            error_class = for_code(code) if code else None
            # A deleted topic has no lag, and needs no retry.
            if error_class is None or error_class is UnknownTopicOrPartitionError:
                if tp in left:
                    self._committed[tp] = left.pop(tp)
            elif refusal is None or (refusal.retriable and not error_class.retriable):
                refusal = error_class(error_class.description.rstrip("."))
        if refusal is not None:
            raise refusal

    def _warn(self, error: KafkaError, left: Offsets) -> None:
        """Warn of a failure, unless the previous failure was the same."""
        if type(error) is self._warned_of:
            return
        self._warned_of = type(error)
        advice = ADVICE.get(type(error))
        log.warning(
            "group %s: offsets of %s were not committed (%s%s), so the group's lag is outdated. "
            "The query continues, and a later micro-batch will commit its offsets",
            self._group_id,
            named(left),
            error,
            f": {advice}" if advice else "",
        )
