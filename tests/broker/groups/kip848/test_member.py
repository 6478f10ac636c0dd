"""A member's steps from one assignment to the next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import pytest

from aiokafka_lite.broker.groups.kip848.group import (
    NOT_OWNED,
    STABLE,
    UNKNOWN,
    UNRELEASED,
    UNREVOKED,
    ConsumerGroupMember,
    MemberTarget,
    reconcile,
)
from aiokafka_lite.errors import FencedMemberEpochError

T, U = b"t" * 16, b"u" * 16
AT_2 = ConsumerGroupMember("m", epoch=2, previous_epoch=1, assigned={T: {0: 2, 1: 2}})


def target(
    epoch: int,
    partitions: Mapping[bytes, Collection[int]],
    *,
    topics: Collection[bytes] = (T, U),
    held_in: Callable[[bytes, int], int] = lambda *_: NOT_OWNED,
) -> MemberTarget:
    wanted = {topic: frozenset(held) for topic, held in partitions.items()}
    return MemberTarget(epoch, wanted, frozenset(topics), held_in)


def test_member_that_has_what_it_is_to_have_stays_as_it_is() -> None:
    for has_new_subscription in (False, True):
        step = reconcile(
            AT_2, target(2, {T: [0, 1]}), None, has_new_subscription=has_new_subscription
        )
        assert step is AT_2


def test_member_that_says_nothing_of_what_it_owns_gets_more() -> None:
    step = reconcile(AT_2, target(3, {T: [0, 1, 2]}), None, has_new_subscription=False)
    assert (step.state, step.epoch, step.previous_epoch) == (STABLE, 3, 2)
    assert step.assigned == {T: {0: 2, 1: 2, 2: 3}}


def test_member_waits_for_a_partition_that_another_holds() -> None:
    wanted = target(3, {T: [0, 1, 2], U: [0]}, held_in=lambda topic, _: 2 if topic == T else -1)
    step = reconcile(AT_2, wanted, {}, has_new_subscription=False)
    assert (step.state, step.epoch) == (UNRELEASED, 3)
    assert step.assigned == {T: {0: 2, 1: 2}, U: {0: 3}}


def test_member_revokes_what_it_owns_first() -> None:
    wanted = target(3, {T: [0], U: [0]})
    revoking = reconcile(AT_2, wanted, {T: [0, 1]}, has_new_subscription=False)
    assert (revoking.state, revoking.epoch, revoking.previous_epoch) == (UNREVOKED, 2, 2)
    assert (revoking.assigned, revoking.pending_revocation) == ({T: {0: 2}}, {T: {1: 2}})
    assert [revoking.epoch_of(T, partition) for partition in range(3)] == [2, 2, None]
    for owned in (None, {T: [1]}):
        assert reconcile(revoking, wanted, owned, has_new_subscription=False) is revoking
    done = reconcile(revoking, wanted, {T: [0]}, has_new_subscription=False)
    assert (done.state, done.epoch) == (STABLE, 3)
    assert (done.assigned, done.pending_revocation) == ({T: {0: 2}, U: {0: 3}}, {})


def test_topic_that_is_no_longer_subscribed_to_is_given_up_even_if_the_target_has_it() -> None:
    step = reconcile(AT_2, target(3, {T: [0, 1]}, topics=[U]), {}, has_new_subscription=False)
    assert (step.state, step.epoch, step.assigned) == (STABLE, 3, {})


def test_new_subscription_adds_to_what_is_being_revoked() -> None:
    revoking = replace(AT_2, state=UNREVOKED, assigned={T: {0: 2}}, pending_revocation={U: {5: 1}})
    wanted = target(3, {}, topics=[U])
    step = reconcile(revoking, wanted, None, has_new_subscription=True)
    assert (step.state, step.epoch, step.assigned) == (UNREVOKED, 2, {})
    assert step.pending_revocation == {U: {5: 1}, T: {0: 2}}


def test_topic_of_a_former_subscription_that_nobody_owns_is_given_up_at_once() -> None:
    step = reconcile(AT_2, target(2, {}, topics=[U]), {}, has_new_subscription=True)
    assert (step.state, step.epoch, step.assigned) == (STABLE, 2, {})
    assert step.pending_revocation == {}


@pytest.mark.parametrize("owned", [None, {T: [0]}])
def test_state_of_a_newer_broker_is_left_by_joining_again(
    owned: Mapping[bytes, Collection[int]] | None,
) -> None:
    unknown = replace(AT_2, state=UNKNOWN)
    with pytest.raises(FencedMemberEpochError, match="unknown state"):
        reconcile(unknown, target(3, {T: [0]}), owned, has_new_subscription=False)
    step = reconcile(unknown, target(3, {T: [0]}), {}, has_new_subscription=False)
    assert (step.state, step.epoch, step.assigned) == (STABLE, 3, {T: {0: 2}})


def test_static_member_starts_under_another_id_from_the_beginning() -> None:
    away = AT_2.left_for_now()
    assert (away.epoch, away.assigned) == (-2, {T: {0: 0, 1: 0}})
    back = away.under_new_id("heir")
    assert (back.member_id, back.epoch, back.previous_epoch) == ("heir", 0, 0)
    assert back.assigned == away.assigned
