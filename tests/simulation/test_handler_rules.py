"""Each rule about handlers finds what it is for, and lets a sound run pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from aiokafka_lite.consumer.assignment.cursor import Range
from aiokafka_lite.consumer.assignment.finished import encode
from aiokafka_lite.simulation.history import Event, History, Kind
from aiokafka_lite.simulation.schedule import Fault
from aiokafka_lite.structs import TopicPartition
from tests.simulation import handler_rules as rules
from tests.simulation.calls import Call, CallLog, Handled, Letter
from tests.simulation.cluster import GroupFacts
from tests.simulation.handling import Handling
from tests.simulation.plan import HANDLERS, draw
from tests.simulation.rules import Run
from tests.support.for_each import for_each

TP = TopicPartition("in", 0)
DEAD = TopicPartition("dead", 0)
LATER = TopicPartition("retry.0.5", 0)
TOPIC_ID = b"0123456789abcdef"
HANDLING = Handling(
    form="function",
    order="partition",
    batch_size=None,
    batch_wait_ms=0,
    batch_by=None,
    limit="number",
    concurrency=1,
    timeout_s=0.5,
    attempts=3,
    after=1,
    letters="topic",
    writes="letters in transactions",
    has_breaker=False,
    has_middleware=False,
)
FIRST = {"__dlq.errors.first.exception": b"builtins.ConnectionError"}


def value(offset: int) -> bytes:
    """Return the value of one of four records: two can be handled, one is bad, one fails."""
    return b"p0-%d" % (0, 1, 19, 18)[offset]


def handled(offset: int, read: tuple[TopicPartition, int] | None = None) -> Handled:
    return Handled(TP, offset, value(offset), *(read or (TP, offset)))


def letter(at_s: float, there: tuple[TopicPartition, int], offset: int, **changes: Any) -> Letter:
    sound = Letter(at_s, there, TP, offset, value(offset), 1, "BadRecordError", {})
    return sound._replace(**changes)


def history_of(delay_count: int) -> dict[str, bytes]:
    return {**FIRST, "__dlq.errors.delay.count": b"%d" % delay_count}


class Story:
    """A sound run: a bad record has a letter, and one that fails has two delays before its own."""

    def __init__(self) -> None:
        self.plan = dataclasses.replace(draw(1, way=HANDLERS), faults=(), habit="")
        self.events = [
            Event(1.0, Kind.ASSIGNED, "a", tp)
            for tp in (TP, LATER, LATER._replace(topic="retry.3"))
        ]
        self.calls: list[Call] = []
        ends = (2.1, 3.1, 4.1, 5.1)
        for offset, outcome in enumerate(("finished", "finished", "failed", "failed")):
            self.events.append(Event(ends[offset], Kind.HANDLED, "a", TP, offset, value(offset)))
            self.calls.append(Call("a", 2.0 + offset, [handled(offset)], outcome, ends[offset]))
        self.later, self.latest = (LATER, 0), (LATER._replace(topic="retry.3"), 0)
        self.calls.append(Call("a", 6.0, [handled(3, self.later)], "failed", 6.1))
        self.calls.append(Call("a", 10.0, [handled(3, self.latest)], "failed", 10.1))
        self.delayed = [
            letter(5.2, self.later, 3, error="ConnectionError", history=history_of(1)),
            letter(
                6.2,
                self.latest,
                3,
                error="ConnectionResetError",
                attempts=2,
                history=history_of(2),
            ),
        ]
        self.letters = [
            letter(4.2, (DEAD, 0), 2),
            self.delayed[1]._replace(at_s=10.2, there=(DEAD, 1), attempts=3),
        ]
        self.events.append(Event(5.5, Kind.COMMITTED, "g", TP, 4))

    def broken_by(self, rule: rules.Rule) -> list[str]:
        history = History()
        history.events = sorted(self.events, key=lambda event: event.at_s)
        facts = GroupFacts({TP: {offset: value(offset) for offset in range(4)}}, {TP: 0})
        facts.call_log = CallLog(self.calls)
        facts.letters, facts.delayed = self.letters, self.delayed
        facts.topic_ids = {TP.topic: TOPIC_ID}
        run = Run(dataclasses.replace(self.plan, handling=HANDLING), history, facts)
        return [each.rule for each in rule(run, HANDLING)]


def committed_before_its_letter() -> Story:
    story = Story()
    story.letters[0] = story.letters[0]._replace(at_s=5.7)
    return story


def committed_before_its_delay() -> Story:
    story = Story()
    story.delayed[0] = story.delayed[0]._replace(at_s=5.7)
    return story


def committed_before_its_next_delay() -> Story:
    story = Story()
    story.events.append(Event(6.1, Kind.COMMITTED, "g", LATER, 1))
    return story


def without_letter() -> Story:
    story = Story()
    del story.letters[0]
    return story


def with_needless_letter() -> Story:
    story = Story()
    story.letters.append(letter(4.2, (DEAD, 2), 0))
    return story


def of_another_record() -> Story:
    story = Story()
    story.letters[0] = story.letters[0]._replace(offset=3)
    return story


def changed(number: int, **changes: Any) -> Callable[[], Story]:
    def tell() -> Story:
        story = Story()
        story.letters[number] = story.letters[number]._replace(**changes)
        return story

    return tell


def with_letter_twice() -> Story:
    story = Story()
    story.letters.append(story.letters[0]._replace(there=(DEAD, 2)))
    return story


def out_of_order() -> Story:
    story = Story()
    story.calls[1].began_at_s = 2.05
    return story


def begun_again() -> Story:
    story = Story()
    story.calls.append(Call("a", 11.0, [handled(1)], "finished", 11.1))
    return story


def begun_again_after_a_commit() -> Story:
    """The metadata of the commit have the record."""
    story = Story()
    metadata = encode(TOPIC_ID, 0, 0, [Range(1, 2)])
    story.events[-1] = Event(5.5, Kind.COMMITTED, "g", TP, 0, note=metadata)
    story.events.append(Event(7.0, Kind.ASSIGNED, "b", TP))
    story.calls.append(Call("b", 11.0, [handled(1)], "finished", 11.1))
    return story


def too_many_calls() -> Story:
    story = Story()
    story.calls[0].ended_at_s = 3.05
    return story


def too_long_a_call() -> Story:
    story = Story()
    story.calls[0].ended_at_s = 2.7
    return story


def too_early() -> Story:
    story = Story()
    story.calls[-1].began_at_s = 9.0
    return story


def a_list() -> Story:
    story = Story()
    story.calls[0].records = [handled(0), handled(1)]
    return story


SPOILT: dict[str, tuple[Callable[[], Story], rules.Rule]] = {
    "commit ahead of a letter": (committed_before_its_letter, rules.commits_cover_ended_records),
    "commit ahead of a delay": (committed_before_its_delay, rules.commits_cover_ended_records),
    "commit ahead of two": (committed_before_its_next_delay, rules.commits_cover_ended_records),
    "no letter": (without_letter, rules.records_end_as_they_must),
    "needless letter": (with_needless_letter, rules.records_end_as_they_must),
    "another letter": (of_another_record, rules.letters_tell_what_happened),
    "attempts": (changed(0, attempts=2), rules.letters_tell_what_happened),
    "attempts of all": (changed(1, attempts=1), rules.letters_tell_what_happened),
    "another error": (changed(0, error="ConnectionError"), rules.letters_tell_what_happened),
    "delays": (changed(1, history=history_of(1)), rules.letters_tell_what_happened),
    "first error": (
        changed(1, history={**history_of(2), **dict.fromkeys(FIRST, b"builtins.ValueError")}),
        rules.letters_tell_what_happened,
    ),
    "repeated letter": (with_letter_twice, rules.letters_are_written_once),
    "order": (out_of_order, rules.records_of_a_lane_begin_in_order),
    "key twice": (out_of_order, rules.calls_of_a_lane_follow_each_other),
    "handled again": (begun_again, rules.finished_records_are_not_handled_again),
    "handled again after a commit": (
        begun_again_after_a_commit,
        rules.finished_records_are_not_handled_again,
    ),
    "calls": (too_many_calls, rules.calls_keep_their_limits),
    "time limit": (too_long_a_call, rules.calls_keep_their_limits),
    "early": (too_early, rules.delayed_records_are_waited_for),
    "list": (a_list, rules.lists_have_what_they_may),
}


@for_each(SPOILT.items(), SPOILT)
def test_rule_finds(name: str, spoilt: tuple[Callable[[], Story], rules.Rule]) -> None:
    tell, rule = spoilt
    assert Story().broken_by(rule) == []
    found = tell().broken_by(rule)
    assert found
    assert any(name.startswith(each) for each in found), found


def test_each_rule_about_handlers_is_seen_to_fail() -> None:
    assert {rule for _, rule in SPOILT.values()} == {*rules.RULES}


def test_call_may_be_too_long_if_the_loop_was_blocked() -> None:
    story = too_long_a_call()
    story.plan = dataclasses.replace(story.plan, faults=(Fault(1.0, 1.0, "loop blocked", 0, 0.0),))
    assert not story.broken_by(rules.calls_keep_their_limits)
