"""Callers fill and read the newest layout, whatever the version on the wire."""

from __future__ import annotations

from typing import TypeVar

import pytest

from aiokafka_lite.errors import (
    GroupCoordinatorNotAvailableError,
    UnknownMemberIdError,
    UnsupportedVersionError,
)
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.messages.group_members import (
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from aiokafka_lite.protocol.messages.metadata import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataRequestTopic,
)
from aiokafka_lite.protocol.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from aiokafka_lite.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicState
from aiokafka_lite.protocol.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from aiokafka_lite.protocol.schema import Request, Response
from tests.support.for_each import for_each
from tests.support.frames import request_in
from tests.support.samples import versions

R = TypeVar("R", bound=Response)
TOPIC_ID = bytes(range(16))


def _sent(request: Request[Response], version: int) -> Request[Response]:
    """What the broker gets."""
    frame = memoryview(framing.encode_request(request, version, 1, None))[4:]
    return request_in(framing.decode_request(frame))


def _answered(cls: type[Request[R]], response: R, version: int) -> R:
    """What the client gets."""
    frame = memoryview(framing.encode_response(response, version, 1))[4:]
    return framing.response_decoder(cls, version)(frame)


@for_each(versions(FindCoordinatorRequest))
def test_find_coordinator_asks_by_a_list_of_keys(version: int) -> None:
    request = FindCoordinatorRequest(coordinator_keys=["group"])
    assert _sent(request, version) == request


@for_each(versions(FindCoordinatorRequest))
def test_find_coordinator_answers_with_a_list_of_coordinators(version: int) -> None:
    coordinator = Coordinator(key="group", node_id=3, host="h", port=9092, error_code=0)
    response = FindCoordinatorResponse(coordinators=[coordinator])
    answered = _answered(FindCoordinatorRequest, response, version)
    if not answered.coordinators[0].key:  # the version does not say it
        answered.coordinators[0].key = "group"
    answered.coordinators[0].error_message = coordinator.error_message
    assert answered == response


@for_each(
    [
        FindCoordinatorRequest(coordinator_keys=["a", "b"]),
        OffsetFetchRequest(groups=[OffsetFetchRequestGroup(), OffsetFetchRequestGroup()]),
        LeaveGroupRequest(members=[MemberIdentity(), MemberIdentity()]),
        LeaveGroupRequest(members=[MemberIdentity(group_instance_id="static")]),
        DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=TOPIC_ID)]),
        AddPartitionsToTxnRequest(transactions=[AddPartitionsToTxnTransaction(verify_only=True)]),
        MetadataRequest(topics=[]),
        FindCoordinatorResponse(coordinators=[Coordinator(), Coordinator()]),
        OffsetFetchResponse(groups=[OffsetFetchResponseGroup(), OffsetFetchResponseGroup()]),
        LeaveGroupResponse(members=[MemberResponse(), MemberResponse()]),
        AddPartitionsToTxnResponse(
            results_by_transaction=[AddPartitionsToTxnResult(), AddPartitionsToTxnResult()]
        ),
    ]
)
def test_what_an_old_layout_cannot_hold_is_refused(
    request_: Request[Response] | Response,
) -> None:
    version = type(request_).versions.first
    with pytest.raises(UnsupportedVersionError, match=f"v{version}"):
        request_.for_version(version)


def _offset_fetch(topics: list[OffsetFetchRequestTopics] | None) -> OffsetFetchRequest:
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])


@for_each(versions(OffsetFetchRequest))
def test_offset_fetch_asks_by_a_list_of_groups(version: int) -> None:
    topic = OffsetFetchRequestTopics(name="t", topic_id=TOPIC_ID, partition_indexes=[0, 2])
    (group,) = getattr(_sent(_offset_fetch([topic]), version), "groups")  # noqa: B009 -- typed so
    assert group.group_id == "g"
    assert group.topics[0].partition_indexes == [0, 2]
    assert group.topics[0].name == "t" or group.topics[0].topic_id == TOPIC_ID


@for_each(versions(OffsetFetchRequest)[1:])
def test_offset_fetch_asks_for_all_topics_by_null(version: int) -> None:
    assert _sent(_offset_fetch(None), version) == _offset_fetch(None)


@for_each(versions(OffsetFetchRequest))
def test_offset_fetch_demands_stable_offsets_where_brokers_know_unstable_ones(version: int) -> None:
    request = _offset_fetch([])
    request.require_stable = True
    sent = _sent(request, version)
    assert isinstance(sent, OffsetFetchRequest)
    assert sent.require_stable is (version >= 7)


@for_each(versions(OffsetFetchRequest))
def test_offset_fetch_answers_with_a_list_of_groups(version: int) -> None:
    partition = OffsetFetchResponsePartitions(partition_index=1, committed_offset=42, metadata="m")
    topic = OffsetFetchResponseTopics(name="t", topic_id=TOPIC_ID, partitions=[partition])
    response = OffsetFetchResponse(
        groups=[OffsetFetchResponseGroup(group_id="g", topics=[topic])], throttle_time_ms=0
    )
    (group,) = _answered(OffsetFetchRequest, response, version).groups
    assert group.group_id in ("g", "")
    assert group.topics[0].partitions == [partition]


@for_each(versions(OffsetFetchRequest))
def test_an_error_of_the_group_reaches_the_client_in_every_version(version: int) -> None:
    error = GroupCoordinatorNotAvailableError.errno
    topic = OffsetFetchResponseTopics(name="t", partitions=[OffsetFetchResponsePartitions()])
    response = OffsetFetchResponse(
        groups=[OffsetFetchResponseGroup(topics=[topic], error_code=error)]
    )
    (group,) = _answered(OffsetFetchRequest, response, version).groups
    codes = group.error_code, group.topics[0].partitions[0].error_code
    assert codes == ((0, error) if version < 2 else (error, 0))


@for_each(versions(OffsetFetchRequest))
def test_an_error_of_a_partition_is_its_own_in_every_version(version: int) -> None:
    partitions = [OffsetFetchResponsePartitions(error_code=code) for code in (0, 3)]
    topic = OffsetFetchResponseTopics(name="t", topic_id=TOPIC_ID, partitions=partitions)
    response = OffsetFetchResponse(groups=[OffsetFetchResponseGroup(topics=[topic])])
    (group,) = _answered(OffsetFetchRequest, response, version).groups
    assert (group.error_code, group.topics[0].partitions) == (0, partitions)


def _many(count: int) -> OffsetFetchResponse:
    """Return errors of one partition of so many topics."""
    topics = [
        OffsetFetchResponseTopics(name="t", partitions=[OffsetFetchResponsePartitions()])
        for _ in range(count)
    ]
    return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(topics=topics, error_code=16)])


def _of_one_topic(count: int) -> OffsetFetchResponse:
    """Return errors of so many partitions of one topic."""
    partitions = [OffsetFetchResponsePartitions() for _ in range(count)]
    topics = [OffsetFetchResponseTopics(name="t", partitions=partitions)]
    return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(topics=topics, error_code=16)])


@pytest.mark.parametrize(("count", "steps"), [(99, 0), (100, 1), (250, 2)])
def test_large_messages_change_their_layout_in_steps(count: int, steps: int) -> None:
    names = DeleteTopicsRequest(topic_names=["t"] * count)
    for changes in (
        names.from_version_in_steps(1),
        _many(count).for_version_in_steps(1),
        _of_one_topic(count).for_version_in_steps(1),
    ):
        assert len(list(changes)) == steps


@for_each(versions(LeaveGroupRequest))
def test_leave_group_names_a_list_of_members(version: int) -> None:
    request = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="m")])
    assert _sent(request, version) == request


@for_each(versions(LeaveGroupRequest))
def test_leave_group_reports_a_members_error(version: int) -> None:
    member = MemberResponse(member_id="m", error_code=UnknownMemberIdError.errno)
    answered = _answered(LeaveGroupRequest, LeaveGroupResponse(members=[member]), version)
    errors = [answered.error_code, *(m.error_code for m in answered.members)]
    assert UnknownMemberIdError.errno in errors
    assert answered.members == ([member] if version >= 3 else [])


@for_each(versions(DeleteTopicsRequest))
def test_delete_topics_names_a_list_of_topics(version: int) -> None:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name="a"), DeleteTopicState(name="b")])
    assert _sent(request, version) == request


@for_each(versions(AddPartitionsToTxnRequest))
def test_add_partitions_names_a_list_of_transactions(version: int) -> None:
    topics = [AddPartitionsToTxnTopic(name="t", partitions=[0])]
    transaction = AddPartitionsToTxnTransaction(
        transactional_id="x", producer_id=5, producer_epoch=1, topics=topics
    )
    request = AddPartitionsToTxnRequest(transactions=[transaction])
    assert _sent(request, version) == request


@for_each(versions(AddPartitionsToTxnRequest))
def test_add_partitions_answers_by_transaction(version: int) -> None:
    partitions = [AddPartitionsToTxnPartitionResult(partition_index=3, partition_error_code=51)]
    topics = [AddPartitionsToTxnTopicResult(name="t", results_by_partition=partitions)]
    response = AddPartitionsToTxnResponse(
        results_by_transaction=[AddPartitionsToTxnResult(topic_results=topics)]
    )
    assert _answered(AddPartitionsToTxnRequest, response, version) == response


@for_each(versions(MetadataRequest))
def test_metadata_asks_for_all_topics_by_null(version: int) -> None:
    for topics in (None, [MetadataRequestTopic(name="t")]):
        request = MetadataRequest(topics=topics)
        assert _sent(request, version) == request


def test_metadata_tells_none_from_all_where_it_can() -> None:
    assert _sent(MetadataRequest(topics=[]), 1) == MetadataRequest(topics=[])


@for_each(versions(JoinGroupRequest))
def test_members_without_a_rebalance_timeout_get_their_session_timeout(version: int) -> None:
    request = JoinGroupRequest(session_timeout_ms=10, rebalance_timeout_ms=60)
    sent = _sent(request, version)
    assert isinstance(sent, JoinGroupRequest)
    assert sent.rebalance_timeout_ms == (60 if version else 10)
