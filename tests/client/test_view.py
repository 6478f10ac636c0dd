from __future__ import annotations

import pytest

from aiokafka_lite.client.view import GONE_AFTER_S, OLDER_ANSWERS, ClusterView, Node
from aiokafka_lite.errors import (
    LeaderNotAvailableError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from aiokafka_lite.structs import TopicPartition
from tests.support.scripted_broker import topic

ID_1, ID_2 = b"1" * 16, b"2" * 16
TP = TopicPartition("t", 0)


def answered(*topics: MetadataResponseTopic, nodes: tuple[int, ...] = (1, 2)) -> MetadataResponse:
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=n, host=f"h{n}", port=9092) for n in nodes],
        controller_id=nodes[0],
        cluster_id="c",
        topics=list(topics),
    )


def view_of(*topics: MetadataResponseTopic) -> ClusterView:
    return ClusterView().updated(answered(*topics), 1.0)


def leader_of(view: ClusterView) -> tuple[int, int] | None:
    leader = view.leader(TP)
    return None if leader is None else (leader.leader, leader.leader_epoch)


def test_view_tells_what_was_answered() -> None:
    view = view_of(topic("t", [1, 2], leader_epoch=5, topic_id=ID_1))
    assert view.nodes == {1: Node(1, "h1", 9092), 2: Node(2, "h2", 9092)}
    assert (view.controller_id, view.cluster_id, view.fetched_at) == (1, "c", 1.0)
    assert view.topic_names == {ID_1: "t"}
    assert view.topic_id("t") == ID_1
    assert view.partitions_for_topic("t") == {0, 1}
    assert leader_of(view) == (1, 5)
    assert view.topics["t"].partitions[1].replicas == (2,)
    assert view.topics["t"].error is None
    assert view.incomplete_topics() == []


def test_unknown_things_are_none() -> None:
    view = view_of(topic("old", [1]))
    assert view.topic_id("old") is None  # a cluster without topic ids
    assert view.topic_id("new") is None
    assert view.partitions_for_topic("new") is None
    assert view.available_partitions_for_topic("new") is None
    assert view.leader(TopicPartition("old", 1)) is None
    assert view.partition(TP) is None


def test_partition_without_leader_is_not_available() -> None:
    view = view_of(topic("t", [1, -1]))
    assert view.leader(TopicPartition("t", 1)) is None
    assert view.available_partitions_for_topic("t") == {0}
    assert view.partitions_for_topic("t") == {0, 1}
    assert view.topics["t"].partitions[1].error is LeaderNotAvailableError
    assert view.incomplete_topics() == ["t"]


def test_a_known_topic_lacks_partitions_that_it_does_not_have() -> None:
    view = view_of(topic("t", [1]), topic("none", [], error_code=3))
    asked = (("t", 0), ("t", 1), ("none", 0), ("other", 0))
    assert [view.lacks(TopicPartition(*tp)) for tp in asked] == [False, True, False, False]


def test_replicas_are_in_the_racks_of_nodes_that_are_known() -> None:
    brokers = [
        MetadataResponseBroker(node_id=number, host="h", port=9092, rack=rack)
        for number, rack in ((0, "a"), (1, "b"), (2, None))
    ]
    partitions = topic("t", [0, 1, 2, 9])
    partitions.partitions[0].replica_nodes = [0, 1, 2]
    answer = MetadataResponse(brokers=brokers, topics=[partitions], cluster_id="c")
    racks = ClusterView().updated(answer, 1.0).replica_racks("t")
    assert racks == {0: {"a", "b"}, 1: {"b"}, 2: frozenset(), 3: frozenset()}
    assert view_of().replica_racks("t") == {}


def test_topics_left_out_are_missed_only_between_answers_about_all() -> None:
    there, without = answered(topic("t", [1])), answered()
    for was_of_all, is_of_all in ((True, False), (False, True)):
        view = ClusterView().updated(there, 1.0, is_of_all=was_of_all)
        assert not view.updated(without, 1.1, is_of_all=is_of_all).topics


def test_leader_that_is_no_node_is_not_offered() -> None:
    assert view_of(topic("t", [9])).leader(TP) is None


@pytest.mark.parametrize(
    ("error_code", "error_class", "may_pass"),
    [
        (3, UnknownTopicOrPartitionError, True),
        (29, TopicAuthorizationFailedError, False),
    ],
)
def test_topic_error_is_kept(error_code: int, error_class: type, may_pass: bool) -> None:
    view = view_of(topic("t", [], error_code=error_code))
    assert view.topics["t"].error is error_class
    assert view.partitions_for_topic("t") is None
    assert view.incomplete_topics() == (["t"] if may_pass else [])


@pytest.mark.parametrize(
    ("epoch", "expected"), [(4, (1, 5)), (5, (2, 5)), (6, (2, 6)), (-1, (2, -1))]
)
def test_older_leader_epoch_does_not_bring_a_leader_back(
    epoch: int, expected: tuple[int, int]
) -> None:
    view = view_of(topic("t", [1], leader_epoch=5, topic_id=ID_1))
    newer = view.updated(answered(topic("t", [2], leader_epoch=epoch, topic_id=ID_1)), 2.0)
    assert leader_of(newer) == expected
    assert newer.fetched_at == 2.0


def test_older_leader_epoch_is_believed_when_answers_insist_on_it() -> None:
    older = answered(topic("t", [2], leader_epoch=0, topic_id=ID_1))
    view = view_of(topic("t", [1], leader_epoch=5, topic_id=ID_1))
    for count in range(1, OLDER_ANSWERS):
        view = view.updated(older, 1.0 + count)
        assert leader_of(view) == (1, 5)
        assert view.was_contradicted
    view = view.updated(older, 1.0 + OLDER_ANSWERS)
    assert leader_of(view) == (2, 0)
    assert not view.was_contradicted
    assert view.topics["t"].partitions[0].void_epoch == 5
    # Until the epochs have grown as far again.
    view = view.updated(answered(topic("t", [1], leader_epoch=1, topic_id=ID_1)), 9.0)
    assert (leader_of(view), view.topics["t"].partitions[0].void_epoch) == ((1, 1), 5)
    view = view.updated(answered(topic("t", [1], leader_epoch=5, topic_id=ID_1)), 9.0)
    assert (leader_of(view), view.topics["t"].partitions[0].void_epoch) == ((1, 5), -1)


@pytest.mark.parametrize("news", ["metadata", "hint", "quick answers"])
def test_older_leader_epoch_is_not_believed_of_brokers_that_lag(news: str) -> None:
    older = answered(topic("t", [2], leader_epoch=4, topic_id=ID_1))
    current = answered(topic("t", [1], leader_epoch=5, topic_id=ID_1))
    view = ClusterView().updated(current, 1.0)
    for count in range(3 * OLDER_ANSWERS):
        view = view.updated(older, 1.0 if news == "quick answers" else 1.0 + count)
        if count % (OLDER_ANSWERS - 1) == 0 and news == "metadata":
            view = view.updated(current, 1.0 + count)
        if count % (OLDER_ANSWERS - 1) == 0 and news == "hint":
            view = view.with_leaders({TP: (1, 6 + count)})
        leader = view.leader(TP)
        assert leader is not None
        assert leader.leader == 1


def test_recreated_topic_starts_over_with_its_epochs() -> None:
    view = view_of(topic("t", [1], leader_epoch=5, topic_id=ID_1))
    newer = view.updated(answered(topic("t", [2], leader_epoch=0, topic_id=ID_2)), 2.0)
    assert leader_of(newer) == (2, 0)
    assert newer.topic_names == {ID_2: "t"}


UNKNOWN = MetadataResponseTopic(name="t", error_code=UnknownTopicOrPartitionError.errno)


@pytest.mark.parametrize("is_of_all", [False, True])
def test_a_topic_is_gone_when_that_was_said_for_a_while(is_of_all: bool) -> None:
    without = answered() if is_of_all else answered(UNKNOWN)
    there = answered(topic("t", [1], leader_epoch=5, topic_id=ID_1))
    view = ClusterView().updated(there, 1.0, is_of_all=is_of_all)
    missing = view.updated(without, 2.0, is_of_all=is_of_all)
    assert leader_of(missing) == (1, 5)
    assert missing.incomplete_topics() == ["t"]  # so that it is asked for again soon
    assert missing.updated(there, 2.2, is_of_all=is_of_all).incomplete_topics() == []
    still = missing.updated(without, 2.4, is_of_all=is_of_all)
    assert leader_of(still) == (1, 5)
    gone = still.updated(without, 2.5, is_of_all=is_of_all)
    assert gone.partitions_for_topic("t") is None
    assert ("t" in gone.topics) is not is_of_all
    back = gone.updated(there, 2.6, is_of_all=is_of_all)
    assert leader_of(back) == (1, 5)


def test_the_id_of_a_deleted_topic_does_not_come_back() -> None:
    old, new = topic("t", [1] * 8, topic_id=ID_1), topic("t", [2] * 2, topic_id=ID_2)
    view = view_of(old).updated(answered(new), 2.0)
    lagging = view.updated(answered(old), 3.0)
    assert (lagging.topic_id("t"), lagging.partitions_for_topic("t")) == (ID_2, {0, 1})
    other = answered(old)
    other.cluster_id = "another"
    assert view.updated(other, 3.0).topic_id("t") == ID_1


def test_partitions_of_a_topic_never_become_fewer() -> None:
    view = view_of(topic("t", [1, 1, 1], topic_id=ID_1))
    for at in (2.0, 9.0):
        view = view.updated(answered(topic("t", [2], topic_id=ID_1)), at)
        assert view.partitions_for_topic("t") == {0, 1, 2}


def test_without_ids_fewer_partitions_for_a_while_are_another_topic() -> None:
    fewer = answered(topic("t", [2]))
    view = view_of(topic("t", [1, 1, 1])).updated(fewer, 2.0)
    assert view.partitions_for_topic("t") == {0, 1, 2}
    assert view.incomplete_topics() == ["t"]  # so that it is asked for again soon
    assert view.updated(fewer, 2.4).partitions_for_topic("t") == {0, 1, 2}
    newer = view.updated(fewer, 2.5)
    assert newer.partitions_for_topic("t") == {0}
    assert leader_of(newer) == (2, -1)
    assert newer.incomplete_topics() == []


def test_a_topic_that_is_not_available_keeps_its_partitions() -> None:
    view = view_of(topic("t", [1], leader_epoch=5, topic_id=ID_1))
    electing = MetadataResponseTopic(name="t", error_code=LeaderNotAvailableError.errno)
    for at in (2.0, 9.0):
        view = view.updated(answered(electing), at)
        assert leader_of(view) == (1, 5)
        assert view.topics["t"].error is LeaderNotAvailableError
        assert view.incomplete_topics() == ["t"]


def test_topics_left_out_are_dropped() -> None:
    view = view_of(topic("t", [1]), topic("u", [1]))
    assert list(view.updated(answered(topic("u", [1])), 2.0).topics) == ["u"]


def test_an_answer_about_some_topics_leaves_the_others_as_they_were() -> None:
    view = view_of(topic("t", [1], topic_id=ID_1), topic("u", [1]))
    newer = view.with_topics(answered(topic("v", [2, 2], topic_id=ID_2), nodes=(2, 3)), 5.0)
    assert newer.topics.keys() == {"t", "u", "v"}
    assert newer.topics["t"] is view.topics["t"]
    assert newer.topic_names == {ID_1: "t", ID_2: "v"}
    assert newer.nodes.keys() == {2, 3}
    assert (newer.controller_id, newer.fetched_at) == (2, 1.0)
    assert view.topics.keys() == {"t", "u"}


def test_an_answer_about_some_topics_is_merged_as_any_other() -> None:
    view = view_of(topic("t", [1], leader_epoch=5, topic_id=ID_1), topic("u", [1]))
    older = view.with_topics(answered(topic("t", [2], leader_epoch=4, topic_id=ID_1)), 2.0)
    assert leader_of(older) == (1, 5)
    assert older.topics["t"].was_contradicted
    missing = view.with_topics(answered(UNKNOWN), 2.0)
    assert missing.incomplete_topics() == ["t"]
    gone = missing.with_topics(answered(UNKNOWN), 2.0 + GONE_AFTER_S)
    assert gone.partitions_for_topic("t") is None
    assert gone.topics["t"].error is UnknownTopicOrPartitionError
    assert not gone.topic_names
    another = view.with_topics(answered(topic("t", [2, 2], topic_id=ID_2)), 2.0)
    assert another.topic_names == {ID_2: "t"}
    assert another.topics["t"].former_ids == {ID_1}
    back = another.with_topics(answered(topic("t", [1], topic_id=ID_1)), 3.0)
    assert back.topic_id("t") == ID_2


def test_topic_asked_for_by_an_unknown_id_has_no_name_and_is_left_out() -> None:
    nameless = MetadataResponseTopic(name=None, topic_id=ID_1, error_code=100)
    assert not view_of(nameless).topics


def test_newer_leader_hint_is_taken_with_its_node() -> None:
    view = view_of(topic("t", [1, 1], leader_epoch=5, topic_id=ID_1))
    hinted = view.with_leaders({TP: (3, 6)}, [Node(3, "h3", 9092, "rack")])
    assert leader_of(hinted) == (3, 6)
    assert hinted.nodes[3].rack == "rack"
    assert hinted.topics["t"].partitions[1].leader == 1
    assert hinted.topic_names == view.topic_names
    assert leader_of(view) == (1, 5)  # the snapshot before stays as it was


@pytest.mark.parametrize("epoch", [4, 5])
def test_hint_that_is_not_newer_changes_nothing(epoch: int) -> None:
    view = view_of(topic("t", [1], leader_epoch=5))
    assert view.with_leaders({TP: (2, epoch)}) is view


def test_hint_for_an_unknown_partition_changes_nothing() -> None:
    view = view_of()
    assert view.with_leaders({TP: (2, 9)}) is view


def test_a_coordinator_is_where_the_latest_answer_says_and_keeps_its_rack() -> None:
    nodes = [MetadataResponseBroker(node_id=1, host="h1", port=9092, rack="r")]
    view = ClusterView().updated(MetadataResponse(brokers=nodes, cluster_id="c"), 1.0)
    assert view.with_coordinator(Node(1, "h1", 9092)) is view
    assert view.with_coordinator(Node(1, "elsewhere", 9092)).nodes == {
        1: Node(1, "elsewhere", 9092, "r")
    }
    assert view.with_coordinator(Node(2, "h2", 9092)).nodes[2] == Node(2, "h2", 9092)


def test_view_cannot_be_changed() -> None:
    view = view_of(topic("t", [1]))
    with pytest.raises(TypeError):
        view.nodes[5] = Node(5, "h", 1)  # type: ignore[index]
    with pytest.raises(AttributeError):
        view.controller_id = 3  # type: ignore[misc]
