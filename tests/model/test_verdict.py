"""The judge itself: what it forgives, and what it does not."""

from __future__ import annotations

import pytest

from aiokafka_lite.structs import TopicPartition
from tests.model.ledger import (
    LOST,
    TO_COMMITTED,
    UNSUBSCRIBED,
    Assigned,
    CommitAsked,
    CommitDone,
    Committed,
    Entry,
    Handed,
    Joined,
    Ledger,
    Paused,
    Revoked,
    Sought,
    Subscribed,
)
from tests.model.verdict import Verdict

TP = TopicPartition("t", 0)
ALL = frozenset({TP})


def rules_broken(*entries: Entry) -> list[str]:
    """Return the rules that a member broke by what it did."""
    ledger = Ledger()
    joined = Joined(settings="", is_eager=True, hears_within_s=1.0)
    topics = Subscribed(topics=frozenset({"t"}))
    for second, entry in enumerate((joined, topics, *entries)):
        entry.at, entry.group, entry.who = float(second), "g", entry.who or "m"
        ledger.write(entry)
    Verdict(ledger, slack_s=0.0).judge()
    return [each.rule for each in ledger.violations]


@pytest.mark.parametrize("how", ["revoked", UNSUBSCRIBED])
def test_a_pause_of_a_lost_partition_ends_when_the_application_unsubscribes(how: str) -> None:
    broken = rules_broken(
        Assigned(generation=1, tps=ALL),
        Revoked(tps=ALL, how="lost"),
        Paused(tps=ALL),  # which the client still allows: it is in assignment()
        Revoked(tps=frozenset(), how=how),
        Assigned(generation=2, tps=ALL),
        Handed(tp=TP, first=0, next=1),
    )
    assert ("handed out though paused" in broken) is (how != UNSUBSCRIBED)


@pytest.mark.parametrize("generation", [2, 3])
@pytest.mark.parametrize("how", ["revoked", LOST])
def test_a_seek_in_a_rebalance_counts_unless_others_can_have_had_the_partition(
    how: str, generation: int
) -> None:
    for first in (0, 7):
        broken = rules_broken(
            Assigned(generation=1, tps=ALL),
            Revoked(tps=ALL, how=how),
            Sought(tp=TP, target=7, how="back", limit=9),
            Assigned(generation=generation, tps=ALL),
            Handed(tp=TP, first=first, next=first + 1),
        )
        is_due = generation == 2 and how != LOST
        assert ("offsets out of order" in broken) is (is_due and first == 0)
        may_be_kept = generation == 2
        assert ("a start that is not what was committed" in broken) is (
            not may_be_kept and first == 7
        )


@pytest.mark.parametrize("offset", [7, 8, 9])
def test_a_seek_to_committed_in_a_rebalance_leads_to_what_is_committed_at_its_end(
    offset: int,
) -> None:
    broken = rules_broken(
        Assigned(generation=1, tps=ALL),
        Handed(tp=TP, first=0, next=8),
        Revoked(tps=ALL, how="revoked"),
        Committed(tp=TP, offset=7, mark="", log_offset=0),
        Sought(tp=TP, target=7, how=TO_COMMITTED, limit=9),
        Committed(tp=TP, offset=8, mark="", log_offset=1),
        Assigned(generation=2, tps=ALL),
        Handed(tp=TP, first=offset, next=offset + 1),
    )
    assert ("a start that is not what was committed" in broken) is (offset == 9)


@pytest.mark.parametrize("who", ["m", "another"])
def test_a_commit_of_positions_may_have_been_made_before_the_revocation(who: str) -> None:
    broken = rules_broken(
        Assigned(generation=1, tps=ALL),
        Handed(tp=TP, first=0, next=7),
        Committed(tp=TP, offset=7, mark="", log_offset=0, who=who),
        Revoked(tps=ALL, how="revoked"),
        Committed(tp=TP, offset=9, mark="", log_offset=1, who="another"),
        CommitAsked(number=1, offsets={TP: 7}, mark=""),
        CommitDone(number=1, offsets={TP: 7}, mark="", error=""),
    )
    assert ("a commit that is none" in broken) is (who != "m")
