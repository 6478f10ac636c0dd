"""An error goes where each API has its errors, in each of its versions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from aiokafka_lite.broker.refusals import (
    LARGEST_SMALL,
    Place,
    Refusal,
    RefusalReason,
    error_codes,
    named_partitions,
)
from aiokafka_lite.protocol import codec
from aiokafka_lite.protocol.messages.fetch import FetchRequest
from aiokafka_lite.protocol.messages.group_members import HeartbeatRequest
from aiokafka_lite.protocol.messages.metadata import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from aiokafka_lite.protocol.messages.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    PartitionErrorCode,
)
from aiokafka_lite.protocol.messages.produce import ProduceRequest
from aiokafka_lite.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from aiokafka_lite.protocol.schema import Request, Response
from tests.support.for_each import for_each, in_every_version
from tests.support.samples import REQUEST_CLASSES, filled, name_of

CODE = 42


def concerns_all(topic: str | None, partition: int | None) -> bool:
    return True


def no_topic(topic_id: bytes) -> str | None:
    return None


EVERY_REQUEST = [
    (cls, version)
    for cls in REQUEST_CLASSES
    for version in range(cls.min_version, cls.max_version + 1)
]


@in_every_version(EVERY_REQUEST)
def test_every_api_can_be_refused_in_every_version(
    cls: type[Request[Response]], version: int
) -> None:
    request = filled(cls, version).from_version(version)
    refusal = Refusal(cls, version, None)
    answer, rest = refusal.split(request, RefusalReason(CODE, "why", concerns_all, no_topic))
    assert rest is None
    frame = codec.encode(answer.for_version(version), version)
    decoded = codec.decode(cls.response, version, memoryview(frame)).from_version(version)
    assert error_codes(decoded) == {CODE}


@pytest.mark.parametrize(
    ("cls", "version", "at"),
    [(HeartbeatRequest, 4, "topic"), (ProduceRequest, 9, "answer"), (FetchRequest, 6, "answer")],
    ids=name_of,
)
def test_a_place_that_an_api_lacks_is_refused(
    cls: type[Request[Response]], version: int, at: Place
) -> None:
    with pytest.raises(ValueError, match=rf"{cls.__name__} v{version} has no error code"):
        Refusal(cls, version, at)


def commit(*topics: tuple[str, list[int]]) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id="g",
        topics=[
            OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    OffsetCommitRequestPartition(partition_index=index, committed_offset=7)
                    for index in indexes
                ],
            )
            for name, indexes in topics
        ],
    )


def test_partitions_that_are_not_meant_are_left_to_be_handled() -> None:
    request = commit(("a", [0, 1]), ("b", [0]))
    refusal = Refusal(OffsetCommitRequest, 9, None)
    refused, rest = refusal.split(
        request,
        RefusalReason(CODE, "", lambda topic, partition: (topic, partition) == ("a", 1), no_topic),
    )
    assert isinstance(rest, OffsetCommitRequest)
    assert isinstance(refused, OffsetCommitResponse)
    assert named_partitions(rest, 9, no_topic) == [("a", 0), ("b", 0)]
    assert named_partitions(request, 9, no_topic) == [("a", 0), ("a", 1), ("b", 0)]
    answer = OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    PartitionErrorCode(partition_index=each.partition_index)
                    for each in topic.partitions
                ],
            )
            for topic in rest.topics
        ]
    )
    refusal.merge(answer, refused)
    assert {
        (topic.name, each.partition_index): each.error_code
        for topic in answer.topics
        for each in topic.partitions
    } == {("a", 0): 0, ("b", 0): 0, ("a", 1): CODE}
    assert [topic.name for topic in answer.topics] == ["a", "b"]


@pytest.mark.parametrize(("version", "of_group", "of_partitions"), [(1, 0, [CODE]), (2, CODE, [])])
def test_offset_fetch_is_refused_where_its_version_has_errors(
    version: int, of_group: int, of_partitions: list[int]
) -> None:
    topics = [OffsetFetchRequestTopics(name="a", partition_indexes=[3])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])
    refusal = Refusal(OffsetFetchRequest, version, None)
    answer, _ = refusal.split(request, RefusalReason(CODE, "", concerns_all, no_topic))
    assert isinstance(answer, OffsetFetchResponse)
    (group,) = answer.groups
    codes = [partition.error_code for topic in group.topics for partition in topic.partitions]
    assert (group.error_code, codes) == (of_group, of_partitions)


def test_request_lists_what_it_asks_for_unless_it_asks_for_everything() -> None:
    topics = [OffsetFetchRequestTopics(name="a", partition_indexes=[3])]
    some = OffsetFetchRequestGroup(group_id="g", topics=topics)
    everything = OffsetFetchRequestGroup(group_id="g", topics=None)
    by_partition = Refusal(OffsetFetchRequest, 8, "partition")
    for groups, expected in (([some, some], True), ([some, everything], False), ([], True)):
        request = OffsetFetchRequest(groups=groups)
        assert by_partition.is_listed(request) is expected
        assert Refusal(OffsetFetchRequest, 8, None).is_listed(request)
        assert by_partition.is_empty(request) is (not groups)
    assert Refusal(HeartbeatRequest, 4, None).is_listed(HeartbeatRequest())
    assert not Refusal(HeartbeatRequest, 4, None).is_empty(HeartbeatRequest())
    assert not Refusal(MetadataRequest, 12, None).is_empty(MetadataRequest(topics=None))


def test_offset_fetch_is_refused_by_group_or_by_partition() -> None:
    group = OffsetFetchRequestGroup(
        group_id="g", topics=[OffsetFetchRequestTopics(name="a", partition_indexes=[3])]
    )
    request = OffsetFetchRequest(groups=[group])
    whole, _ = Refusal(OffsetFetchRequest, 8, None).split(
        request, RefusalReason(CODE, "", concerns_all, no_topic)
    )
    assert isinstance(whole, OffsetFetchResponse)
    assert [(each.group_id, each.error_code, each.topics) for each in whole.groups] == [
        ("g", CODE, [])
    ]
    single, _ = Refusal(OffsetFetchRequest, 8, "partition").split(
        request, RefusalReason(CODE, "", concerns_all, no_topic)
    )
    assert isinstance(single, OffsetFetchResponse)
    ((partition,),) = (topic.partitions for topic in single.groups[0].topics)
    assert (partition.partition_index, partition.error_code) == (3, CODE)
    assert partition.committed_offset == -1
    assert single.groups[0].error_code == 0


@pytest.mark.parametrize("version", [3, 6])
def test_find_coordinator_says_why_and_names_no_node(version: int) -> None:
    request = FindCoordinatorRequest(coordinator_keys=["g"])
    answer, _ = Refusal(FindCoordinatorRequest, version, None).split(
        request, RefusalReason(CODE, "why", concerns_all, no_topic)
    )
    frame = codec.encode(answer.for_version(version), version)
    decoded = codec.decode(FindCoordinatorResponse, version, memoryview(frame))
    (found,) = decoded.from_version(version).coordinators
    assert (found.error_code, found.error_message, found.node_id) == (CODE, "why", -1)


def test_topics_of_any_api_can_be_refused() -> None:
    request = CreateTopicsRequest(topics=[CreatableTopic(name=name) for name in ("a", "b")])
    refusal = Refusal(CreateTopicsRequest, 7, None, of_topics=True)
    refused, rest = refusal.split(
        request, RefusalReason(CODE, "no", lambda topic, _: topic == "a", no_topic)
    )
    assert isinstance(refused, CreateTopicsResponse)
    assert isinstance(rest, CreateTopicsRequest)
    (told,) = refused.topics
    assert (told.name, told.error_code, told.error_message) == ("a", CODE, "no")
    assert [topic.name for topic in rest.topics] == ["b"]


def test_topic_with_an_error_has_no_partitions() -> None:
    topics = [
        MetadataResponseTopic(name=name, partitions=[MetadataResponsePartition(leader_id=1)])
        for name in ("a", "b")
    ]
    refusal = Refusal(MetadataRequest, 12, "topic")
    answer = MetadataResponse(topics=topics)
    assert refusal.mark(answer, RefusalReason(CODE, "", lambda topic, _: topic == "b", no_topic))
    assert [(topic.error_code, len(topic.partitions)) for topic in topics] == [(0, 1), (CODE, 0)]


def test_an_answer_about_everything_is_marked() -> None:
    request = MetadataRequest(topics=None)
    topics = [
        MetadataResponseTopic(name=name, partitions=[MetadataResponsePartition(leader_id=1)])
        for name in ("a", "b")
    ]
    answer = MetadataResponse(topics=topics)
    refusal = Refusal(MetadataRequest, 12, "partition")
    assert not refusal.is_listed(request)
    assert refusal.mark(answer, RefusalReason(CODE, "", lambda topic, _: topic == "b", no_topic))
    a, b = ((topic.error_code, topic.partitions[0]) for topic in topics)
    assert (a[0], a[1].error_code, a[1].leader_id) == (0, 0, 1)
    assert (b[0], b[1].error_code, b[1].leader_id) == (0, CODE, -1)
    assert not refusal.mark(answer, RefusalReason(CODE, "", lambda topic, _: False, no_topic))


@for_each(
    [
        ([LARGEST_SMALL - 1], False),
        ([LARGEST_SMALL], True),
        ([0] * LARGEST_SMALL, False),
        ([0] * (LARGEST_SMALL + 1), True),
        ([30, 30, 37], False),
        ([30, 30, 38], True),
    ]
)
def test_answer_is_large_if_its_lists_hold_many_elements_together(
    sizes: Sequence[int], expected: bool
) -> None:
    answer = ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                partitions=[ListOffsetsPartitionResponse(partition_index=n) for n in range(size)]
            )
            for size in sizes
        ]
    )
    codes = error_codes(answer)
    assert (codes is None) is expected
