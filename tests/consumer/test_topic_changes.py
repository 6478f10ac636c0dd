"""What views of the metadata tell of the topics that a consumer reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import pytest

from aiokafka_lite.client.offsets import LATEST
from aiokafka_lite.client.view import ClusterView, TopicView
from aiokafka_lite.consumer.positions.topic_changes import RECREATED, TopicChanges
from aiokafka_lite.errors import (
    BrokerResponseError,
    LeaderNotAvailableError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.events import PartitionsAdded, TopicDeleted, TopicRecreated
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.structs import TopicPartition
from tests.support.buffers import Buffers
from tests.support.scripted_sources import TOPIC_ID, view

OTHER_ID, THIRD_ID = b"o" * 16, b"t" * 16
EMPTY: Final = view({})._replace(topics={})
PATTERN: Final = re.compile("t")


def there(count: int, topic_id: bytes = TOPIC_ID) -> ClusterView:
    return view(dict.fromkeys(range(count), 1), topic_id=topic_id)


def absent(error: type[BrokerResponseError]) -> ClusterView:
    return EMPTY._replace(topics={"t": TopicView("t", error=error)})


GONE: Final = absent(UnknownTopicOrPartitionError)
LAGS: Final = absent(LeaderNotAvailableError)
ADDED, DELETED, MADE_AGAIN = (
    (PartitionsAdded, "t", 1, 3),
    (TopicDeleted, "t"),
    (TopicRecreated, "t"),
)


class Followed(Buffers):
    """A consumer that follows its topics."""

    def __init__(self, *assigned: TopicPartition) -> None:
        super().__init__(*assigned)
        self.changes = TopicChanges(self.state.core(buffer=self.buffer))
        self.resets: list[tuple[TopicPartition, str]] = []
        self.changes.reset_by_policy = lambda partition, error, reason: self.resets.append(
            (partition.tp, reason)
        )

    def see(self, *views: ClusterView) -> None:
        for each in views:
            self.changes.view_changed(each)

    async def told(self, *views: ClusterView) -> list[object]:
        """Return the events that views make."""
        with self.state.events.subscribe() as events:
            self.see(*views)
            self.state.events.close()
            return [event async for event in events]

    def came_later(self, number: int) -> bool:
        return self.changes.came_later(TopicPartition("t", number))


@pytest.mark.parametrize(
    ("views", "expected"),
    [
        pytest.param([there(1), there(1), there(3)], [ADDED], id="added"),
        pytest.param([there(1), GONE, GONE], [DELETED], id="deleted"),
        pytest.param([there(1), GONE, there(1), GONE], [DELETED, DELETED], id="deleted twice"),
        pytest.param([there(1), LAGS, EMPTY, there(1)], [], id="not available"),
        pytest.param([GONE, there(1)], [], id="created"),
        pytest.param([there(1), there(2, OTHER_ID)], [MADE_AGAIN], id="recreated"),
        pytest.param(
            [there(3), there(1, OTHER_ID), there(3, OTHER_ID)],
            [MADE_AGAIN, ADDED],
            id="recreated and added",
        ),
        pytest.param(
            [there(1), there(1, OTHER_ID), there(2), there(1, OTHER_ID)],
            [MADE_AGAIN],
            id="recreated with a broker that lags",
        ),
        pytest.param(
            [there(1), there(1, OTHER_ID), there(1, THIRD_ID)],
            [MADE_AGAIN, MADE_AGAIN],
            id="recreated twice",
        ),
        pytest.param([there(1, ZERO_UUID), there(1, OTHER_ID)], [], id="ids since an upgrade"),
        pytest.param([there(1), there(1, ZERO_UUID)], [], id="an old broker"),
    ],
)
async def test_each_change_of_a_topic_is_told_once(
    views: Sequence[ClusterView], expected: Sequence[tuple[Any, ...]]
) -> None:
    followed = Followed()
    followed.state.unsubscribe()
    followed.state.subscribe(["t"])
    assert await followed.told(*views) == [event(*args) for event, *args in expected]


@pytest.mark.parametrize(
    ("views", "later"),
    [
        ([], []),
        ([there(2), there(4)], [2, 3, 4]),
        ([GONE, there(2)], [0, 1, 2, 3, 4]),
        ([there(2), GONE, there(3)], [2, 3, 4]),
        ([there(2), there(2, OTHER_ID)], [0, 1, 2, 3, 4]),
        ([GONE, there(2), EMPTY._replace(is_of_all=True), there(2)], [0, 1, 2, 3, 4]),
    ],
    ids=["unknown", "added", "created", "away", "recreated", "created and away"],
)
async def test_partitions_that_came_after_the_first_look_at_their_topic_are_new(
    views: Sequence[ClusterView], later: list[int]
) -> None:
    followed = Followed()
    followed.see(*views)
    assert [number for number in range(5) if followed.came_later(number)] == later


async def test_a_topic_that_is_subscribed_again_is_looked_at_for_the_first_time() -> None:
    followed = Followed()
    state = followed.state
    state.unsubscribe()
    for topic, count in (("t", 1), ("u", 1), ("t", 3)):
        state.subscribe([topic])
        followed.see(there(count))
    assert not followed.came_later(1)
    assert await followed.told(there(3)) == []


async def test_a_topic_is_new_to_a_pattern_for_which_all_topics_were_looked_at() -> None:
    followed = Followed()
    state = followed.state
    state.unsubscribe()
    state.subscribe_pattern(PATTERN)
    every = EMPTY._replace(is_of_all=True)
    followed.see(EMPTY, there(2))
    assert not followed.came_later(0)
    followed.see(every)
    state.set_matched_topics(["t"])
    followed.see(there(2)._replace(is_of_all=True))
    assert followed.came_later(0)
    state.unsubscribe()
    followed.see(EMPTY)
    state.subscribe_pattern(PATTERN)
    followed.see(there(2)._replace(is_of_all=True))
    assert not followed.came_later(0)


@pytest.mark.parametrize("is_of_all", [True, False])
async def test_a_topic_that_a_pattern_has_lost_is_told_if_all_topics_were_asked_for(
    *, is_of_all: bool
) -> None:
    followed = Followed()
    state = followed.state
    state.unsubscribe()
    state.subscribe_pattern(PATTERN)
    told = await followed.told(there(1), EMPTY._replace(is_of_all=is_of_all))
    assert told == ([TopicDeleted("t")] if is_of_all else [])


# --- Partitions that are assigned by hand ------------------------------------------------------
async def test_the_first_partition_of_a_deleted_topic_raises() -> None:
    tps = [TopicPartition("t", number) for number in (2, 1)]
    followed = Followed(*tps, TopicPartition("a", 0))
    followed.see(there(3), GONE)
    with pytest.raises(UnknownTopicOrPartitionError, match="t") as caught:
        await followed.gets.one(())
    assert caught.value.tp == tps[1]
    followed.see(GONE)
    assert await followed.poll() == {}


async def test_a_recreated_topic_is_read_as_the_policy_says_unless_a_time_was_sought() -> None:
    tps = [TopicPartition("t", number) for number in range(4)]
    followed = Followed(*tps)
    state = followed.state
    followed.see(there(4))
    sought, committed = state.partition(tps[1]), state.partition(tps[2])
    state.request_reset(sought, LATEST)
    state.return_to_committed([committed])
    followed.see(there(3, OTHER_ID))
    assert followed.resets == [(tp, RECREATED) for tp in (tps[0], tps[3])]
    assert sought.search is not None
    assert sought.search.timestamp == LATEST
    assert committed.search is not None
    assert committed.search.is_first
    for tp in tps:
        state.seek(state.partition(tp), 0)
    # The topic lacks the last one: there is no other log of it.
    ids = [state.partition(tp).topic_id for tp in tps]
    assert ids == [OTHER_ID] * 3 + [b""]
    assert not any(state.partition(tp).is_withheld for tp in tps)


async def test_a_partition_that_a_group_has_assigned_by_its_id_is_withheld() -> None:
    followed = Followed()
    state = followed.state
    state.unsubscribe()
    state.subscribe(["t"])
    old, new, by_name = (TopicPartition("t", number) for number in range(3))
    state.change((), [old, by_name], topic_ids={old: TOPIC_ID})
    followed.see(there(3))
    state.change((), [new], topic_ids={new: OTHER_ID})
    followed.see(there(3, OTHER_ID))
    assert [state.partition(tp).is_withheld for tp in (old, new, by_name)] == [True, False, False]
