"""The sans-IO half of membership: states, what errors mean, stale news."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aiokafka_lite import errors
from aiokafka_lite.consumer.membership.classic.member import (
    LEGAL_TRANSITIONS,
    Member,
    MemberState,
)
from aiokafka_lite.consumer.membership.protocol import Identity
from aiokafka_lite.consumer.membership.recovery import Interruption, Recovery, recovery_for
from aiokafka_lite.errors import IllegalStateError, KafkaError
from aiokafka_lite.structs import TopicPartition
from tests.support.for_each import for_each
from tests.support.waiting import is_woken


def joined(generation: int = 1, member_id: str = "m-1") -> Member:
    member = Member("g")
    member.enter(MemberState.PREPARING)
    member.enter(MemberState.JOINING)
    member.take_generation(
        Identity(member_id, generation), protocol_name="range", leader_id=member_id
    )
    member.enter(MemberState.STABLE)
    return member


def test_every_state_but_the_last_can_be_left_and_entered() -> None:
    entered = set().union(*LEGAL_TRANSITIONS.values())

    assert LEGAL_TRANSITIONS.keys() == set(MemberState)
    assert entered == set(MemberState)
    assert [state for state, after in LEGAL_TRANSITIONS.items() if not after] == [MemberState.LEFT]


def test_a_consumer_can_stop_in_every_state_it_did_not_stop_in() -> None:
    cannot = {s for s, after in LEGAL_TRANSITIONS.items() if MemberState.LEAVING not in after}

    assert cannot == {MemberState.LEAVING, MemberState.LEFT}


def test_a_step_the_table_does_not_know_is_refused_and_changes_nothing() -> None:
    member = Member("g")

    with pytest.raises(IllegalStateError, match="cannot change its state from UNJOINED to STABLE"):
        member.enter(MemberState.STABLE)

    assert member.state is MemberState.UNJOINED


@for_each(
    [
        (errors.CoordinatorLoadInProgressError(), Recovery.RETRY),
        (errors.NotCoordinatorError(), Recovery.REDISCOVER),
        (errors.CoordinatorNotAvailableError(), Recovery.REDISCOVER),
        (errors.RequestTimedOutError(), Recovery.REDISCOVER),
        (errors.KafkaConnectionError(), Recovery.REDISCOVER),
        (errors.KafkaTimeoutError(), Recovery.REDISCOVER),
        (errors.NodeNotReadyError(), Recovery.REDISCOVER),
        (errors.RebalanceInProgressError(), Recovery.REBALANCE),
        (errors.IllegalGenerationError(), Recovery.LOST_GENERATION),
        (errors.UnknownMemberIdError(), Recovery.LOST_MEMBERSHIP),
        (errors.FencedInstanceIdError(), Recovery.FENCED),
        (errors.GroupAuthorizationFailedError(), Recovery.SURFACE),
        (errors.InvalidSessionTimeoutError(), Recovery.SURFACE),
        (errors.InconsistentGroupProtocolError(), Recovery.SURFACE),
        (errors.UnknownError(), Recovery.SURFACE),
        (errors.UnknownTopicOrPartitionError(), Recovery.RETRY),
        (errors.IncompatibleBrokerVersion(), Recovery.SURFACE),
    ]
)
def test_an_error_tells_how_to_go_on(error: KafkaError, recovery: Recovery) -> None:
    assert recovery_for(error) is recovery


def test_an_illegal_generation_keeps_the_member_id() -> None:
    member = joined()

    member.interrupt(member.identity, Interruption.LOST_GENERATION)
    member.settle_interruption()

    assert member.identity == Identity("m-1", -1)
    assert not member.is_member
    assert member.lost_by is Interruption.LOST_GENERATION


def test_an_unknown_member_drops_its_id() -> None:
    member = joined()

    member.interrupt(member.identity, Interruption.LOST_MEMBERSHIP)
    member.settle_interruption()

    assert member.identity == Identity("", -1)


def test_a_rebalance_keeps_id_and_generation_until_the_new_one() -> None:
    member = joined()

    member.interrupt(member.identity, Interruption.GROUP_REBALANCES)
    member.settle_interruption()

    assert member.identity == Identity("m-1", 1)
    assert member.interruption is None


def test_news_of_an_older_generation_is_ignored() -> None:
    member = joined(generation=7)

    member.interrupt(Identity("m-1", 6), Interruption.LOST_MEMBERSHIP)

    assert member.interruption is None


def test_the_gravest_of_several_interruptions_counts() -> None:
    member = joined()

    member.interrupt(member.identity, Interruption.LOST_MEMBERSHIP)
    member.interrupt(member.identity, Interruption.GROUP_REBALANCES)

    assert member.interruption is Interruption.LOST_MEMBERSHIP


def test_what_is_said_of_a_member_that_is_none_interrupts_nothing() -> None:
    member = Member("g", member_id="m-1")
    member.interrupt(member.identity, Interruption.LOST_MEMBERSHIP)
    assert member.interruption is None
    assert not member.is_fenced
    assert not member.is_leader


async def test_whatever_happens_to_a_member_wakes_those_who_wait_for_it() -> None:
    member = joined()
    changes: tuple[Callable[[], object], ...] = (
        lambda: member.interrupt(member.identity, Interruption.GROUP_REBALANCES),
        lambda: member.end_rebalance(()),
        member.lose_generation,
        member.lose_membership,
    )
    for happen in changes:
        assert await is_woken(member, happen)


def test_losses_are_the_gravest_interruptions() -> None:
    assert [each for each in Interruption if each.is_loss] == list(Interruption)[-3:]
    assert sorted(Interruption) == list(Interruption)
    assert all(each.text for each in Interruption)


# --- For commits -------------------------------------------------------------------------------
NOW = Identity("m-1", 7)
TP = TopicPartition("t", 0)


def holding(generation: int = 7) -> Member:
    member = joined(generation)
    member.assigned_as = member.identity
    return member


@for_each(
    [
        (NOW, False, NOW),
        (Identity("m-1", 6), False, None),
        (Identity("m-1", 6), True, NOW),
        (Identity("m-1", 5), True, None),
        (Identity("m-0", 7), True, None),
    ]
)
def test_a_commit_goes_over_to_the_next_generation_only_if_it_waited(
    made_as: Identity, has_waited: bool, sender: Identity | None
) -> None:
    member = holding()
    assert member.commits_as(made_as, has_waited=has_waited, is_departed=False) == sender


def rejoin(member: Member, generation: int, member_id: str = "m-1") -> None:
    """Let it be of another generation, whose assignment is not known yet."""
    member.enter(MemberState.PREPARING)
    member.begin_rebalance()
    member.take_generation(
        Identity(member_id, generation), protocol_name="range", leader_id=member_id
    )


@pytest.mark.parametrize(("keeps", "sender"), [(True, Identity("m-1", 8)), (False, None)])
def test_a_commit_goes_over_to_a_generation_for_which_its_partitions_were_kept(
    keeps: bool, sender: Identity | None
) -> None:
    member = Member("g")
    for generation, has_kept in ((7, False), (8, keeps)):
        rejoin(member, generation)
        member.take_assignment(keeps=has_kept)
    assert member.commits_as(NOW, has_waited=False, is_departed=False) == sender
    assert member.commits_as(NOW, has_waited=True, is_departed=False) == Identity("m-1", 8)


def test_what_was_lost_cannot_have_been_kept() -> None:
    member = holding(7)
    member.enter(MemberState.PREPARING)
    member.lose_generation(Interruption.LOST_GENERATION)
    member.enter(MemberState.UNJOINED)
    rejoin(member, 8)
    member.take_assignment(keeps=True)
    assert member.commits_as(NOW, has_waited=False, is_departed=False) is None


@pytest.mark.parametrize(
    ("generation", "member_id", "is_next"),
    [(7, "m-1", True), (8, "m-1", True), (9, "m-1", False), (8, "m-2", False)],
)
def test_nobody_else_had_the_partitions_if_no_generation_was_in_between(
    generation: int, member_id: str, is_next: bool
) -> None:
    member = holding(7)
    rejoin(member, generation, member_id)
    assert member.is_of_the_next_generation is is_next
    member.assigned_as = None
    assert not member.is_of_the_next_generation


@pytest.mark.parametrize("is_cooperative", [False, True])
def test_only_a_cooperative_member_hands_out_while_it_rebalances(is_cooperative: bool) -> None:
    member = Member("g", is_cooperative=is_cooperative)
    assert not member.delivers
    rejoin(member, 7)
    assert not member.delivers
    member.take_assignment()
    assert member.delivers
    steps: tuple[Callable[[], object], ...] = (
        lambda: member.enter(MemberState.PREPARING),
        member.begin_rebalance,
        lambda: member.take_generation(NOW, protocol_name="range", leader_id=""),
    )
    for step in steps:
        step()
        assert member.delivers is is_cooperative
    member.enter(MemberState.LEAVING)
    assert not member.delivers


def test_why_partitions_are_lost_is_told_by_what_is_known() -> None:
    member = holding()
    member.lose_generation(Interruption.LOST_GENERATION)
    assert str(member.why_lost()) == str(errors.CommitFailedError())
    member.lose_generation(Interruption.LOST_GENERATION, "the loop was blocked")
    assert str(member.why_lost()) == "CommitFailedError: the loop was blocked"
    member.lose_membership(Interruption.POLL_INTERVAL_EXCEEDED, "away")
    assert isinstance(member.why_lost(), errors.MaxPollIntervalError)
    assert "away, so the partitions were revoked" in str(member.why_lost())
    member.lose_membership(Interruption.FENCED)
    assert isinstance(member.why_lost(), errors.FencedInstanceIdError)


def test_a_commit_of_what_was_given_up_is_of_the_generation_that_it_was_made_in() -> None:
    member = holding()
    assert member.commits_as(NOW, has_waited=False, is_departed=True) == NOW
    assert member.commits_as(Identity("m-1", 6), has_waited=True, is_departed=True) is None


@pytest.mark.parametrize(
    ("kept", "made_as", "sender"),
    [
        ([TP], Identity("m-1", 7), Identity("m-1", 8)),
        ([], Identity("m-1", 7), None),
        ([TP], Identity("m-1", 6), None),
        ([TP], Identity("m-0", 7), None),
    ],
)
def test_what_was_given_up_goes_over_to_the_generation_in_which_it_was_kept(
    kept: list[TopicPartition], made_as: Identity, sender: Identity | None
) -> None:
    member = holding()
    member.enter(MemberState.PREPARING)
    member.begin_rebalance()
    assert member.takes_commits(is_departed=True)
    assert not member.takes_commits(is_departed=True, was_put_off=True)
    member.take_generation(Identity("m-1", 8), protocol_name="range", leader_id="m-1")
    assert not member.takes_commits(is_departed=True)
    assert member.commits_as(made_as, has_waited=True, is_departed=True) is None
    assert not member.has_kept(TP, made_as)  # as far as is known by now
    assert member.has_kept(TP, member.identity)
    member.end_rebalance(kept)
    assert member.takes_commits(is_departed=True)
    assert member.commits_as(made_as, has_waited=True, is_departed=True) == sender
    assert member.has_kept(TP, made_as) is bool(kept)
    assert not member.takes_commits()


def test_nothing_is_committed_between_two_assignments() -> None:
    member = holding()
    assert member.takes_commits()
    for state in (MemberState.PREPARING, MemberState.JOINING):
        member.enter(state)
    assert not member.takes_commits()
    member.take_generation(Identity("m-1", 8), protocol_name="range", leader_id="m-1")
    assert not member.takes_commits()
    assert member.commits_as(NOW, has_waited=True, is_departed=False) is None
    member.take_assignment()
    assert member.takes_commits()


def test_a_commit_that_was_put_off_waits_until_its_rebalance_is_over() -> None:
    member = holding()
    assert member.takes_commits(was_put_off=True)
    assert not member.note_refusal(NOW, errors.RebalanceInProgressError())
    assert member.takes_commits()
    assert not member.takes_commits(was_put_off=True)
    member.enter(MemberState.PREPARING)
    assert not member.takes_commits(was_put_off=True)
    member.begin_rebalance()
    member.enter(MemberState.LEAVING)
    assert member.takes_commits(was_put_off=True)
    assert member.takes_commits(is_departed=True, was_put_off=True)


@for_each(
    [
        (NOW, errors.UnknownMemberIdError(), True),
        (NOW, errors.IllegalGenerationError(), True),
        (NOW, errors.RebalanceInProgressError(), False),
        (NOW, errors.NotCoordinatorError(), False),
        (Identity("m-1", 6), errors.UnknownMemberIdError(), False),
    ]
)
def test_a_refusal_tells_whether_the_partitions_are_lost(
    sent_as: Identity, error: KafkaError, is_lost: bool
) -> None:
    member = holding()
    assert member.note_refusal(sent_as, error) is is_lost
    member = holding()
    member.enter(MemberState.PREPARING)  # it holds nothing any more
    assert not member.note_refusal(sent_as, error)


def test_a_new_generation_forgets_what_was_said_of_the_old_one() -> None:
    member = joined()
    member.interrupt(member.identity, Interruption.GROUP_REBALANCES)
    member.enter(MemberState.PREPARING)
    member.enter(MemberState.JOINING)

    member.take_generation(Identity("m-1", 2), protocol_name="range", leader_id="other")

    assert member.interruption is None
    assert not member.is_leader
    assert member.state is MemberState.SYNCING
