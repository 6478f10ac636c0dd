"""The classic group's state machine, with invented time."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.groups.classic import machine
from aiokafka_lite.broker.groups.classic.machine import LEGAL_TRANSITIONS, ClassicGroup, GroupState
from aiokafka_lite.errors import (
    CoordinatorNotAvailableError,
    FencedInstanceIdError,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    KafkaStorageError,
    MemberIdRequired,
    NoError,
    NotCoordinatorError,
    RebalanceInProgressError,
    UnknownError,
    UnknownMemberIdError,
)
from aiokafka_lite.protocol.messages.coordinator_records import GroupMetadataValue
from aiokafka_lite.protocol.messages.group_members import JoinGroupResponseMember
from tests.broker.groups.classic.machine import REBALANCE_MS, SESSION_MS, Driver
from tests.broker.groups.fakes import leaver
from tests.support.for_each import for_each

EMPTY = GroupState.EMPTY
PREPARING = GroupState.PREPARING_REBALANCE
COMPLETING = GroupState.COMPLETING_REBALANCE
STABLE = GroupState.STABLE
DEAD = GroupState.DEAD
BOTH = (("range", b"r"), ("roundrobin", b"rr"))


@pytest.fixture
def driver() -> Driver:
    return Driver()


# -- the table ------------------------------------------------------------


def test_table_names_every_state_and_dead_is_final() -> None:
    assert set(LEGAL_TRANSITIONS) == set(GroupState)
    assert LEGAL_TRANSITIONS[DEAD] == frozenset()
    assert all(DEAD in targets for state, targets in LEGAL_TRANSITIONS.items() if state is not DEAD)


@for_each(itertools.product(GroupState, GroupState))
def test_only_legal_transitions_are_made(start: GroupState, target: GroupState) -> None:
    driver = Driver()
    driver.group.state = start
    if target in LEGAL_TRANSITIONS[start]:
        driver.group._transition(target)
        assert driver.group.state is target
    else:
        with pytest.raises(AssertionError, match="cannot change"):
            driver.group._transition(target)
        assert driver.group.state is start


def test_life_of_a_group_passes_through_the_states(driver: Driver) -> None:
    [member_id] = driver.stable()
    assert driver.leave(leaver(member_id)) == [NoError]
    driver.run(driver.group.die)
    assert driver.states == [EMPTY, PREPARING, COMPLETING, STABLE, EMPTY, DEAD]


# -- joining ------------------------------------------------------------


def test_first_join_asks_for_the_member_id(driver: Driver) -> None:
    answer = driver.joins[driver.join(needs_known_member_id=True)]
    assert (answer.error_code, answer.member_id, answer.generation_id) == (
        MemberIdRequired.errno,
        "c-id1",
        -1,
    )
    assert driver.state is EMPTY


def test_old_clients_join_without_a_known_id(driver: Driver) -> None:
    ticket = driver.join(needs_known_member_id=False)
    driver.advance(0)
    assert driver.joins[ticket].error_code == NoError.errno


def test_sole_member_leads_and_gets_the_member_list(driver: Driver) -> None:
    member_id = driver.new_id()
    ticket = driver.join(member_id, protocols=BOTH)
    assert ticket not in driver.joins
    assert driver.state is PREPARING
    driver.advance(0)
    answer = driver.joins[ticket]
    assert answer.generation_id == 1
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
    assert answer.leader == answer.member_id == member_id
    assert answer.members == [JoinGroupResponseMember(member_id=member_id, metadata=b"r")]
    assert driver.state is COMPLETING


def test_followers_get_no_member_list(driver: Driver) -> None:
    first, second = driver.join(), driver.join()
    driver.advance(0)
    assert len(driver.joins[first].members) == 2
    assert driver.joins[second].members == []
    assert driver.joins[second].leader == driver.joins[first].member_id


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("", (("range", b""),)), ("consumer", ())],
    ids=["no type", "no protocols"],
)
def test_join_without_protocol_is_inconsistent(
    driver: Driver, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]
) -> None:
    ticket = driver.join(protocol_type=protocol_type, protocols=protocols)
    assert driver.joins[ticket].error_code == InconsistentGroupProtocolError.errno


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("connect", (("range", b""),)), ("consumer", (("sticky", b""),))],
    ids=["other type", "nothing in common"],
)
def test_join_that_fits_no_other_member_is_inconsistent(
    driver: Driver, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]
) -> None:
    driver.stable()
    ticket = driver.join(protocol_type=protocol_type, protocols=protocols)
    assert driver.joins[ticket].error_code == InconsistentGroupProtocolError.errno
    assert driver.state is STABLE


def test_rebalance_whose_members_all_left_takes_any_protocol(driver: Driver) -> None:
    (first,) = driver.stable()
    pending = driver.new_id()
    second = driver.join()
    driver.leave(leaver(first))
    (second_id,) = [member.member_id for member in driver.group.members.values()]
    driver.leave(leaver(second_id))
    assert driver.joins[second].error_code == UnknownMemberIdError.errno
    assert (driver.state, len(driver.group.members)) == (GroupState.PREPARING_REBALANCE, 0)
    joined = driver.joins[driver.join(pending, protocols=[("of-nobody-before", b"")])]
    assert (joined.error_code, joined.protocol_name) == (0, "of-nobody-before")


@for_each(itertools.product(range(40), [0, 3_000]))
def test_join_is_inconsistent_when_kafka_would_say_so(seed: int, delay_ms: int) -> None:
    """Random groups of members that come, ask for ids, leave and fall silent."""
    random = Random(seed)
    driver = Driver(BrokerConfig(group_initial_rebalance_delay_ms=delay_ms))
    group, ids = driver.group, [""]
    for _ in range(60):
        step = random.random()
        if step < 0.5:
            protocol_type = random.choice(["consumer", "consumer", "consumer", "connect"])
            names = random.sample(["a", "b", "c"], random.randint(0, 3))
            is_consistent = supports_as_kafka(group, protocol_type, names)
            member_id = random.choice(ids)
            ticket = driver.join(
                member_id,
                protocol_type=protocol_type,
                protocols=[(name, b"") for name in names],
                needs_known_member_id=random.random() < 0.5,
            )
            answer = driver.joins.get(ticket)
            is_refused = (
                answer is not None and answer.error_code == InconsistentGroupProtocolError.errno
            )
            assert is_refused is not is_consistent
            if answer is not None and answer.error_code == MemberIdRequired.errno:
                ids.append(answer.member_id)
        elif step < 0.75:
            known = [member.member_id for member in group.members.values()] or ids
            driver.leave(leaver(random.choice(known)))
        else:
            driver.advance(random.choice([0.5, 5, 20]))
        ids = ["", *ids[-3:], *(member.member_id for member in group.members.values())]


def supports_as_kafka(group: ClassicGroup, protocol_type: str, names: Sequence[str]) -> bool:
    """Apply the rule of Kafka's ClassicGroup.supportsProtocols."""
    if group.state is GroupState.EMPTY:
        return bool(protocol_type and names)
    counts = Counter(name for member in group.members.values() for name, _ in member.protocols)
    of_all = any(counts[name] == len(group.members) for name in names)
    return protocol_type == group.protocol_type and of_all


def test_members_vote_among_common_protocols(driver: Driver) -> None:
    tickets = [
        driver.join(protocols=(("only-mine", b""), ("a", b""), ("b", b""))),
        driver.join(protocols=(("b", b""), ("a", b""))),
        driver.join(protocols=(("b", b""), ("a", b""))),
    ]
    driver.advance(0)
    assert {driver.joins[ticket].protocol_name for ticket in tickets} == {"b"}


def test_join_with_an_unknown_id_is_refused(driver: Driver) -> None:
    driver.stable()
    assert driver.joins[driver.join("nobody")].error_code == UnknownMemberIdError.errno


def test_pending_id_does_not_serve_a_static_member(driver: Driver) -> None:
    member_id = driver.new_id()
    assert driver.joins[driver.join(member_id, instance_id="i")].error_code == UnknownError.errno


def test_pending_id_is_forgotten_after_the_session_timeout(driver: Driver) -> None:
    member_id = driver.new_id()
    driver.advance(SESSION_MS / 1000 + 1)
    assert driver.joins[driver.join(member_id)].error_code == UnknownMemberIdError.errno


def test_pending_id_that_is_forgotten_changes_nothing_in_a_stable_group(driver: Driver) -> None:
    (old,) = driver.stable()
    driver.new_id()
    for _ in range(3):
        driver.advance(4)
        assert driver.heartbeat(old) is NoError
    assert driver.state is STABLE


def test_pending_id_that_is_forgotten_does_not_end_the_initial_delay() -> None:
    driver = Driver(BrokerConfig(group_initial_rebalance_delay_ms=8_000))
    driver.new_id()
    ticket = driver.join()
    driver.advance(7)
    driver.join()
    driver.advance(8)  # the id is forgotten, the delay was prolonged
    assert ticket not in driver.joins
    driver.advance(1)
    assert driver.joins[ticket].generation_id == 1


def test_rebalance_waits_for_pending_members(driver: Driver) -> None:
    [old] = driver.stable()
    new = driver.new_id()
    rejoin = driver.join(old)
    assert rejoin not in driver.joins
    fresh = driver.join(new)
    assert driver.joins[rejoin].generation_id == driver.joins[fresh].generation_id == 2


def test_pending_member_that_never_returns_holds_the_rebalance_for_its_session_only(
    driver: Driver,
) -> None:
    [old] = driver.stable()
    driver.new_id()
    rejoin = driver.join(old)
    driver.advance(SESSION_MS / 1000 - 0.1)
    assert rejoin not in driver.joins
    driver.advance(0.1)
    assert driver.joins[rejoin].generation_id == 2


def test_new_member_in_stable_makes_the_others_rejoin(driver: Driver) -> None:
    [old] = driver.stable()
    fresh = driver.join()
    assert driver.state is PREPARING
    assert driver.heartbeat(old) is RebalanceInProgressError
    rejoin = driver.join(old)
    assert driver.joins[fresh].generation_id == driver.joins[rejoin].generation_id == 2
    assert driver.state is COMPLETING


def test_unchanged_follower_is_answered_without_a_rebalance(driver: Driver) -> None:
    _, follower = driver.stable(2)
    answer = driver.joins[driver.join(follower)]
    assert (answer.error_code, answer.generation_id, answer.members) == (0, 1, [])
    assert driver.state is STABLE


def test_changed_follower_starts_a_rebalance(driver: Driver) -> None:
    _, follower = driver.stable(2)
    ticket = driver.join(follower, protocols=(("range", b"other topics"),))
    assert ticket not in driver.joins
    assert driver.state is PREPARING


def test_leader_that_rejoins_starts_a_rebalance(driver: Driver) -> None:
    leader, _ = driver.stable(2)
    driver.join(leader)
    assert driver.state is PREPARING


def test_unchanged_member_may_ask_again_before_the_assignment(driver: Driver) -> None:
    driver.join()
    driver.advance(0)
    assert driver.state is COMPLETING
    leader = driver.group.members.leader_id
    assert leader is not None
    answer = driver.joins[driver.join(leader)]
    assert (answer.generation_id, len(answer.members)) == (1, 1)
    assert driver.state is COMPLETING


def test_changed_member_before_the_assignment_starts_over(driver: Driver) -> None:
    driver.join()
    driver.advance(0)
    leader = driver.group.members.leader_id
    assert leader is not None
    sync = driver.sync("nobody")
    assert driver.syncs[sync].error_code == UnknownMemberIdError.errno
    ticket = driver.join(leader, protocols=(("range", b"new"),))
    assert driver.joins[ticket].generation_id == 2  # alone, it has all members that there are


def test_join_sent_again_answers_the_older_one(driver: Driver) -> None:
    leader, follower = driver.stable(2)
    first = driver.join(leader)
    again = driver.join(leader)
    assert driver.joins[first].error_code == RebalanceInProgressError.errno
    driver.join(follower)
    assert driver.joins[again].generation_id == 2


# -- the rebalance's timers ------------------------------------------------------------------------


def test_initial_delay_collects_members() -> None:
    driver = Driver(BrokerConfig(group_initial_rebalance_delay_ms=3000))
    first = driver.join()
    driver.advance(2.9)
    second = driver.join()
    driver.advance(0.2)
    assert first not in driver.joins  # the second member has prolonged the delay
    driver.advance(2.8)
    assert first not in driver.joins
    driver.advance(0.1)
    assert driver.joins[first].generation_id == driver.joins[second].generation_id == 1


def test_initial_delay_ends_with_the_rebalance_timeout() -> None:
    driver = Driver(BrokerConfig(group_initial_rebalance_delay_ms=3000))
    first = driver.join(rebalance_ms=5000)
    for _ in range(2):
        driver.advance(2)
        driver.join(rebalance_ms=5000)
        assert first not in driver.joins
    driver.advance(1.1)
    assert driver.joins[first].generation_id == 1


def test_initial_delay_is_not_prolonged_beyond_a_shorter_rebalance_timeout() -> None:
    driver = Driver(BrokerConfig(group_initial_rebalance_delay_ms=3000))
    first, _ = (driver.join(rebalance_ms=2000) for _ in range(2))
    driver.advance(2.9)
    assert first not in driver.joins
    driver.advance(0.1)
    assert driver.joins[first].generation_id == 1


def test_initial_delay_without_newcomers_is_not_prolonged() -> None:
    driver = Driver(BrokerConfig(group_initial_rebalance_delay_ms=3000))
    first = driver.join()
    driver.advance(3)
    assert driver.joins[first].generation_id == 1


def test_members_that_do_not_rejoin_in_time_are_out(driver: Driver) -> None:
    leader, late = driver.stable(2)
    ticket = driver.join(leader)
    for _ in range(10):
        driver.advance(REBALANCE_MS / 10_000)
        driver.heartbeat(late)  # alive, but it does not join
    assert driver.joins[ticket].members == [
        JoinGroupResponseMember(member_id=leader, metadata=b"meta")
    ]
    assert driver.heartbeat(late) is UnknownMemberIdError


def test_leader_that_does_not_rejoin_is_replaced(driver: Driver) -> None:
    leader, follower = driver.stable(2)
    ticket = driver.join(follower, protocols=(("range", b"new"),))
    for _ in range(10):
        driver.advance(REBALANCE_MS / 10_000)
        driver.heartbeat(leader)
    assert driver.joins[ticket].leader == follower


def test_absent_static_members_keep_their_place_until_their_session_ends(driver: Driver) -> None:
    one, two = driver.stable(instances=["one", "two"])
    ticket = driver.join(one, instance_id="one", session_ms=2 * REBALANCE_MS)
    assert ticket not in driver.joins
    driver.group.members[two].session_timeout_ms = 2 * REBALANCE_MS
    driver.group.heartbeat(two, "two", 1)
    driver.advance(REBALANCE_MS / 1000)
    members = driver.joins[ticket].members
    assert [member.member_id for member in members] == [one, two]


def test_first_of_the_static_members_that_are_waited_for_may_go_on_after_another_timeout(
    driver: Driver,
) -> None:
    long_ms = 9 * REBALANCE_MS
    for name in ("one", "two"):
        driver.join(instance_id=name, session_ms=long_ms)
    driver.advance(0)
    for member in list(driver.group.members.values()):
        driver.sync(member.member_id, instance_id=member.instance_id)
    newcomer = driver.join(session_ms=long_ms)
    (member_id,) = [m.member_id for m in driver.group.members.values() if not m.is_static]
    driver.leave(leaver(member_id))
    assert driver.joins[newcomer].error_code == UnknownMemberIdError.errno
    driver.advance(REBALANCE_MS / 1000)  # nobody has joined: it is put off
    two = driver.group.members.static_member_id("two") or ""
    ticket = driver.join(two, instance_id="two", session_ms=long_ms)
    driver.advance(REBALANCE_MS / 1000 - 1)
    assert ticket not in driver.joins
    driver.advance(1)
    assert (driver.joins[ticket].generation_id, driver.joins[ticket].leader) == (2, two)


def test_rebalance_is_put_off_when_only_static_members_are_left_and_none_joined(
    driver: Driver,
) -> None:
    driver.stable(instances=["one", "two"])
    fresh = driver.join()
    for name in ("one", "two"):
        member = driver.group.members[driver.group.members.static_member_id(name) or ""]
        member.session_timeout_ms = 3 * REBALANCE_MS
        driver.group._restart_session(member)
    driver.leave(leaver(driver.group.members.leader_id or ""))
    newcomer = list(driver.group.members.values())[-1].member_id
    driver.leave(leaver(newcomer))
    assert driver.joins[fresh].error_code == UnknownMemberIdError.errno
    driver.advance(REBALANCE_MS / 1000 + 1)
    assert driver.state is PREPARING
    driver.advance(3 * REBALANCE_MS / 1000)
    assert driver.state is EMPTY


# -- sync ------------------------------------------------------------


def test_sync_waits_for_the_leader(driver: Driver) -> None:
    first, second = driver.join(), driver.join()
    driver.advance(0)
    leader, follower = driver.joins[first].member_id, driver.joins[second].member_id
    waiting = driver.sync(follower)
    assert waiting not in driver.syncs
    own = driver.sync(leader, assignments={leader: b"L", follower: b"F"})
    assert driver.syncs[waiting].assignment == b"F"
    assert driver.syncs[own].assignment == b"L"
    assert (driver.syncs[own].protocol_type, driver.syncs[own].protocol_name) == (
        "consumer",
        "range",
    )
    assert driver.writes == [{leader: b"L", follower: b"F"}]
    assert driver.state is STABLE


def test_members_that_the_leader_forgot_get_nothing(driver: Driver) -> None:
    first, second = driver.join(), driver.join()
    driver.advance(0)
    waiting = driver.sync(driver.joins[second].member_id)
    driver.sync(driver.joins[first].member_id, assignments={"stranger": b"x"})
    assert driver.syncs[waiting].assignment == b""
    assert "stranger" not in driver.writes[-1]


def test_sync_in_stable_is_answered_at_once(driver: Driver) -> None:
    _, follower = driver.stable(2)
    assert driver.syncs[driver.sync(follower)].assignment == b"to " + follower.encode()


def test_sync_checks_generation_protocol_and_state(driver: Driver) -> None:
    [member_id] = driver.stable()
    assert (
        driver.syncs[driver.sync(member_id, generation=7)].error_code
        == IllegalGenerationError.errno
    )
    wrong_type = driver.sync(member_id, protocol_type="connect")
    assert driver.syncs[wrong_type].error_code == InconsistentGroupProtocolError.errno
    wrong_name = driver.sync(member_id, protocol="sticky")
    assert driver.syncs[wrong_name].error_code == InconsistentGroupProtocolError.errno
    driver.join()
    assert driver.syncs[driver.sync(member_id)].error_code == RebalanceInProgressError.errno


def test_sync_sent_again_answers_the_older_one(driver: Driver) -> None:
    driver.join()
    second = driver.join()
    driver.advance(0)
    follower = driver.joins[second].member_id
    first = driver.sync(follower)
    again = driver.sync(follower)
    assert driver.syncs[first].error_code == RebalanceInProgressError.errno
    assert again not in driver.syncs


def test_failed_write_of_the_assignment_starts_over(driver: Driver) -> None:
    first = driver.join()
    driver.advance(0)
    leader = driver.joins[first].member_id
    driver.write_error = KafkaStorageError
    ticket = driver.sync(leader, assignments={leader: b"L"})
    assert driver.syncs[ticket].error_code == KafkaStorageError.errno
    assert driver.state is PREPARING
    assert driver.group.members[leader].assignment == b""


def test_members_that_never_sync_are_out_after_the_rebalance_timeout(driver: Driver) -> None:
    first, second = driver.join(), driver.join()
    driver.advance(0)
    leader, silent = driver.joins[first].member_id, driver.joins[second].member_id
    driver.sync(leader, assignments={})
    for _ in range(10):
        assert driver.state is STABLE
        driver.advance(REBALANCE_MS / 10_000)
        driver.heartbeat(leader)
        driver.heartbeat(silent)
    assert driver.state is PREPARING
    assert driver.heartbeat(silent) is UnknownMemberIdError
    assert driver.heartbeat(leader) is RebalanceInProgressError


def test_sync_deadline_is_void_when_the_unsynced_member_has_left(driver: Driver) -> None:
    first, second = driver.join(), driver.join()
    driver.advance(0)
    leader, silent = driver.joins[first].member_id, driver.joins[second].member_id
    driver.sync(leader, assignments={})
    driver.leave(leaver(silent))
    driver.join(leader)
    driver.sync(leader, assignments={})
    for _ in range(11):
        driver.advance(REBALANCE_MS / 10_000)
        driver.heartbeat(leader)
    assert driver.state is STABLE


def test_sync_deadline_is_void_when_a_static_member_has_synced_under_another_id(
    driver: Driver,
) -> None:
    first, _ = driver.join(instance_id="one"), driver.join(instance_id="two")
    driver.advance(0)
    leader = driver.joins[first].member_id
    driver.sync(leader, instance_id="one")
    back = driver.joins[driver.join(instance_id="two")].member_id
    driver.sync(back, instance_id="two")
    for _ in range(11):
        driver.advance(REBALANCE_MS / 10_000)
        assert driver.heartbeat(leader) is driver.heartbeat(back) is NoError
    assert driver.state is STABLE


def test_sync_deadline_is_void_during_the_next_rebalance(driver: Driver) -> None:
    joined = [driver.join(session_ms=3 * REBALANCE_MS) for _ in range(2)]
    driver.advance(0)
    driver.sync(driver.joins[joined[1]].member_id)
    driver.advance(5)
    newcomer = driver.join()
    driver.advance(REBALANCE_MS / 1000 - 1)
    assert newcomer not in driver.joins
    driver.advance(1)
    assert driver.joins[newcomer].generation_id == 2


def test_join_during_sync_sends_the_waiting_back(driver: Driver) -> None:
    driver.join()
    second = driver.join()
    driver.advance(0)
    waiting = driver.sync(driver.joins[second].member_id)
    driver.join()
    assert driver.syncs[waiting].error_code == RebalanceInProgressError.errno
    assert driver.state is PREPARING


@pytest.mark.parametrize("ends_by", ["assignment", "rebalance"])
def test_session_begins_when_a_parked_sync_is_answered(driver: Driver, ends_by: str) -> None:
    tickets = [driver.join(session_ms=4 * SESSION_MS), driver.join()]
    driver.advance(0)
    leader, follower = (driver.joins[ticket].member_id for ticket in tickets)
    waiting = driver.sync(follower)
    driver.advance(2 * SESSION_MS / 1000)
    assert waiting not in driver.syncs
    if ends_by == "assignment":
        driver.sync(leader)
    else:
        driver.join(session_ms=4 * SESSION_MS)
    assert waiting in driver.syncs
    driver.advance(SESSION_MS / 1000 - 1)
    assert driver.group.has_session(follower)
    driver.advance(1)
    assert not driver.group.has_session(follower)


def test_rebalance_does_not_prolong_the_session_of_a_member_that_waits_for_nothing(
    driver: Driver,
) -> None:
    leader, _ = (driver.join(), driver.join())
    driver.advance(9)
    driver.join()
    driver.advance(1)
    assert not driver.group.has_session(driver.joins[leader].member_id)


def test_sync_of_a_member_that_leaves_is_answered(driver: Driver) -> None:
    driver.join()
    second = driver.join()
    driver.advance(0)
    follower = driver.joins[second].member_id
    waiting = driver.sync(follower)
    assert driver.leave(leaver(follower)) == [NoError]
    assert driver.syncs[waiting].error_code == UnknownMemberIdError.errno


# -- sessions ------------------------------------------------------------


def test_silent_member_is_removed_and_the_others_rejoin(driver: Driver) -> None:
    leader, silent = driver.stable(2)
    driver.advance(6)
    assert driver.heartbeat(leader) is NoError
    driver.advance(6)
    assert driver.state is PREPARING
    assert driver.heartbeat(silent) is UnknownMemberIdError


def test_session_begins_when_the_join_is_answered(driver: Driver) -> None:
    driver.join()
    driver.advance(SESSION_MS / 1000 - 1)
    assert driver.state is COMPLETING
    driver.advance(1)
    assert driver.state is EMPTY


def test_group_is_empty_when_the_last_session_ends(driver: Driver) -> None:
    driver.stable()
    driver.advance(SESSION_MS / 1000)
    assert driver.state is EMPTY
    assert driver.group.generation == 2
    assert driver.group.protocol is None
    assert driver.group.protocol_type == "consumer"
    assert driver.group.members.leader_id is None
    assert driver.writes[-1] == {}


def test_heartbeats_and_commits_keep_a_session_alive(driver: Driver) -> None:
    [member_id] = driver.stable()
    for _ in range(4):
        driver.advance(6)
        assert driver.heartbeat(member_id) is NoError
        driver.advance(6)
        assert driver.group.check_commit(member_id, None, 1) is NoError
    assert driver.state is STABLE


def test_parked_join_stands_for_heartbeats(driver: Driver) -> None:
    leader, follower = driver.stable(2)
    ticket = driver.join(leader)
    driver.advance(9)
    driver.heartbeat(follower)
    driver.advance(9)
    assert ticket not in driver.joins
    driver.join(follower)
    assert driver.joins[ticket].generation_id == 2
    assert driver.heartbeat(leader) is NoError


def test_parked_join_of_a_new_member_is_given_up_in_the_end(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "NEW_MEMBER_JOIN_TIMEOUT_S", 5.0)
    [member_id] = driver.stable()
    ticket = driver.join()
    driver.advance(4.9)
    assert ticket not in driver.joins
    driver.advance(0.1)
    assert driver.joins[ticket].error_code == UnknownMemberIdError.errno
    assert driver.heartbeat(member_id) is RebalanceInProgressError


def test_heartbeat_errors(driver: Driver) -> None:
    [member_id] = driver.stable()
    assert driver.heartbeat("nobody") is UnknownMemberIdError
    assert driver.heartbeat(member_id, generation=9) is IllegalGenerationError
    assert driver.group.heartbeat(member_id, "no-instance", 1) is UnknownMemberIdError


# -- leaving ------------------------------------------------------------


def test_leaving_starts_a_rebalance(driver: Driver) -> None:
    leader, follower = driver.stable(2)
    assert driver.leave(leaver(leader)) == [NoError]
    assert driver.state is PREPARING
    ticket = driver.join(follower)
    assert driver.joins[ticket].leader == follower


def test_one_request_removes_several_members(driver: Driver) -> None:
    one, two = driver.stable(instances=["one", "two"])
    errors = driver.leave(
        leaver(one, "one"), leaver("", "two"), leaver("nobody"), leaver("", "three"), leaver("")
    )
    assert errors == [
        NoError,
        NoError,
        UnknownMemberIdError,
        UnknownMemberIdError,
        UnknownMemberIdError,
    ]
    assert driver.state is EMPTY
    assert driver.heartbeat(two) is UnknownMemberIdError
    again = driver.join(instance_id="two")
    driver.advance(0)
    assert (driver.joins[again].error_code, len(driver.joins[again].members)) == (0, 1)


def test_pending_member_may_leave(driver: Driver) -> None:
    member_id = driver.new_id()
    assert driver.leave(leaver(member_id)) == [NoError]
    assert driver.group.next_deadline() is None


def test_last_member_that_leaves_does_not_wait_for_a_pending_one(driver: Driver) -> None:
    (member_id,) = driver.stable()
    pending = driver.new_id()
    driver.leave(leaver(member_id))
    driver.advance(0)
    assert driver.state is EMPTY
    ticket = driver.join(pending)
    driver.advance(0)
    assert driver.joins[ticket].error_code == NoError.errno


def test_leaving_answers_the_parked_join(driver: Driver) -> None:
    leader, _ = driver.stable(2)
    ticket = driver.join(leader)
    driver.leave(leaver(leader))
    assert driver.joins[ticket].error_code == UnknownMemberIdError.errno
    assert driver.joins[ticket].member_id == ""


def test_last_one_missing_may_leave_instead_of_joining(driver: Driver) -> None:
    leader, follower = driver.stable(2)
    ticket = driver.join(leader)
    driver.leave(leaver(follower))
    assert driver.joins[ticket].generation_id == 2


# -- static members ------------------------------------------------------------


def test_static_member_comes_back_without_a_rebalance(driver: Driver) -> None:
    leader, follower = driver.stable(instances=["one", "two"])
    ticket = driver.join(instance_id="two")
    answer = driver.joins[ticket]
    assert (answer.error_code, answer.generation_id, answer.skip_assignment) == (0, 1, False)
    assert answer.leader == leader
    assert answer.member_id != follower
    assert driver.state is STABLE
    assert driver.syncs[driver.sync(answer.member_id)].assignment == b"to " + follower.encode()
    assert driver.group.has_session(answer.member_id)
    assert not driver.group.has_session(follower)
    error = driver.group.heartbeat(follower, "two", 1)
    assert error is FencedInstanceIdError
    assert set(driver.writes[-1]) == {leader, answer.member_id}


def test_static_leader_that_comes_back_skips_the_assignment(driver: Driver) -> None:
    driver.stable(instances=["one", "two"])
    answer = driver.joins[driver.join(instance_id="one")]
    assert answer.skip_assignment
    assert answer.leader == answer.member_id
    assert len(answer.members) == 2


def test_static_leader_that_cannot_skip_is_told_that_another_leads(driver: Driver) -> None:
    leader, _ = driver.stable(instances=["one", "two"])
    answer = driver.joins[driver.join(instance_id="one", can_skip_assignment=False)]
    assert (answer.leader, answer.members) == (leader, [])


def test_static_member_with_another_favourite_starts_a_rebalance(driver: Driver) -> None:
    tickets = [driver.join(instance_id=name, protocols=BOTH) for name in ("one", "two")]
    driver.advance(0)
    for ticket in reversed(tickets):
        driver.sync(driver.joins[ticket].member_id)
    driver.join(instance_id="one", protocols=(("roundrobin", b""),))
    assert driver.state is PREPARING


def test_static_member_that_comes_back_before_the_assignment_starts_over(driver: Driver) -> None:
    driver.join(instance_id="one")
    second = driver.join(instance_id="two")
    driver.advance(0)
    follower = driver.joins[second].member_id
    waiting = driver.sync(follower, instance_id="two")
    back = driver.join(instance_id="two")
    assert driver.syncs[waiting].error_code == FencedInstanceIdError.errno
    assert back not in driver.joins
    assert driver.state is PREPARING


def test_static_member_that_comes_back_while_waiting_fences_its_older_join(driver: Driver) -> None:
    driver.stable(instances=["one"])
    one = driver.group.members.leader_id or ""
    other = driver.join()
    assert driver.state is PREPARING
    back = driver.join(instance_id="one")
    assert driver.joins[back].generation_id == driver.joins[other].generation_id == 2
    assert driver.joins[back].member_id != one


def test_duplicate_instance_fences_the_parked_join(driver: Driver) -> None:
    one, _ = driver.stable(2, instances=["one", None])
    parked = driver.join(one, instance_id="one")
    driver.join(instance_id="one")
    assert driver.joins[parked].error_code == FencedInstanceIdError.errno


def test_failed_write_puts_the_static_member_back(driver: Driver) -> None:
    _, follower = driver.stable(instances=["one", "two"])
    driver.write_error = NotCoordinatorError
    ticket = driver.join(instance_id="two")
    assert driver.joins[ticket].error_code == NotCoordinatorError.errno
    assert driver.group.heartbeat(follower, "two", 1) is NoError
    assert driver.state is STABLE


def test_old_id_of_a_static_member_is_fenced_everywhere(driver: Driver) -> None:
    [old] = driver.stable(instances=["one"])
    driver.join(instance_id="one")
    assert (
        driver.joins[driver.join(old, instance_id="one")].error_code == FencedInstanceIdError.errno
    )
    assert (
        driver.syncs[driver.sync(old, instance_id="one")].error_code == FencedInstanceIdError.errno
    )
    assert driver.leave(leaver(old, "one")) == [FencedInstanceIdError]
    assert driver.group.check_commit(old, "one", 1) is FencedInstanceIdError


# -- limits, commits, death ------------------------------------------------------------


def test_group_takes_no_more_than_its_maximum() -> None:
    driver = Driver(BrokerConfig(group_initial_rebalance_delay_ms=0, group_max_size=2))
    tickets = [driver.join() for _ in range(3)]
    driver.advance(0)
    codes = [driver.joins[ticket].error_code for ticket in tickets]
    assert codes == [0, 0, GroupMaxSizeReachedError.errno]
    assert driver.joins[driver.join()].error_code == GroupMaxSizeReachedError.errno
    assert driver.state is COMPLETING


def stored(group: ClassicGroup, *, leader: str) -> GroupMetadataValue:
    """Return the stored group, with another leader."""
    value = group.record({each.member_id: b"" for each in group.members.values()}).value
    assert isinstance(value, GroupMetadataValue)
    value.leader = leader
    return value


def test_group_whose_maximum_was_lowered_keeps_those_who_join_first(driver: Driver) -> None:
    first, late = driver.stable(2)
    twin = Driver(BrokerConfig(group_initial_rebalance_delay_ms=3000, group_max_size=1))
    twin.group.restore(stored(driver.group, leader="of nobody"))
    twin.run(twin.group.restored)
    assert (twin.state, twin.group.members.leader_id) == (PREPARING, first)
    older, ticket = twin.join(first), twin.join(first)
    assert twin.joins[older].error_code == RebalanceInProgressError.errno
    refused = twin.joins[twin.join(late)]
    assert (refused.error_code, refused.member_id) == (GroupMaxSizeReachedError.errno, "")
    assert twin.heartbeat(late) is UnknownMemberIdError
    twin.advance(REBALANCE_MS / 1000)
    assert [member.member_id for member in twin.joins[ticket].members] == [first]


def test_commits_are_checked_by_state(driver: Driver) -> None:
    group = driver.group
    assert group.check_commit("", None, -1) is NoError
    assert group.check_commit("m", None, 3) is UnknownMemberIdError
    assert group.check_commit("m", None, 0) is UnknownMemberIdError
    ticket = driver.join()
    driver.advance(0)
    member_id = driver.joins[ticket].member_id
    assert group.check_commit(member_id, None, 1) is RebalanceInProgressError
    assert group.check_commit("", None, -1) is UnknownMemberIdError
    driver.sync(member_id)
    assert group.check_commit(member_id, None, 1) is NoError
    assert group.check_commit(member_id, None, 0) is IllegalGenerationError
    assert group.check_commit(member_id, None, -1) is IllegalGenerationError
    driver.join()
    assert driver.state is PREPARING
    assert group.check_commit(member_id, None, 1) is NoError


def test_only_an_empty_group_may_be_deleted(driver: Driver) -> None:
    assert driver.group.is_empty
    driver.stable()
    assert not driver.group.is_empty


@pytest.mark.parametrize("with_sync", [False, True])
def test_death_answers_everything_parked(driver: Driver, with_sync: bool) -> None:
    _, follower = driver.stable(2)
    if with_sync:
        rejoin = [driver.join(member_id) for member_id in (driver.group.members.leader_id or "",)]
        driver.join(follower)
        parked = driver.sync(follower)
        driver.run(driver.group.die)
        assert rejoin[0] in driver.joins
        assert driver.syncs[parked].error_code == NotCoordinatorError.errno
    else:
        parked = driver.join(follower, protocols=(("range", b"new"),))
        driver.run(driver.group.die)
        assert driver.joins[parked].error_code == NotCoordinatorError.errno
    assert driver.group.next_deadline() is None
    driver.run(driver.group.die)
    assert driver.joins[driver.join()].error_code == CoordinatorNotAvailableError.errno
    assert driver.heartbeat(follower) is CoordinatorNotAvailableError
    assert driver.leave(leaver(follower)) == [CoordinatorNotAvailableError]
    assert driver.group.check_commit("", None, -1) is CoordinatorNotAvailableError


def test_restored_members_have_a_session_to_come_back_in(driver: Driver) -> None:
    ids = driver.stable(2)
    twin = ClassicGroup(
        "g",
        BrokerConfig(group_max_size=2),
        new_suffix=lambda: "x",
        clock=lambda: int(driver.now * 1000),
        now=lambda: driver.now,
        write=lambda record: NoError,
    )
    twin.restore(stored(driver.group, leader=ids[1]))
    twin.restored()
    assert twin.state is STABLE
    assert twin.members.leader_id == ids[1]
    driver.now += 1
    assert twin.heartbeat(ids[0], None, 1) is NoError
    driver.now -= 1
    assert twin.next_deadline() == driver.now + SESSION_MS / 1000


def test_parked_member_stays_when_its_session_is_made_to_end(driver: Driver) -> None:
    leader, _ = driver.stable(2)
    driver.join(leader)
    for _ in range(2):
        driver.run(lambda: driver.group.expire_session(leader))
        assert driver.group.has_session(leader)
