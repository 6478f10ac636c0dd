"""Which of several causes is said, and what degrades a consumer, of one without a network."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiokafka_lite.client.life import Stage
from aiokafka_lite.client.offsets import LATEST
from aiokafka_lite.consumer.assignment.cursor import Cursor, Range
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.membership.protocol import AwaitedWork, GroupStatus
from aiokafka_lite.consumer.monitoring.diagnosis import Cause, diagnose
from aiokafka_lite.consumer.monitoring.health import (
    FAILED_COMMIT_S,
    LONG_BLOCK_S,
    LONG_STANDSTILL_S,
    LONG_WITHOUT_POSITION_S,
    examine,
)
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.structs import TopicPartition
from tests.support.scripted_sources import view
from tests.support.states import State

A, B, C = (TopicPartition("t", number) for number in range(3))
NOW = 100.0
STABLE = GroupStatus("g", "STABLE", None, False, True, 1, NOW - 1, 5, 0)
JOINING = STABLE._replace(state="JOINING", is_settled=False)


class Examined:
    """A consumer of partitions 0 and 1, which node 1 leads: all that a diagnosis looks at.

    It is its own engine, cluster, pool, buffer, and so on; nothing is in flight.
    """

    def __init__(self, *, has_group: bool = False) -> None:
        self.state = State()
        if has_group:
            self.state.subscribe(["t"])
        else:
            self.state.assign_from_user([A, B])
        self.state.change((), [A, B])
        self.a, self.b = self.state.assignment.values()
        for cursor in (self.a, self.b):
            cursor.read_from(self, 0)
            self.state.start_at(cursor, 0)
        self.gate, self.reads, self.works = self.state.gate, self.state.reads, self.state.works
        self.config = ConsumerConfig(group_id="g", session_timeout_ms=45_000)
        self.core = self.current = self.parts = self
        self.membership = self.cluster = self.pool = self.sources = self.watchdog = self
        self.commits = self.buffer = self.budget = self.probe = self.unknown_topics = self
        self.stage, self.is_over = Stage.RUNNING, False
        self.status = STABLE if has_group else None
        self.view = view({0: 1, 1: 1})
        self.scopes: Sequence[object] = ()
        self.counts: dict[int, object] = {}
        self.failed_at: float | None = None
        self.waiting_count = 0
        # The node, its connection, and since when nodes are lost.
        self.node_id, self.lane = 1, None
        self.is_led = True
        self.error: KafkaError | None = None
        self.failing: KafkaError | None = None
        self.in_flight_since: float | None = None
        self.connecting, self.delay_s = False, 0.0
        self.ids = [-1, 1, 2]
        self.lost: dict[int, float] = {}
        # The buffer.
        self.left_out = self.untaken = self.is_short_of_bytes = self.is_settling = False
        self.taken_bytes, self.limit_bytes = 7, 9
        # The watchdog and the probe.
        self.still: dict[Cursor, float] = {}
        self.assigned_without_position_s = self.blocked_s = 0.0
        self.unknown = ""

    def moved(self, cursor: Cursor) -> None:
        """Do nothing."""

    def left(self, cursor: Cursor) -> None:
        """Do nothing."""

    def of(self, cursor: Cursor) -> Examined | None:
        return self if self.is_led else None

    def trouble(self, node_id: int) -> KafkaError | None:
        return self.failing

    def node_ids(self) -> list[int]:
        return self.ids

    def lost_at(self, node_id: int) -> float | None:
        return self.lost.get(node_id)

    def describe(self, node_id: int) -> str:
        return f"node {node_id} at h:1"

    def last_error(self, node_id: int) -> str:
        return "refused"

    def is_connecting(self, node_id: int, lane: object) -> bool:
        return self.connecting

    def connection_delay(self, node_id: int, lane: object) -> float:
        return self.delay_s

    def is_left_out(self, cursor: Cursor) -> bool:
        return self.left_out

    def has_untaken(self, node: object) -> bool:
        return self.untaken

    def standstill_s(self, cursor: Cursor, now: float) -> float:
        return self.still.get(cursor, 0.0)

    def lag_now_s(self, now: float) -> float:
        return 0.0

    def blocked_lately_s(self, now: float) -> float:
        return self.blocked_s

    def text(self, missing: list[str]) -> str:
        return self.unknown

    def check(self, cause: Cause, words: str, tp: TopicPartition = A) -> None:
        """Check why no records of a partition are returned."""
        found = diagnose(cast("Any", self), tp, NOW)
        assert (found.cause, words in found.text) == (cause, True), found.text

    @property
    def reasons(self) -> tuple[str, ...]:
        return examine(cast("Any", self), NOW).reasons

    def is_said(self, words: str) -> bool:
        """Return whether these words are all that is said of the consumer's health."""
        reasons = self.reasons
        assert len(reasons) <= 1, reasons
        return any(words in reason for reason in reasons)


@pytest.fixture
def found() -> Examined:
    return Examined()


@pytest.fixture
def member() -> Examined:
    return Examined(has_group=True)


# --- The fetch ---------------------------------------------------------------------------------
def test_of_several_causes_the_first_is_said(found: Examined) -> None:
    found.check(Cause.ABOUT_TO_FETCH, "a fetch to node 1 from offset 0 is about to be sent")
    found.is_settling = True
    found.check(Cause.ABOUT_TO_FETCH, "is about to be sent, after the latest response")
    found.is_short_of_bytes = True
    found.check(Cause.NO_BUDGET, "7 bytes of max_buffered_bytes=9 are in use: the next fetch")
    found.untaken = True
    found.check(Cause.ANSWER_NOT_TAKEN, "has read the records of other partitions")
    found.delay_s = 0.5
    found.check(Cause.THROTTLED, "for another 500 ms, because the client exceeded a quota")
    found.connecting = True
    found.check(Cause.CONNECTING, "is being opened")
    found.failing = KafkaError("again")
    found.check(Cause.BACKING_OFF, "reading from node 1 failed and is retried: KafkaError: again")
    found.error = KafkaError("once")
    found.check(Cause.BACKING_OFF, "a fetch from node 1 failed and is retried: KafkaError: once")
    found.in_flight_since = NOW - 3
    found.check(Cause.AWAITING_ANSWER, "the fetch to node 1, in flight for 3.0 s, was sent without")
    found.left_out = True
    found.check(Cause.NO_BUDGET, "the current reads wait for other partitions")
    found.a.back_off(NOW, "STORAGE")
    found.check(Cause.NO_BUDGET, "the current reads wait for other partitions")
    found.a.back_off(NOW + 5, "STORAGE")
    found.check(Cause.BACKING_OFF, "failed and is retried in 5.0 s: STORAGE")
    found.lost = {1: NOW - 4}
    found.check(Cause.BACKING_OFF, "is retried in 5.0 s")
    found.in_flight_since = None
    found.check(Cause.BROKER_DOWN, "node 1 at h:1 has not been reachable for 4.0 s")
    found.is_led = False
    found.check(Cause.ABOUT_TO_FETCH, "a fetch to the partition's leader, node 1,")
    found.view = view({0: -1, 1: 1})
    found.check(Cause.NO_LEADER, "the partition has no leader at present")


@pytest.mark.parametrize(
    ("isolation_level", "fetched", "high_watermark", "cause"),
    [
        ("read_committed", 9, 12, Cause.FETCHING),
        ("read_committed", 10, 12, Cause.OPEN_TRANSACTION),
        ("read_committed", 11, 12, Cause.OPEN_TRANSACTION),
        ("read_committed", 9, 10, Cause.FETCHING),
        ("read_committed", 10, 10, Cause.AT_END),
        ("read_uncommitted", 10, 12, Cause.FETCHING),
        ("read_uncommitted", 12, 12, Cause.AT_END),
        ("read_uncommitted", 12, None, Cause.FETCHING),
    ],
)
def test_a_fetch_in_flight_waits_at_the_end_of_the_log_or_at_a_transaction(
    found: Examined,
    isolation_level: str,
    fetched: int,
    high_watermark: int | None,
    cause: Cause,
) -> None:
    found.config = ConsumerConfig(isolation_level=isolation_level)
    found.state.start_at(found.a, fetched)
    found.a.lend(1)
    found.in_flight_since = NOW - 0.25
    if high_watermark is not None:
        found.a.answered(NOW, high_watermark, 10, 0)
    found.check(cause, "a fetch to node 1 has been in flight for 250 ms")


def test_returned_records_are_unfinished_until_their_task_reads(found: Examined) -> None:
    found.state.reads.hand_out(found.a, 0, 5, ())
    found.a.buffered(5)
    found.a.lend(1)
    found.a.answered(NOW, 5, 5, 0)
    found.in_flight_since = NOW
    found.check(Cause.UNFINISHED, "offsets 0 to 4 are unfinished until the next read, and")
    found.state.reads.resume_get()
    found.check(Cause.UNFINISHED, "until the task that has read them reads once more")
    found.state.reads.begin_get()
    found.check(Cause.AT_END, "there are no new records")


# --- The position ------------------------------------------------------------------------------
def test_a_position_is_looked_up_in_the_group_or_at_the_leader(found: Examined) -> None:
    found.a.await_committed()
    found.check(Cause.AWAITING_COMMITTED, "no committed offset, so auto_offset_reset")
    found.status = STABLE._replace(coordinator_id=None)
    found.check(Cause.AWAITING_COMMITTED, "still looking up the coordinator of group g")
    found.status = STABLE
    found.check(Cause.AWAITING_COMMITTED, "from node 1, the coordinator of group g")
    found.a.note_reason("LOADING")
    found.check(Cause.AWAITING_COMMITTED, "of group g (latest attempt: LOADING)")
    found.state.request_reset(found.a, LATEST, reason="truncated")
    found.check(Cause.AWAITING_RESET, "(reason: truncated) (latest attempt: LOADING)")
    found.lost = {1: NOW - 4}
    found.check(Cause.AWAITING_RESET, "LOADING); node 1 at h:1 has not been reachable")
    found.state.seek(found.a, 7)
    found.state.request_validation(found.a)
    found.check(
        Cause.AWAITING_VALIDATION, "records before offset 7 (latest attempt: LOADING); node 1"
    )
    found.view = view({1: 1})
    found.check(Cause.NO_LEADER, "the brokers do not know the partition")


# --- The group ---------------------------------------------------------------------------------
def test_a_partition_is_held_by_a_rebalance(member: Examined) -> None:
    member.state.withhold([A, B])
    member.check(Cause.REBALANCING, "group g (STABLE) rebalances: the partition is being revoked. ")
    awaited = AwaitedWork({A: Range(3, 5)}, NOW + 2)
    member.status = STABLE._replace(awaited_work=awaited)
    words = "is being revoked (waiting up to 2.0 s for the application to finish "
    member.check(Cause.REBALANCING, words + "offsets 3 to 4). The partition's records")
    member.check(Cause.REBALANCING, words + "its other work). The partition's records", B)
    member.status = STABLE._replace(awaited_work=awaited, withheld=frozenset({A}))
    member.check(Cause.REBALANCING, "the rebalance listener has not returned yet")
    member.status = STABLE._replace(sits_out=True)
    member.check(Cause.OUT_OF_GROUP, "the consumer left group g")


def test_a_partition_is_not_assigned_for_a_reason(found: Examined) -> None:
    state = found.state
    found.check(Cause.NOT_ASSIGNED, "assign() was called without this partition", C)
    state.unsubscribe()
    found.check(Cause.NOT_ASSIGNED, "no topic is subscribed", C)
    state.subscribe(["u"])
    found.check(Cause.NOT_ASSIGNED, "topic 't' is not subscribed", C)
    state.subscribe(["t"])
    found.check(Cause.NOT_ASSIGNED, "topic 't' has no partition 2", C)
    found.view = view({0: 1, 1: 1, 2: 1})
    found.check(Cause.NOT_ASSIGNED, "the latest lookup of the topic did not find the", C)
    found.status = STABLE
    found.check(Cause.NOT_ASSIGNED, "another member of group g owns the partition", C)
    found.status = JOINING
    found.check(Cause.REBALANCING, "group g is rebalancing (JOINING)", C)
    found.status = STABLE._replace(sits_out=True)
    found.check(Cause.OUT_OF_GROUP, "the consumer left group g", C)


def test_a_start_waits_for_a_broker_then_for_topics_then_for_the_group(member: Examined) -> None:
    member.stage = Stage.STARTING
    member.status = JOINING
    known, member.view = member.view, member.view._replace(nodes={})
    member.check(Cause.STARTING, "is starting: it is connecting to", C)
    member.view = known._replace(topics={})
    member.check(Cause.STARTING, "is starting and waits for metadata of t", C)
    member.unknown = "topic t does not exist"
    member.check(Cause.STARTING, "is starting: topic t does not exist", C)
    member.view = known
    member.check(Cause.STARTING, "is starting: it is joining group g (JOINING)", C)
    member.status = JOINING._replace(trouble="it is fenced")
    member.check(Cause.STARTING, "it is joining group g (JOINING: it is fenced)", C)
    member.status = None
    member.check(Cause.STARTING, "the consumer is starting", C)


# --- The health --------------------------------------------------------------------------------
def test_a_consumer_without_troubles_is_ok(found: Examined, member: Examined) -> None:
    for each in (found, member):
        assert each.reasons == ()
    found.status = STABLE._replace(coordinator_id=None)  # it joins no group
    assert found.reasons == ()


def test_health_counts_what_was_returned_record_by_record(found: Examined) -> None:
    settled: list[bool] = []
    found.state.reads.set_settler(lambda: settled.append(True))
    assert found.reasons == ()
    assert settled


def test_a_task_that_died_is_the_only_cause(found: Examined) -> None:
    found.stage = Stage.DEAD
    found.lost = {1: NOW - 4}
    found.scopes = [
        SimpleNamespace(name="group", failure=None),
        SimpleNamespace(name="fetch", failure=KafkaError("a bug")),
    ]
    found.check(Cause.TASK_DIED, "the background task fetch failed with KafkaError('a bug')")
    assert found.is_said("the background task fetch failed with KafkaError('a bug')")


def test_limits_of_what_is_said(found: Examined) -> None:
    found.still = {found.b: LONG_STANDSTILL_S - 0.1}
    assert not found.is_said("")
    found.still = {found.b: LONG_STANDSTILL_S}
    assert found.is_said("t/1: no record from offset 0 on has been finished for 25.0 s: a fetch to")
    found.still = {}
    found.assigned_without_position_s = LONG_WITHOUT_POSITION_S
    assert not found.is_said("")
    found.assigned_without_position_s += 1
    assert found.is_said("have had no position for 11.0 s")
    found.assigned_without_position_s = 0.0
    found.blocked_s = LONG_BLOCK_S
    assert not found.is_said("")
    found.blocked_s += 1
    assert found.is_said("was blocked for 2.0 s, and no heartbeats were sent")
    found.status = STABLE._replace(stood_in_count=3)
    assert found.is_said("and the heartbeat thread sent heartbeats (3 in total)")
    found.blocked_s = 0.0
    found.failed_at = NOW - FAILED_COMMIT_S
    assert not found.is_said("")
    found.failed_at += 1
    assert found.is_said("the latest commit failed 59.0 s ago")
    found.failed_at = None
    found.scopes = [SimpleNamespace(name="positions", degraded={"task": KafkaError("flaky")})]
    assert found.is_said(
        "the background task 'task' (positions) failed and is retried: KafkaError: flaky"
    )


def test_brokers_that_cannot_be_reached_are_named_unless_there_are_no_others(
    found: Examined,
) -> None:
    found.lost = {2: NOW - 4, -1: NOW - 9}
    assert found.is_said("node 2 at h:1 has not been reachable for 4.0 s: refused")
    found.lost = {1: NOW - 5, 2: NOW - 4}
    assert found.is_said("no broker has been reachable for 4.0 s: refused")
    found.ids, found.lost = [-1, 0], {0: NOW - 5}
    assert found.is_said("no broker has been reachable for 5.0 s: refused")


def test_a_partition_in_trouble_is_named_though_a_fetch_is_in_flight(found: Examined) -> None:
    found.in_flight_since = NOW
    assert not found.is_said("")
    found.b.failed(NOW + 5, "STORAGE")
    assert found.is_said("t/1: fetching the partition from node 1 failed and is retried in 5.0 s")
    found.b.answered(NOW, 9, 9, 0)
    found.b.end_back_off()
    error = KafkaError("bad")
    chunk = SimpleNamespace(
        decoded=[], error=error, failure=error, is_sticky=False, end_offset=None
    )
    found.b.chunks = (cast("Any", chunk),)
    assert found.is_said("t/1: the next read raises KafkaError: bad")
    found.gate.post(KafkaError("posted"))
    assert found.is_said("the next read raises KafkaError: posted")


def test_a_partition_without_a_leader_is_named(found: Examined) -> None:
    found.is_led = False
    found.view = view({0: 1, 1: -1})
    assert found.is_said("t/1: the partition has no leader")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (STABLE._replace(sits_out=True), "the consumer left group g"),
        (STABLE._replace(coordinator_id=None), "the coordinator of group g is not known"),
        (STABLE._replace(coordinator_id=7), "group g, node 7, has not been reachable for 4.0 s"),
        (JOINING, "group g is rebalancing (JOINING): no records are returned until"),
        (
            JOINING._replace(is_eager=False),
            "(JOINING): records of reassigned partitions are withheld until",
        ),
        (STABLE._replace(trouble="it is fenced"), "group g: it is fenced"),
        (
            STABLE._replace(last_contact_at=NOW - 46),
            "for 46.0 s, longer than the session timeout of 45 s",
        ),
        (STABLE._replace(last_contact_at=NOW - 45), None),
        (
            STABLE._replace(last_contact_at=NOW - 7, session_s=6.0),
            "for 7.0 s, longer than the session timeout of 6 s",
        ),
        (STABLE._replace(last_contact_at=NOW - 6, session_s=6.0), None),
        (STABLE._replace(last_contact_at=None), None),
        (
            STABLE._replace(kept_classic_by="INVALID"),
            "does not allow converting the group to KIP-848: INVALID",
        ),
    ],
)
def test_troubles_of_a_member_are_said(
    member: Examined, status: GroupStatus, words: str | None
) -> None:
    member.lost = {7: NOW - 4}
    member.status = status
    assert member.reasons == () if words is None else member.is_said(words)


def test_a_consumer_without_partitions_says_why(found: Examined, member: Examined) -> None:
    found.state.unsubscribe()
    assert found.is_said("no topic is subscribed")
    found.waiting_count = 1
    assert found.is_said("reads wait forever: no topic is subscribed")
    member.state.change([A, B], [])
    others = "the other members of group g own all partitions"
    assert member.reasons == (f"no partition is assigned, because {others}",)
    member.status = STABLE._replace(is_eager=False)
    assert member.is_said(f"{others}, or have not yet released those of this member")
    member.status = JOINING
    assert member.is_said("group g is rebalancing")
    member.status = None
    assert member.reasons == ("no partition is assigned",)
    member.view = view({})
    assert member.is_said("the subscribed topics have no partitions")


def test_a_topic_that_a_pattern_has_lost_is_no_trouble(found: Examined) -> None:
    found.state.unsubscribe()
    found.state.subscribe_pattern(re.compile("gone"))
    found.state.set_matched_topics(["gone"])
    found.view = found.view._replace(is_of_all=True)
    assert found.is_said("the subscribed topics have no partitions")


def test_paused_partitions_are_said(found: Examined) -> None:
    found.state.pause(found.b)
    assert found.reasons == ("1 of 2 partitions are paused",)
    found.stage = Stage.STARTING
    assert found.reasons == ("the consumer is starting", "1 of 2 partitions are paused")
