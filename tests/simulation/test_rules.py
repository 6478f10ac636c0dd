"""Each rule finds what it is for, and lets a sound run pass."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

from aiokafka_lite.simulation import rules as shared
from aiokafka_lite.simulation.history import Event, History, Kind
from aiokafka_lite.simulation.schedule import Fault, Order
from aiokafka_lite.structs import TopicPartition
from tests.simulation import plan, rules
from tests.simulation.cluster import GroupFacts
from tests.simulation.plan import Plan
from tests.simulation.rules import Rule, Run
from tests.support.for_each import for_each

TP = TopicPartition("in", 0)
RESET = Fault(1.0, 1.0, "reset", 0, 0.0)


def a_plan(*, way: str = "async for", faults: tuple[Fault, ...] = ()) -> Plan:
    return Plan(
        seed=1,
        order=Order.FIFO,
        protocol="consumer",
        way=way,
        members=2,
        partitions=1,
        length_s=60.0,
        heartbeat_ms=None,
        auto_commit_ms=1_000,
        handling_s=0.0,
        static=False,
        producers=("idempotent",),
        pause_s=0.25,
        faults=faults,
    )


def value(number: int) -> bytes:
    return b"p0-%d" % number


class Story:
    """A sound run of two records, to be spoilt."""

    def __init__(self, way: str = "async for", faults: tuple[Fault, ...] = ()) -> None:
        self.plan = a_plan(way=way, faults=faults)
        self.events: list[Event] = []
        self.facts = GroupFacts({TP: {0: value(0), 1: value(1)}}, {TP: 0})
        for number in (0, 1):
            at_s = 1.0 + number
            self.add(at_s, Kind.SENT, "p0", offset=-1, value=value(number))
            self.add(at_s, Kind.ACKED, "p0", offset=number, value=value(number))
        self.add(3.0, Kind.ASSIGNED, "a")
        for number in (0, 1):
            self.add(4.0 + number, Kind.RETURNED, "a", offset=number, value=value(number))
            self.add(4.5 + number, Kind.HANDLED, "a", offset=number, value=value(number))
        self.add(6.0, Kind.COMMITTED, "g", offset=2)
        self.add(7.0, Kind.STOPPING, "a")
        # A member that copies may also wait for its transaction.
        self.add(18.0 if way in plan.COPIES else 8.0, Kind.STOPPED, "a")
        if way in plan.COPIES:
            self.facts.output = [value(0), value(1)]

    def add(
        self, at_s: float, kind: Kind, who: str, *, offset: int = -1, value: bytes = b"",
        note: str = "", tp: TopicPartition | None = TP,
    ) -> Story:  # fmt: skip
        self.events.append(Event(at_s, kind, who, tp, offset, value, note))
        return self

    def without(self, kind: Kind, number: int = 0) -> Story:
        found = [event for event in self.events if event.kind is kind]
        self.events.remove(found[number])
        return self

    def broken_by(self, rule: Rule) -> list[str]:
        history = History()
        history.events = sorted(self.events, key=lambda event: event.at_s)
        return [each.rule for each in rule(Run(self.plan, history, self.facts))]


def lost() -> Story:
    return Story().without(Kind.HANDLED, 1)


def acknowledged_lost() -> Story:
    return Story().add(5.0, Kind.ACKED, "p0", offset=2, value=value(2))


def aborted_read() -> Story:
    return Story().add(2.0, Kind.REFUSED, "p0", value=value(1), note="aborted")


def written_twice() -> Story:
    story = Story()
    story.facts.logs[TP][2] = value(1)
    return story


def unseen() -> Story:
    return Story().without(Kind.RETURNED, 1)


def reordered() -> Story:
    story = Story()
    story.facts.logs[TP] = {0: value(1), 1: value(0)}
    return story


def another_record() -> Story:
    story = Story()
    story.facts.logs[TP][1] = value(7)
    return story


def repeated_in_an_assignment() -> Story:
    return Story().add(6.0, Kind.RETURNED, "a", offset=1, value=value(1))


def left_out() -> Story:
    return Story().without(Kind.RETURNED, 1).add(6.0, Kind.RETURNED, "a", offset=2, value=value(2))


def key_out_of_order() -> Story:
    story = Story("run").add(5.5, Kind.RETURNED, "a", offset=8, value=value(8))
    return story.add(5.6, Kind.RETURNED, "a", offset=2, value=value(1))


def key_twice() -> Story:
    return Story("run").add(4.2, Kind.RETURNED, "a", offset=7, value=value(7))


def commit_of_a_former_log() -> Story:
    story = Story().add(2.5, Kind.CUT_LOG, "recreated", offset=0)
    return story.add(3.5, Kind.COMMITTED, "g", offset=2)


def commit_ahead() -> Story:
    return Story().add(4.6, Kind.COMMITTED, "g", offset=2)


def commit_back() -> Story:
    return Story().add(6.5, Kind.COMMITTED, "g", offset=1)


def two_owners() -> Story:
    return Story().add(4.0, Kind.ASSIGNED, "b")


def returned_by_a_former_owner() -> Story:
    story = Story(faults=(RESET,)).add(2.0, Kind.FAULT, "reset", tp=None)
    story.without(Kind.STOPPED).add(7.0, Kind.ASSIGNED, "b")
    return story.add(15.0, Kind.RETURNED, "a", offset=1, value=value(1))


def repeated() -> Story:
    return Story().add(5.9, Kind.HANDLED, "b", offset=1, value=value(1))


def raised_without_a_fault() -> Story:
    return Story().add(5.9, Kind.RAISED, "a", value=b"KafkaError", note="KafkaError: no")


def returned_before_a_seek_s_offset() -> Story:
    story = Story().add(5.6, Kind.SOUGHT, "a", offset=1)
    return story.add(5.7, Kind.RETURNED, "a", offset=0, value=value(0))


def returned_while_paused() -> Story:
    return Story().add(4.8, Kind.PAUSED, "a")


def older_commit_after_a_newer_one() -> Story:
    story = Story().add(5.6, Kind.NAMED, "a", offset=1).add(5.7, Kind.NAMED, "a", offset=2)
    return story.add(6.5, Kind.COMMITTED, "g", offset=1)


def waits() -> Story:
    story = prompt_story().add(40.0, Kind.REVOKED, "a")
    return story.add(46.0, Kind.ASSIGNED, "b")


def prompt_story() -> Story:
    story = Story(faults=(RESET,)).without(Kind.STOPPING).without(Kind.STOPPED)
    story.plan = dataclasses.replace(story.plan, heartbeat_ms=plan.PROMPT_HEARTBEAT_MS)
    return story.add(2.0, Kind.JOINED, "a", tp=None).add(2.0, Kind.JOINED, "b", tp=None)


def kept() -> Story:
    story = Story().without(Kind.STOPPING).without(Kind.STOPPED)
    return story.add(6.0, Kind.FENCED, "a", tp=None).add(20.0, Kind.SETTLED, "course", tp=None)


def gives_up() -> Story:
    return Story().add(5.9, Kind.RAISED, "a", note="UnreleasedInstanceIdError: no")


def connects_without_a_pause() -> Story:
    story = Story()
    story.facts.attempts = [(3.0 + n / 1000, "a", "b1") for n in range(100)]
    return story


def sends_without_a_pause() -> Story:
    story = Story()
    story.facts.requests["a", 1, "OffsetFetch", 3] = 100
    return story


def throttled_and_sends() -> Story:
    return Story().add(5.9, Kind.THROTTLED, "a", tp=None)


def part_of_a_transaction() -> Story:
    return Story().add(5.9, Kind.ENDED, "p0", value=value(1) + b" " + value(2))


def copied_twice() -> Story:
    story = Story("copy")
    story.facts.output.append(value(1))
    return story


def not_copied() -> Story:
    story = Story("copy")
    story.facts.output.remove(value(1))
    return story


def no_letter() -> Story:
    story = Story("dead letters")
    story.facts.logs[TP][2] = value(9)
    return story


def needless_letter() -> Story:
    story = Story("dead letters")
    story.facts.dead.append(value(1))
    return story


def late_stop() -> Story:
    return Story().without(Kind.STOPPED).add(18.0, Kind.STOPPED, "a")


def no_stop() -> Story:
    return Story().without(Kind.STOPPED)


def returned_after_a_revocation() -> Story:
    return Story().add(4.8, Kind.REVOKED, "a")


def confirmed_and_not_committed() -> Story:
    return Story().add(5.8, Kind.CONFIRMED, "a", offset=2)


def letter_twice(way: str = "letters in transactions") -> Story:
    story = Story(way, faults=(RESET,))
    story.facts.dead += [value(9), value(9)]
    return story


def foreign_error() -> Story:
    return Story(faults=(RESET,)).add(5.9, Kind.RAISED, "a", note="KeyError: 1")


BROKEN: tuple[tuple[Rule, Callable[[], Story], str], ...] = (
    (shared.no_record_is_lost, lost, "lost"),
    (shared.every_record_is_seen, unseen, "unseen"),
    (shared.records_keep_their_order, reordered, "reorder"),
    (rules.acknowledged_records_stay_or_are_compacted, acknowledged_lost, "acknowledged, lost"),
    (shared.no_aborted_record_is_read, aborted_read, "aborted read"),
    (shared.idempotent_records_are_written_once, written_twice, "written twice"),
    (shared.values_are_those_of_the_log, another_record, "another record"),
    (rules.one_assignment_is_in_order, repeated_in_an_assignment, "order"),
    (rules.one_assignment_is_in_order, key_out_of_order, "order"),
    (rules.records_of_a_key_are_handled_one_by_one, key_twice, "key twice"),
    (rules.commits_cover_what_is_finished, commit_ahead, "commit ahead"),
    (rules.commits_cover_what_is_finished, commit_of_a_former_log, "commit ahead"),
    (rules.commits_do_not_go_back, commit_back, "commit back"),
    (rules.one_member_owns_a_partition, two_owners, "two owners"),
    (
        rules.one_member_owns_a_partition,
        returned_by_a_former_owner,
        "returned by a former owner",
    ),
    (rules.healthy_members_repeat_nothing, repeated, "repeated"),
    (rules.healthy_members_repeat_nothing, raised_without_a_fault, "raised"),
    (rules.one_assignment_is_in_order, returned_before_a_seek_s_offset, "order"),
    (rules.paused_partitions_return_nothing, returned_while_paused, "paused"),
    (rules.commits_do_not_go_back, older_commit_after_a_newer_one, "commit back"),
    (rules.partitions_do_not_wait, waits, "waits"),
    (rules.fenced_members_lose_partitions, kept, "kept"),
    (rules.static_members_wait_for_their_id, gives_up, "gives up"),
    (rules.attempts_have_pauses, connects_without_a_pause, "hot loop"),
    (rules.attempts_have_pauses, sends_without_a_pause, "hot loop"),
    (rules.throttled_clients_wait, throttled_and_sends, "throttle"),
    (rules.transactions_are_atomic, part_of_a_transaction, "part of a transaction"),
    (rules.copies_are_made_exactly_once, copied_twice, "copied twice"),
    (rules.copies_are_made_exactly_once, not_copied, "not copied"),
    (rules.failed_records_are_dead_letters, no_letter, "no letter"),
    (rules.failed_records_are_dead_letters, needless_letter, "needless letter"),
    (rules.failed_records_are_dead_letters, letter_twice, "repeated letter"),
    (rules.only_owners_get_records, returned_after_a_revocation, "returned after a revocation"),
    (rules.confirmed_commits_are_there, confirmed_and_not_committed, "not committed"),
    (rules.members_stop_in_time, late_stop, "late stop"),
    (rules.members_stop_in_time, no_stop, "no stop"),
    (rules.only_kafka_errors_are_raised, foreign_error, "foreign error"),
)


@for_each(BROKEN, [make.__name__ for _, make, _ in BROKEN])
def test_rule_finds_what_it_is_for(rule: Rule, make: Callable[[], Story], name: str) -> None:
    assert name in make().broken_by(rule)


def test_record_that_is_left_out_is_found() -> None:
    story = left_out()
    story.facts.logs[TP][2] = value(2)
    assert story.broken_by(rules.one_assignment_is_in_order) == ["order"]


@for_each(itertools.product(rules.RULES, plan.WAYS), "{0.__name__}, {1}")
def test_sound_run_breaks_no_rule(rule: Rule, way: str) -> None:
    assert not Story(way).broken_by(rule)


def test_every_rule_was_seen_to_fail() -> None:
    assert {rule for rule, _, _ in BROKEN} == set(rules.RULES)


def test_rewritten_log_excuses_what_is_about_offsets() -> None:
    story = commit_back().add(6.2, Kind.CUT_LOG, "truncation", offset=1)
    assert not story.broken_by(rules.commits_do_not_go_back)
    # A truncation excuses the records of an abort whose marker it has removed, and keeps them.
    for end, found in ((2, []), (1, ["aborted read"])):
        story = aborted_read().add(4.5, Kind.CUT_LOG, "truncation", offset=end)
        assert story.broken_by(shared.no_aborted_record_is_read) == found


def test_key_may_be_handled_in_two_topics_at_once() -> None:
    second = TopicPartition("in2", 0)
    story = Story("run").add(4.2, Kind.RETURNED, "a", tp=second, offset=0, value=value(7))
    assert not story.broken_by(rules.records_of_a_key_are_handled_one_by_one)


def test_seek_and_older_commit_excuse_what_they_ask_for() -> None:
    story = Story().add(5.6, Kind.SOUGHT, "a", offset=0)
    story.add(5.7, Kind.RETURNED, "a", offset=0, value=value(0))
    assert not story.broken_by(rules.one_assignment_is_in_order)
    story = Story().add(6.2, Kind.NAMED, "a", offset=1).add(6.5, Kind.COMMITTED, "g", offset=1)
    assert not story.broken_by(rules.commits_do_not_go_back)
    # The first commit of 2 was that of a revocation: the calls follow in their order.
    story = Story().add(5.8, Kind.NAMED, "a", offset=1).add(5.9, Kind.NAMED, "a", offset=2)
    story.add(6.05, Kind.COMMITTED, "g", offset=1)
    assert story.broken_by(rules.commits_do_not_go_back) == ["commit back"]
    story.add(6.1, Kind.COMMITTED, "g", offset=2)
    assert not story.broken_by(rules.commits_do_not_go_back)
    # The commit of 2 was on its way at the seek.
    story = Story().add(5.9, Kind.SOUGHT, "a", offset=0).add(6.5, Kind.COMMITTED, "g", offset=0)
    assert not story.broken_by(rules.commits_do_not_go_back)
    for number in (0, 1):
        story.add(6.6, Kind.HANDLED, "a", offset=number, value=value(number))
    story.add(6.7, Kind.COMMITTED, "g", offset=2).add(6.8, Kind.COMMITTED, "g", offset=1)
    assert story.broken_by(rules.commits_do_not_go_back) == ["commit back"]


def test_removed_member_may_keep_partitions_in_an_outage() -> None:
    story = kept().add(7.0, Kind.FAULT, "hang", tp=None)
    assert not story.broken_by(rules.fenced_members_lose_partitions)


def test_next_coordinator_of_a_classic_group_may_not_know_of_a_leave() -> None:
    for protocol, is_broken in (("consumer", True), ("range", False), ("cooperative", False)):
        for story, rule in (
            (kept(), rules.fenced_members_lose_partitions),
            (waits().add(39.0, Kind.STOPPED, "b", tp=None), rules.partitions_do_not_wait),
        ):
            story.plan = dataclasses.replace(story.plan, protocol=protocol)
            at_s = 6.5 if rule is rules.fenced_members_lose_partitions else 41.0
            story.add(at_s, Kind.FAULT, "coordinator moves", tp=None)
            assert bool(story.broken_by(rule)) is is_broken


def test_error_of_a_batch_does_not_end_its_member() -> None:
    story = Story(faults=(RESET,)).add(3.5, Kind.RAISED, "a", note="batch: given up")
    assert "two owners" in story.add(40.0, Kind.ASSIGNED, "b").without(Kind.STOPPED).broken_by(
        rules.one_member_owns_a_partition
    )


def test_stop_has_its_time_after_the_last_records() -> None:
    story = late_stop()
    assert story.broken_by(rules.members_stop_in_time)
    assert not story.add(14.0, Kind.STOPPING, "a").broken_by(rules.members_stop_in_time)


def test_cancelled_run_may_repeat_a_letter_outside_transactions() -> None:
    for way, habit, is_broken in (
        ("dead letters", "", True),
        ("dead letters", "times out", False),
        ("letters in transactions", "times out", True),
    ):
        story = letter_twice(way)
        story.plan = dataclasses.replace(story.plan, habit=habit, faults=())
        found = story.broken_by(rules.failed_records_are_dead_letters)
        assert found.count("repeated letter") == is_broken


def test_partition_may_wait_for_a_member_whose_start_was_cancelled() -> None:
    story = waits().add(39.0, Kind.JOINED, "c", tp=None).add(39.5, Kind.STOPPING, "c", tp=None)
    assert not story.broken_by(rules.partitions_do_not_wait)


def test_partition_may_wait_after_an_outage() -> None:
    story = (
        waits().add(38.0, Kind.FAULT, "hang", tp=None).add(39.0, Kind.FAULT_OVER, "hang", tp=None)
    )
    assert not story.broken_by(rules.partitions_do_not_wait)


def test_seed_decides_the_plan() -> None:
    assert plan.draw(7) == plan.draw(7) != plan.draw(8)


@for_each([((Kind.SENT,),), ((Kind.SENT, Kind.ACKED),)])
def test_events_of_a_kind_are_those_at_the_call(kinds: tuple[Kind, ...]) -> None:
    history = History()
    history.note(Kind.ACKED, "other")
    history.note(Kind.SENT, "first")
    found = history.of(*kinds)
    history.events = [Event(0.0, Kind.SENT, "second")]
    assert [each.who for each in history.of(*kinds)] == ["second"]
    assert [each.who for each in found] == ["other", "first"][-len(kinds) :]
