"""Groups of KIP-848 in the coordinator on a log in memory: timers, failures, elections."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from aiokafka_lite.broker.groups.kip848.machine import ConsumerGroupSettings
from aiokafka_lite.broker.groups.modern.group import MemberTimer
from aiokafka_lite.broker.groups.offsets import Committer, OffsetCommitEntry
from aiokafka_lite.broker.log.producers import ProducerIdentity
from aiokafka_lite.errors import (
    BrokerResponseError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    FencedMemberEpochError,
    GroupIdNotFound,
    GroupMaxSizeReachedError,
    IllegalGenerationError,
    NoError,
    NotCoordinatorError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.structs import TopicPartition
from tests.broker.groups.fakes import run_in_virtual_time
from tests.broker.groups.kip848.driven import SESSION_S, Driven


def in_virtual_time(scenario: Coroutine[object, None, None]) -> None:
    run_in_virtual_time(scenario)


# -- timers -------------------------------------------------------------------------------------


def test_silent_member_is_removed_and_its_partitions_go_to_others() -> None:
    async def scenario() -> None:
        driven = Driven()
        driven.join("a")
        driven.join("b")
        driven.settle("a", "b")
        for _ in range(8):
            await asyncio.sleep(5)
            driven.beat("a")
        await asyncio.sleep(4.9)
        assert len(driven.group.members) == 2
        await asyncio.sleep(0.2)
        assert list(driven.group.members) == ["a"]
        assert driven.state == "Assigning"
        driven.settle("a")
        assert driven.count("a") == 4
        with pytest.raises(UnknownMemberIdError):
            driven.beat("b")
        await driven.close()

    in_virtual_time(scenario())


def test_member_that_does_not_revoke_in_time_is_removed() -> None:
    async def scenario() -> None:
        driven = Driven()
        driven.join("a", rebalance_ms=12_000)
        driven.join("b")
        driven.beat("a")
        for _ in range(3):
            await asyncio.sleep(3.9)
            driven.beat("a", owned=False)
            driven.beat("b")
        assert len(driven.group.members) == 2
        await asyncio.sleep(0.4)
        assert list(driven.group.members) == ["b"]
        driven.settle("b")
        assert driven.count("b") == 4
        await driven.close()

    in_virtual_time(scenario())


def test_member_that_revokes_in_time_stays() -> None:
    async def scenario() -> None:
        driven = Driven()
        driven.join("a", rebalance_ms=12_000)
        driven.join("b")
        driven.beat("a")
        await asyncio.sleep(11)
        assert (MemberTimer.REBALANCE, "a") in driven.group.deadlines
        driven.settle("a", "b")
        assert (MemberTimer.REBALANCE, "a") not in driven.group.deadlines
        await asyncio.sleep(30)
        assert len(driven.group.members) == 2
        await driven.close()

    in_virtual_time(scenario())


def test_static_member_that_is_away_keeps_its_place_for_a_session() -> None:
    async def scenario() -> None:
        driven = Driven()
        driven.join("a", instance_id="one", rebalance_ms=12_000)
        driven.join("b")
        driven.beat("a")  # it is told to give up partitions, and goes
        driven.leave("a", -2, instance_id="one")
        driven.leave("b")
        held = driven.group.members["a"].assigned
        assert held == {driven.topic_id: dict.fromkeys(driven.held["a"][driven.topic_id], 0)}
        await asyncio.sleep(SESSION_S - 1)
        assert list(driven.group.members) == ["a"]
        await asyncio.sleep(1.1)
        assert driven.state == "Empty"
        await driven.close()

    in_virtual_time(scenario())


async def test_static_member_with_another_subscription_has_its_place_alone() -> None:
    driven = Driven()
    driven.topics.create("u", 2)
    driven.join("a", instance_id="one")
    driven.leave("a", -2, instance_id="one")
    driven.join("b", "t", "u", instance_id="one")
    assert (list(driven.group.members), driven.count("b")) == (["b"], 6)
    assert {member_id for _, member_id in driven.group.deadlines} == {"b"}
    assert driven.group.members["b"].previous_epoch == 0
    driven.leave("b", instance_id="one")
    assert driven.state == "Empty"
    assert not driven.group.deadlines
    await driven.close()


async def test_expired_session_takes_the_member_out_at_once() -> None:
    driven = Driven()
    driven.join("a")
    driven.join("b")
    driven.coordinator.expire_session("g", "a")
    assert list(driven.group.members) == ["b"]
    with pytest.raises(UnknownMemberIdError, match="has no member 'a'"):
        driven.coordinator.expire_session("g", "a")
    await driven.close()


def test_expiry_that_cannot_be_stored_is_tried_again() -> None:
    async def scenario() -> None:
        driven = Driven()
        driven.join("a")
        log = driven.services.partition("", driven.coordinator.partition_for("g"))
        log.failure = OSError("disk full")
        await asyncio.sleep(SESSION_S + 1)
        assert list(driven.group.members) == ["a"]
        log.failure = None
        await asyncio.sleep(1)
        assert driven.state == "Empty"
        await driven.close()

    in_virtual_time(scenario())


# -- what is not stored has not happened ----------------------------------------------------------


async def test_join_that_cannot_be_stored_leaves_nothing() -> None:
    driven = Driven()
    log = driven.services.partition("", driven.coordinator.partition_for("g"))
    log.failure = OSError("disk full")
    with pytest.raises(NotCoordinatorError):
        driven.join("a")
    assert "g" not in driven.coordinator.groups
    log.failure = None
    driven.join("a")
    log.failure = OSError("disk full")
    with pytest.raises(NotCoordinatorError):
        driven.join("b")
    assert list(driven.group.members) == ["a"]
    assert {member_id for _, member_id in driven.group.deadlines} == {"a"}
    assert driven.group.epoch == 2
    await driven.close()


@pytest.mark.parametrize("regex", [None, "t.*"])
async def test_heartbeat_without_news_stores_nothing_and_looks_at_no_topics(
    regex: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven = Driven()
    driven.join("a", regex=regex)
    await asyncio.sleep(0)
    driven.settle("a")
    before = driven.log_size()
    driven.services.now_ms += 20_000
    monkeypatch.setattr(driven.topics.catalog, "racks", None)
    driven.beat("a")
    await asyncio.sleep(0)
    assert driven.log_size() == before
    await driven.close()


async def test_closed_coordinator_gives_no_offsets_away() -> None:
    driven = Driven()
    driven.join("a")
    await driven.close()
    error = driven.coordinator.check_fetch("g", "a", 2)
    assert error is CoordinatorNotAvailableError


@pytest.mark.parametrize(
    ("member_id", "epoch", "error"),
    [
        ("a", 2, NoError),
        (None, -1, NoError),
        ("a", -1, StaleMemberEpochError),
        (None, 0, UnknownMemberIdError),
        (None, 2, UnknownMemberIdError),
    ],
)
async def test_fetch_without_a_member_names_neither_id_nor_epoch(
    member_id: str | None, epoch: int, error: type[BrokerResponseError]
) -> None:
    driven = Driven()
    driven.join("a")
    assert driven.coordinator.check_fetch("g", member_id, epoch) is error
    await driven.close()


# -- elections ----------------------------------------------------------------------------------


def test_coordinator_that_has_resigned_removes_nobody() -> None:
    async def scenario() -> None:
        driven = Driven()
        driven.join("a")
        before = driven.log_size()
        driven.coordinator.resign([driven.coordinator.partition_for("g")])
        await asyncio.sleep(2 * SESSION_S)
        assert driven.log_size() == before
        await driven.close()

    in_virtual_time(scenario())


def test_elected_coordinator_goes_on_where_the_one_before_was() -> None:
    async def scenario() -> None:
        driven = Driven()
        driven.join("a")
        driven.join("b", instance_id="one")
        driven.beat("a")
        before = (driven.state, driven.group.epoch, dict(driven.group.members))
        partition = driven.coordinator.partition_for("g")
        driven.coordinator.resign([partition])
        with pytest.raises(NotCoordinatorError):
            driven.beat("a")
        assert "g" not in driven.coordinator.groups
        driven.coordinator.elect([partition])
        with pytest.raises(CoordinatorLoadInProgressError):
            driven.beat("a")
        await driven.coordinator.until_loaded()
        assert (driven.state, driven.group.epoch, dict(driven.group.members)) == before
        driven.settle("a", "b")
        assert (driven.count("a"), driven.count("b")) == (2, 2)
        await asyncio.sleep(SESSION_S + 1)
        assert driven.state == "Empty"
        await driven.close()

    in_virtual_time(scenario())


def test_time_to_revoke_starts_again_with_the_election() -> None:
    async def scenario() -> None:
        driven = Driven()
        driven.join("a", rebalance_ms=12_000)
        driven.join("b")
        driven.beat("a")
        partition = driven.coordinator.partition_for("g")
        driven.coordinator.resign([partition])
        await asyncio.sleep(20)
        driven.coordinator.elect([partition])
        await driven.coordinator.until_loaded()
        await asyncio.sleep(11.9)
        assert len(driven.group.members) == 2
        await asyncio.sleep(0.2)
        assert list(driven.group.members) == ["b"]
        await driven.close()

    in_virtual_time(scenario())


# -- limits and settings --------------------------------------------------------------------------


async def test_group_that_is_full_takes_no_more() -> None:
    driven = Driven(ConsumerGroupSettings(max_size=1))
    driven.join("a")
    with pytest.raises(GroupMaxSizeReachedError, match="maximum capacity of 1 members"):
        driven.join("b")
    driven.join("a")  # it is a member
    await driven.close()


async def test_assignments_are_not_computed_more_often_than_allowed() -> None:
    driven = Driven(ConsumerGroupSettings(assignment_interval_ms=1_000))
    driven.join("a")
    driven.join("b")
    assert (driven.group.epoch, driven.group.target_epoch) == (3, 2)
    driven.services.now_ms += 999
    driven.beat("a")
    assert (driven.state, driven.group.target_epoch) == ("Assigning", 2)
    driven.services.now_ms += 1
    driven.settle("a", "b")
    assert driven.group.target_epoch == 3
    await driven.close()


async def test_members_are_told_the_heartbeat_interval() -> None:
    driven = Driven(ConsumerGroupSettings(heartbeat_interval_ms=123))
    assert driven.join("a").heartbeat_interval_ms == 123
    await driven.close()


async def test_topics_that_a_member_subscribes_to_no_more_are_taken_away_at_once() -> None:
    driven = Driven(ConsumerGroupSettings(assignment_interval_ms=1_000))
    driven.join("a")
    driven.services.now_ms += 10
    assert driven.beat("a", topics=["u"]).assigned == {}
    assert driven.group.target_epoch == 2
    await driven.close()


async def test_clock_that_was_put_back_holds_up_no_assignment() -> None:
    driven = Driven(ConsumerGroupSettings(assignment_interval_ms=1_000))
    driven.join("a")
    driven.services.now_ms -= 1
    driven.join("b")
    assert driven.group.target_epoch == 3
    await driven.close()


# -- topics -------------------------------------------------------------------------------------


async def test_stored_hash_is_that_of_the_topics_that_members_subscribe_to() -> None:
    driven = Driven()
    for topic in "uvw":
        driven.topics.create(topic, 1)

    def consumed() -> list[str]:
        names = ("t", "u", "v", "w")
        sets = (names[:n] for n in range(5)), ([name] for name in names), (("u", "v"), ("t", "v"))
        by_hash = {
            driven.topics.catalog.metadata_hash(each): [*each] for some in sets for each in some
        }
        return by_hash[driven.group.metadata_hash]

    driven.join("a", instance_id="one")
    assert consumed() == ["t"]
    driven.join("b", "u")
    assert consumed() == ["t", "u"]
    driven.beat("b", topics=["v"])
    assert consumed() == ["t", "v"]
    driven.leave("a", -2, instance_id="one")
    driven.join("c", "u", instance_id="one")
    assert consumed() == ["u", "v"]
    driven.beat("b", topics=[], regex="[wv]")
    await asyncio.sleep(0)
    driven.leave("c", instance_id="one")
    driven.beat("b", topics=["t", "u"])
    assert consumed() == ["t", "u", "v", "w"]
    driven.beat("b", regex="")
    assert consumed() == ["t", "u"]
    driven.join("a", "w")
    driven.leave("b")
    assert consumed() == ["w"]
    driven.join("a", "none")
    assert driven.group.metadata_hash == 0
    await driven.close()


async def test_topics_that_nobody_subscribes_to_change_nothing() -> None:
    driven = Driven()
    driven.join("a")
    driven.topics.create("other", 3)
    driven.beat("a")
    assert driven.group.epoch == 2
    driven.topics.grow("t", 5)
    driven.settle("a")
    assert (driven.group.epoch, driven.count("a")) == (3, 5)
    driven.topics.delete("t")
    driven.settle("a")
    assert (driven.group.epoch, driven.count("a")) == (4, 0)
    await driven.close()


async def test_topic_made_anew_is_another_topic() -> None:
    driven = Driven()
    driven.join("a")
    driven.topics.delete("t")
    new_id = driven.topics.create("t", 4)
    driven.settle("a")
    assert set(driven.held["a"]) == {new_id}
    await driven.close()


async def test_new_topics_are_matched_when_the_last_search_is_old_enough() -> None:
    driven = Driven()
    driven.join("a", regex="t.*")
    assert driven.group.epoch == 1
    await asyncio.sleep(0)
    driven.settle("a")
    assert (driven.group.epoch, driven.count("a")) == (2, 4)
    driven.topics.create("t2", 1)
    driven.services.now_ms += 10_000
    driven.settle("a")
    await asyncio.sleep(0)
    assert driven.group.regexes["t.*"].topics == {"t"}
    driven.services.now_ms += 1
    driven.beat("a")
    await asyncio.sleep(0)
    driven.settle("a")
    assert driven.count("a") == 5
    await driven.close()


async def test_topics_are_searched_again_after_some_time_even_if_none_was_made() -> None:
    driven = Driven(ConsumerGroupSettings(regex_refresh_interval_ms=60_000))
    driven.join("a", regex="t.*")
    await asyncio.sleep(0)
    driven.settle("a")
    found = driven.group.regexes["t.*"]
    for passing_ms in (60_000, 1):
        assert driven.group.regexes["t.*"] == found
        driven.services.now_ms += passing_ms
        driven.beat("a")
        await asyncio.sleep(0)
    assert driven.group.regexes["t.*"] == found._replace(timestamp_ms=driven.services.now_ms)
    assert driven.group.epoch == 2
    await driven.close()


async def test_member_takes_its_part_at_once_by_a_regular_expression_that_is_known() -> None:
    driven = Driven()
    driven.join("a", regex="t.*")
    await asyncio.sleep(0)
    assert driven.join("b", regex="t.*").epoch == 3
    driven.beat("b", regex="")
    assert driven.group.epoch == 4
    assert list(driven.group.regexes) == ["t.*"]
    driven.beat("a", regex="")
    assert not driven.group.regexes
    await driven.close()


async def test_member_takes_its_part_of_found_topics_that_others_name() -> None:
    driven = Driven()
    driven.join("a")
    driven.join("b", regex="t.*")
    await asyncio.sleep(0)
    assert driven.group.epoch == 3
    driven.settle("a", "b")
    assert (driven.count("a"), driven.count("b")) == (2, 2)
    await driven.close()


async def test_regular_expression_whose_last_user_has_left_is_not_searched_for() -> None:
    driven = Driven()
    driven.join("a", regex="a.*")
    await asyncio.sleep(0)
    driven.services.now_ms += 20_000
    driven.join("b", regex="t.*")
    driven.leave("a")
    await asyncio.sleep(0)
    assert list(driven.group.regexes) == ["t.*"]
    await driven.close()


async def test_regular_expression_is_forgotten_with_its_last_user() -> None:
    driven = Driven()
    for member_id in "ab":
        driven.join(member_id, regex="t.*")
    await asyncio.sleep(0)
    driven.settle("a", "b")
    assert driven.count("a") == driven.count("b") == 2
    driven.leave("a")
    assert list(driven.group.regexes) == ["t.*"]
    driven.leave("b")
    assert not driven.group.regexes
    await driven.close()


# -- epochs -------------------------------------------------------------------------------------


async def test_answer_that_was_lost_may_be_asked_for_again() -> None:
    driven = Driven()
    driven.join("a")
    driven.join("b")
    driven.beat("a")
    driven.epochs["a"] = 2
    driven.beat("a")  # has revoked, gets epoch 3
    assert driven.epochs["a"] == 3
    driven.epochs["a"] = 2
    assert driven.beat("a").epoch == 3
    driven.epochs["a"] = 2
    with pytest.raises(FencedMemberEpochError, match="smaller member epoch"):
        driven.beat("a", owned=False)
    await driven.close()


async def test_group_ends_with_its_records() -> None:
    driven = Driven()
    driven.join("a")
    driven.leave("a")
    assert not driven.group.deadlines
    assert driven.coordinator.delete("g").errno == 0
    with pytest.raises(GroupIdNotFound):
        driven.beat("a")
    partition = driven.coordinator.partition_for("g")
    driven.coordinator.resign([partition])
    driven.coordinator.elect([partition])
    await driven.coordinator.until_loaded()
    assert "g" not in driven.coordinator.groups
    await driven.close()


async def test_transactions_commit_only_for_what_a_member_has_had_since_its_epoch() -> None:
    driven = Driven()
    driven.join("a")
    driven.join("b")
    driven.settle("a", "b")
    assert driven.group.epoch == 3
    kept, given_up = driven.held["a"][driven.topic_id][0], driven.held["b"][driven.topic_id][0]

    def commit(partition: int, epoch: int) -> type[BrokerResponseError]:
        item = OffsetCommitEntry(TopicPartition("t", partition), ZERO_UUID, 5, -1, "")
        producer = ProducerIdentity(7, 0)
        (error,) = driven.coordinator.commit_in_transaction(
            "g", [item], producer, Committer("a", None, epoch)
        )
        return error

    assert commit(kept, 3) is NoError
    assert commit(kept, 2) is NoError
    assert commit(given_up, 2) is IllegalGenerationError
    assert commit(kept, 4) is IllegalGenerationError
    await driven.close()
