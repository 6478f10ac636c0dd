"""The parts of a KIP-848 membership that do no I/O."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite import errors
from aiokafka_lite.broker.groups.kip848 import re2
from aiokafka_lite.consumer.config import ConsumerConfig
from aiokafka_lite.consumer.membership.kip848.heartbeat import (
    UNSETTLED_FOR_S,
    HeartbeatSchedule,
    Subscription,
    as_re2,
    identity_in,
)
from aiokafka_lite.consumer.membership.kip848.member import (
    LEGAL_TRANSITIONS,
    ConsumerMember,
    MemberState,
    PartitionId,
    difference,
    new_member_id,
)
from aiokafka_lite.consumer.membership.protocol import Identity
from aiokafka_lite.consumer.membership.recovery import Interruption
from aiokafka_lite.errors import IllegalStateError, MaxPollIntervalError
from aiokafka_lite.protocol.messages.group_members import (
    Assignment,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from aiokafka_lite.structs import TopicPartition
from tests.support.for_each import for_each
from tests.support.pulses import Topics
from tests.support.waiting import is_woken

T, U = bytes([1]) * 16, bytes([2]) * 16
NAMES = {T: "t", U: "u"}


def joined(epoch: int = 3) -> ConsumerMember:
    """A member that has just been let in."""
    member = ConsumerMember("g")
    member.enter(MemberState.JOINING)
    identity = Identity(member.identity.member_id, epoch)
    assert member.take_answer(member.identity, identity, frozenset())
    return member


# --- The member -------------------------------------------------------------------------------
def test_every_state_is_in_the_table_and_reaches_the_end() -> None:
    assert set(LEGAL_TRANSITIONS) == set(MemberState)
    for state in set(MemberState) - {MemberState.LEFT}:
        reached = {state}
        while more := {to for each in reached for to in LEGAL_TRANSITIONS[each]} - reached:
            reached |= more
        assert MemberState.LEFT in reached


def test_an_illegal_step_is_refused() -> None:
    with pytest.raises(IllegalStateError, match="UNJOINED to STABLE"):
        ConsumerMember("g").enter(MemberState.STABLE)


def test_ids_are_as_kafkas_own_client_makes_them() -> None:
    ids = {new_member_id() for _ in range(50)}
    assert len(ids) == 50
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{22}", each) for each in ids)


def test_a_member_keeps_the_id_that_it_is_known_by() -> None:
    assert ConsumerMember("g", member_id="me").identity == Identity("me")
    assert len(ConsumerMember("g").identity.member_id) == 22


def test_a_member_is_stable_once_it_holds_what_it_was_given() -> None:
    member = ConsumerMember("g")
    member.reconciled(is_done=True)
    assert member.state is MemberState.UNJOINED
    member = joined()
    for is_done, state in [
        (True, MemberState.STABLE),
        (True, MemberState.STABLE),
        (False, MemberState.RECONCILING),
        (False, MemberState.RECONCILING),
    ]:
        member.reconciled(is_done=is_done)
        assert member.state is state
    member.enter(MemberState.LEAVING)
    member.reconciled(is_done=False)
    assert member.state is MemberState.LEAVING


def test_a_commit_goes_along_with_the_epoch_of_its_member() -> None:
    member = joined(3)
    made_as = member.identity
    other = made_as._replace(member_id="other")
    assert member.commits_as(other, has_waited=False, is_departed=False) is None
    member.take_answer(made_as, made_as._replace(generation=5), None)
    commits_as = member.commits_as(made_as, has_waited=False, is_departed=False)
    assert commits_as == made_as._replace(generation=5)
    assert member.has_kept(TopicPartition("t", 0), made_as)
    assert member.takes_commits(was_put_off=True)


@pytest.mark.parametrize("is_departed", [False, True])
@pytest.mark.parametrize("epoch", [2, 3, 4])  # a coordinator may have lost the latest one
def test_a_commit_does_not_outlive_its_membership(epoch: int, is_departed: bool) -> None:
    member = joined(3)
    made_as = member.identity
    assert member.drop(made_as, Interruption.LOST_GENERATION)
    assert member.commits_as(made_as, has_waited=False, is_departed=is_departed) is None
    member.enter(MemberState.UNJOINED)
    member.enter(MemberState.JOINING)
    again = member.identity._replace(generation=epoch)
    assert member.take_answer(member.identity, again, frozenset())
    assert member.commits_as(made_as, has_waited=False, is_departed=is_departed) is None
    assert member.commits_as(again, has_waited=False, is_departed=is_departed) == again


def test_an_answer_to_another_identity_is_no_news() -> None:
    member = joined(3)
    before = member.identity
    member.take_answer(before, before._replace(generation=4), None)
    assert not member.take_answer(before, before._replace(generation=9), None)
    assert not member.drop(before, Interruption.LOST_MEMBERSHIP)
    assert member.identity.generation == 4
    assert member.state is MemberState.RECONCILING


def test_a_late_answer_to_a_membership_that_ended_is_no_news() -> None:
    member = joined(3)
    before = member.identity
    assert member.drop(before, Interruption.LOST_GENERATION)
    member.enter(MemberState.UNJOINED)
    member.enter(MemberState.JOINING)
    now = member.identity._replace(generation=3)
    assert member.take_answer(member.identity, now, None)
    assert not member.take_late_answer(before._replace(generation=4), frozenset())
    assert member.identity == now
    assert member.take_late_answer(now._replace(generation=4), None)


def test_what_is_heard_of_a_member_that_does_not_want_to_be_one_is_no_news() -> None:
    member = ConsumerMember("g")
    now = member.identity
    assert not member.take_answer(now, now._replace(generation=4), frozenset())
    assert not member.drop(now, Interruption.LOST_MEMBERSHIP)
    member.enter(MemberState.LEAVING)
    assert not member.take_answer(now, now._replace(generation=4), frozenset())
    assert (member.identity, member.state) == (now, MemberState.LEAVING)


def test_a_late_answer_counts_if_it_is_of_this_member_and_not_of_an_earlier_epoch() -> None:
    member = joined(3)
    now = member.identity
    assert not member.take_late_answer(now._replace(generation=2), ids(T, 0))
    assert not member.take_late_answer(Identity("other", 4), ids(T, 0))
    assert member.target == frozenset()
    assert member.take_late_answer(now, ids(T, 0))
    assert member.target == ids(T, 0)
    assert member.take_late_answer(now._replace(generation=4), None)
    assert (member.identity.generation, member.target) == (4, ids(T, 0))
    assert member.drop(member.identity, Interruption.LOST_GENERATION)
    assert not member.take_late_answer(now._replace(generation=5), ids(T, 0))


@pytest.mark.parametrize(
    ("loss", "keeps_id"),
    [(Interruption.LOST_GENERATION, True), (Interruption.LOST_MEMBERSHIP, False)],
)
def test_a_member_that_is_dropped_keeps_its_id_if_the_coordinator_knows_that(
    loss: Interruption, keeps_id: bool
) -> None:
    member = joined(3)
    now = member.identity
    assert member.drop(now, loss)
    assert member.state is MemberState.DROPPED
    assert (member.identity.member_id == now.member_id) is keeps_id
    assert not member.is_member


async def test_whatever_a_member_hears_wakes_those_who_wait_for_it() -> None:
    member = joined(3)
    changes: tuple[Callable[[], object], ...] = (
        lambda: member.note_refusal(member.identity, errors.StaleMemberEpochError("no")),
        lambda: member.take_answer(member.identity, Identity("m", 4), None),
        lambda: member.enter(MemberState.LEAVING),
        lambda: member.drop(member.identity, Interruption.LOST_GENERATION),
    )
    for change in changes:
        assert await is_woken(member, change)
    assert member.state is MemberState.LEAVING  # it is dropped all the same


def test_a_stale_epoch_is_no_loss_and_calls_for_a_heartbeat() -> None:
    member = joined()
    earlier = member.identity._replace(generation=2)
    assert not member.note_refusal(earlier, errors.StaleMemberEpochError("no"))
    assert not member.is_epoch_stale
    assert not member.note_refusal(member.identity, errors.StaleMemberEpochError("no"))
    assert member.is_epoch_stale
    assert member.is_member
    assert member.take_answer(member.identity, member.identity, None)
    assert not member.is_epoch_stale
    assert not member.note_refusal(member.identity, errors.NotCoordinatorError("no"))
    assert member.is_member
    assert member.note_refusal(member.identity, errors.UnknownMemberIdError("no"))
    assert member.assigned_as is None
    assert "UnknownMemberIdError" in str(member.why_lost())


def test_who_was_away_too_long_is_told_so() -> None:
    member = joined()
    member.note_loss(
        Interruption.POLL_INTERVAL_EXCEEDED, "the application requested no records for 9 s"
    )
    member.reset(keeps_id=True)
    assert isinstance(member.why_lost(), MaxPollIntervalError)
    member.note_loss(Interruption.FENCED, "")
    assert isinstance(member.why_lost(), errors.FencedInstanceIdError)


# --- The way to the target --------------------------------------------------------------------
def ids(topic_id: bytes, *numbers: int) -> frozenset[PartitionId]:
    return frozenset(PartitionId(topic_id, number) for number in numbers)


PARTITIONS = st.frozensets(
    st.builds(PartitionId, st.sampled_from([T, U]), st.integers(0, 3)), max_size=6
)


def id_of(name: str) -> bytes | None:
    return next((each for each, known in NAMES.items() if known == name), None)


@given(target=PARTITIONS, held=PARTITIONS)
def test_steps_lead_to_the_target(
    target: frozenset[PartitionId], held: frozenset[PartitionId]
) -> None:
    has = {each: TopicPartition(NAMES[each.topic_id], each.number) for each in held}
    step = difference(target, has, NAMES, id_of)
    assert step.to_revoke.keys() == held - target
    assert step.to_assign.keys() == target - held
    has = {each: tp for each, tp in has.items() if each not in step.to_revoke}
    assert difference(target, {**has, **step.to_assign}, NAMES, id_of).is_empty


def test_nothing_said_changes_nothing_and_nothing_given_changes_all() -> None:
    held = {PartitionId(T, 0): TopicPartition("t", 0)}
    assert difference(None, held, NAMES, id_of).is_empty
    assert difference(frozenset(), held, NAMES, id_of).to_revoke == held


def test_a_topic_that_was_made_anew_is_taken_when_the_former_is_gone() -> None:
    held = {PartitionId(U, 0): TopicPartition("t", 0)}
    step = difference(ids(T, 0), held, {T: "t"}, {"t": T}.get)
    assert step.to_revoke == held
    assert not step.to_assign
    assert difference(ids(T, 0), {}, {T: "t"}, {"t": T}.get).to_assign == {
        PartitionId(T, 0): TopicPartition("t", 0)
    }


def test_what_is_held_of_a_former_topic_goes_though_the_coordinator_has_not_heard_of_it() -> None:
    held = {PartitionId(U, 0): TopicPartition("t", 0)}
    step = difference(ids(U, 0), held, {T: "t"}, {"t": T}.get)
    assert step.to_revoke == held
    assert not step.to_assign
    step = difference(ids(U, 0), {}, {T: "t"}, {"t": T}.get)
    assert step.unknown == {U}
    assert not step.is_empty


def test_a_topic_without_a_name_does_not_keep_the_others_from_being_taken() -> None:
    step = difference(ids(T, 0) | ids(U, 0), {}, {U: "u"}, id_of)
    assert step.to_assign == {PartitionId(U, 0): TopicPartition("u", 0)}
    assert step.unknown == {T}
    assert not step._replace(unknown=frozenset()).is_empty


# --- Heartbeats -------------------------------------------------------------------------------
def answer(
    *, interval_ms: int = 5000, throttled_ms: int = 0, assigned: Assignment | None = None
) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        member_epoch=3,
        heartbeat_interval_ms=interval_ms,
        throttle_time_ms=throttled_ms,
        assignment=assigned,
    )


@for_each(
    [
        (3000, 5000, 0, 0.25, 1.0),
        (200, 5000, 0, 0.2, 0.2),
        (9000, 5000, 0, 0.25, 5.0),
        (3000, 5000, 1, 5.0, 5.0),
        (9000, 4000, 0, 0.25, 4.0),
        (9000, 1, 0, 0.001, 0.001),
        (9000, 0, 0, 0.25, 5.0),  # none is named
    ]
)
def test_the_pace(
    interval_ms: int, brokers_ms: int, throttled_ms: int, unsettled_s: float, settled_s: float
) -> None:
    member = joined()
    beats = HeartbeatSchedule(ConsumerConfig(heartbeat_interval_ms=interval_ms), member, Topics())
    said = beats.next(Subscription(frozenset({"t"})), {})
    answered = answer(interval_ms=brokers_ms, throttled_ms=throttled_ms)
    beats.answered(said, answered, 0.0)
    beats.note_change(100.0)
    late = 100.0 + UNSETTLED_FOR_S
    assert beats.interval_s(late) == unsettled_s  # it is reconciling
    member.reconciled(is_done=True)
    assert beats.interval_s(101.0) == unsettled_s
    assert beats.interval_s(late) == settled_s


@for_each(
    [
        (6, 6, 0.25),
        (12, 24, 0.25),
        (6, 24, 0.4),
        (3, 24, 0.8),
        (1, 24, 1.0),
        (0, 4, 0.4),
        (6, 0, 1),
    ],
    ["alone", "two", "four", "eight", "many", "more_members_than_partitions", "not_known"],
)
def test_members_of_a_group_send_ten_heartbeats_a_second_together_and_none_less_than_one(
    own: int, of: int, settled_s: float
) -> None:
    member = joined()
    beats = HeartbeatSchedule(ConsumerConfig(), member, Topics(of))
    member.take_answer(member.identity, member.identity, ids(T, *range(own)))
    member.reconciled(is_done=True)
    assert beats.interval_s(100.0) == pytest.approx(settled_s)


def test_a_heartbeat_says_all_when_there_is_something_new_and_after_one_that_failed() -> None:
    beats = HeartbeatSchedule(ConsumerConfig(), joined(), Topics())
    wish = Subscription(frozenset({"t"}))

    def is_full(wish: Subscription = wish) -> bool:
        has_news = beats.has_news(wish)
        said = beats.next(wish, {})
        beats.answered(said, answer(), 0.0)
        assert (said.request.topic_partitions is not None) is has_news
        return has_news

    assert [is_full(), is_full()] == [True, False]
    beats.note_change(0.0)
    assert [is_full(), is_full()] == [True, False]
    beats.note_failure()
    assert [is_full(), is_full()] == [True, False]
    assert [is_full(Subscription(regex="t")), is_full(Subscription(regex="t"))] == [True, False]
    beats.forget()
    assert beats.told_subscription is None
    assert [is_full(wish), is_full(wish)] == [True, False]


def test_a_change_while_a_heartbeat_is_on_its_way_is_told_by_the_next() -> None:
    beats = HeartbeatSchedule(ConsumerConfig(), joined(), Topics())
    wish = Subscription(frozenset({"t"}))
    said = beats.next(wish, {})
    beats.note_change(0.0)
    beats.answered(said, answer(), 0.0)
    assert beats.has_news(wish)


def test_an_assignment_is_confirmed_once() -> None:
    beats = HeartbeatSchedule(ConsumerConfig(), joined(), Topics())
    wish = Subscription(frozenset({"t"}))

    def answered(*numbers: int) -> None:
        topic = TopicPartitions(topic_id=T, partitions=list(numbers))
        assigned = Assignment(topic_partitions=[topic])
        beats.answered(beats.next(wish, {}), answer(assigned=assigned), 0.0)

    def confirms(now: float) -> bool:
        before = beats.next(wish, {}).change_count
        beats.confirm(now)
        return beats.next(wish, {}).change_count != before

    assert not confirms(0.0)
    answered(0)
    assert confirms(100.0)
    assert beats.has_news(wish)
    assert beats.interval_s(101.0) == 0.25
    assert not confirms(100.0)
    answered(0)  # as before
    assert not confirms(0.0)
    answered(0, 1)
    beats.answered(beats.next(wish, {}), answer(), 0.0)  # a brief one says nothing of it
    assert confirms(0.0)
    beats.answered(beats.next(wish, {}), answer(), 0.0)
    answered(0)
    beats.note_change(0.0)
    assert not confirms(0.0)
    answered(2)
    beats.note_failure()
    beats.answered(beats.next(wish, {}), answer(), 0.0)  # a full one has said what is owned
    assert not confirms(0.0)
    beats.forget()
    answered(2)
    assert confirms(0.0)


@pytest.mark.parametrize("epoch", [0, 2])
def test_an_epoch_that_goes_back_makes_no_sense(epoch: int) -> None:
    beats = HeartbeatSchedule(ConsumerConfig(), joined(3), Topics())
    said = beats.next(Subscription(frozenset({"t"})), {})
    with pytest.raises(errors.KafkaProtocolError):
        beats.answered(said, ConsumerGroupHeartbeatResponse(member_epoch=epoch), 0.0)
    assert said.change_count is not None
    assert beats.told_subscription is None


@pytest.mark.parametrize(("named", "known_as"), [(None, "me"), ("", "me"), ("you", "you")])
def test_a_member_is_known_by_the_id_in_the_answer_if_there_is_one(
    named: str | None, known_as: str
) -> None:
    answered = ConsumerGroupHeartbeatResponse(member_id=named, member_epoch=1)
    assert identity_in(answered, Identity("me"), 0) == Identity(known_as, 1)


def test_a_full_heartbeat_says_what_the_consumer_is_and_where() -> None:
    member = ConsumerMember("g", "one")
    config = ConsumerConfig(
        client_rack="r", group_remote_assignor="range", rebalance_timeout_ms=7000
    )
    beats = HeartbeatSchedule(config, member, Topics())
    request = beats.next(Subscription(regex="(?:t).*"), {}).request
    assert (request.rack_id, request.server_assignor) == ("r", "range")
    assert (request.rebalance_timeout_ms, request.instance_id) == (7000, "one")
    assert (request.subscribed_topic_names, request.subscribed_topic_regex) == ([], "(?:t).*")
    assert request.topic_partitions == []


def test_an_expression_that_was_told_is_taken_back() -> None:
    member = joined()
    beats = HeartbeatSchedule(ConsumerConfig(), member, Topics())
    first = beats.next(Subscription(frozenset({"t"})), {})
    assert first.request.subscribed_topic_regex is None  # which the first version cannot say
    beats.answered(beats.next(Subscription(regex="t"), {}), answer(), 0.0)
    assert beats.next(Subscription(frozenset({"t"})), {}).request.subscribed_topic_regex == ""


def test_a_member_that_leaves_says_whether_it_will_be_back() -> None:
    assert (
        HeartbeatSchedule(ConsumerConfig(), ConsumerMember("g"), Topics()).leave().member_epoch
        == -1
    )
    static = HeartbeatSchedule(ConsumerConfig(), ConsumerMember("g", "one"), Topics())
    assert static.leave().member_epoch == -2
    assert static.leave(for_good=True).member_epoch == -1


# --- Patterns ---------------------------------------------------------------------------------
ALIKE = [
    "orders", "orders-.*", "^orders$", "a|b", "(a|b)c", "(?:a|b)+x", "[a-c]x?", "[^a]b", r"a\.b",
    r"a\d{2,3}", "(?i)orders", r"\w+-x", "a{2}", "x.*?y", "", "a{0,2}b{10}", "a{0,}x",
]  # fmt: skip
NOT_ALIKE = [
    "a(?!b)", "a(?=b)", "(?<!a)b", r"(a)\1", "(?P<n>a)", r"\Za", "(?s)a", "(?x)a b", "a{,2}",
    "é", "a{02}", "a{0,01}", "[%--]",
]  # fmt: skip
TOPICS = ["orders", "orders-1", "ORDERS", "a", "ab", "abc", "b", "bc", "aa", "a.b", "axb", "a12x",
          "x-x", "xy", "xzzy", "bx", "cx", "abababx", "zb", "-"]  # fmt: skip


@for_each(ALIKE)
def test_the_broker_matches_what_the_consumer_would(pattern: str) -> None:
    ours = re.compile(pattern)
    theirs = as_re2(ours, exclude_internal_topics=False)
    assert theirs is not None
    compiled = re2.compile(theirs)
    for topic in TOPICS:
        assert compiled.matches(topic) == bool(ours.match(topic)), topic


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of a later Python's sets
@for_each(NOT_ALIKE)
def test_what_brokers_read_otherwise_stays_here(pattern: str) -> None:
    assert as_re2(re.compile(pattern), exclude_internal_topics=False) is None


@pytest.mark.parametrize("flags", [re.DOTALL, re.VERBOSE, re.IGNORECASE | re.ASCII])
def test_a_pattern_with_flags_that_brokers_do_not_know_stays_here(flags: re.RegexFlag) -> None:
    assert as_re2(re.compile("a b", flags), exclude_internal_topics=False) is None


def test_a_pattern_that_ignores_case_is_matched_so_by_the_broker() -> None:
    ours = re.compile("orders", re.IGNORECASE)
    assert as_re2(ours, exclude_internal_topics=True) == "(?i)(?:orders).*"


def test_what_would_match_brokers_own_topics_stays_here() -> None:
    assert as_re2(re.compile(".*"), exclude_internal_topics=True) is None
    assert as_re2(re.compile(".*"), exclude_internal_topics=False) == "(?:.*).*"


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of a later Python's sets
@given(
    st.text(alphabet="ab.|()[]^$*+?{}0123-\\dwx_", max_size=8),
    st.lists(st.text(alphabet="ab-_.01x", min_size=1, max_size=6), max_size=5),
)
def test_whatever_is_passed_on_is_read_alike(pattern: str, topics: list[str]) -> None:
    try:
        ours = re.compile(pattern)
    except re.error:
        return
    theirs = as_re2(ours, exclude_internal_topics=False)
    if theirs is None:
        return
    try:
        compiled = re2.compile(theirs)
    except re2.RegexError:
        return  # the coordinator refuses it, and it is matched here
    for topic in topics:
        assert compiled.matches(topic) == bool(ours.match(topic))
