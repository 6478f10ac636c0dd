"""Requests from templates have the bytes of the requests they stand for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokafka_lite.errors import IllegalArgumentError, UnsupportedVersionError
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.fetch_template import (
    FetchTemplate,
    PartitionToFetch,
    PreparedFetch,
    TopicToFetch,
    TopicToForget,
    compile_template,
)
from aiokafka_lite.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from aiokafka_lite.protocol.messages.group_members import HeartbeatRequest
from aiokafka_lite.protocol.schema import ZERO_UUID
from tests.support.for_each import for_each
from tests.support.rounds import LONG
from tests.support.samples import versions

FETCH_VERSIONS = versions(FetchRequest)
TOPIC_ID = bytes(range(16))

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
# Long enough for lengths of two bytes.
TEXT = st.text(max_size=20) | st.just("ü" * 100)
UUID = st.binary(min_size=16, max_size=16) | st.just(ZERO_UUID)


def lists_of(element: st.SearchStrategy[object]) -> st.SearchStrategy[list[object]]:
    """Short lists, those of one above all, and one whose count takes two bytes."""
    alone = st.builds(lambda one: [one], element)
    return alone | st.lists(element, max_size=3) | st.builds(lambda one: [one] * 130, element)


TO_FETCH = lists_of(st.tuples(TEXT, UUID, lists_of(st.tuples(INT32, INT32, INT64, INT32))))
TO_FORGET = lists_of(st.tuples(TEXT, UUID, lists_of(INT32)))


def whole(
    topics: list[TopicToFetch], forgotten: list[TopicToForget], **fields: object
) -> FetchRequest:
    """Return the request as a message."""
    return FetchRequest(
        topics=[
            FetchTopic(
                topic=name,
                topic_id=topic_id,
                partitions=[
                    FetchPartition(
                        partition=partition,
                        current_leader_epoch=leader_epoch,
                        fetch_offset=offset,
                        partition_max_bytes=max_bytes,
                    )
                    for partition, leader_epoch, offset, max_bytes in partitions
                ],
            )
            for name, topic_id, partitions in topics
        ],
        forgotten_topics_data=[
            ForgottenTopic(topic=name, topic_id=topic_id, partitions=list(partitions))
            for name, topic_id, partitions in forgotten
        ],
        **fields,  # type: ignore[arg-type]
    )


def fetch(
    topics: list[TopicToFetch] | None = None,
    forgotten: list[TopicToForget] | None = None,
    *,
    max_bytes: int = 1,
) -> PreparedFetch:
    return PreparedFetch(
        FetchTemplate(min_bytes=1, isolation_level=0),
        max_wait_ms=500,
        session_id=0,
        session_epoch=0,
        max_bytes=max_bytes,
        topics=topics or [],
        forgotten=forgotten or [],
    )


def one(topic_id: bytes = TOPIC_ID, *, offset: int = 0) -> TopicToFetch:
    partition: PartitionToFetch = (0, -1, offset, 1)
    return ("t", topic_id, [partition])


@settings(max_examples=1_500 if LONG else 75)  # there are fifteen versions
@given(version=st.sampled_from(FETCH_VERSIONS), data=st.data())
def test_fetch_has_the_bytes_of_the_message(version: int, data: st.DataObject) -> None:
    draw = data.draw
    common = {
        "min_bytes": draw(INT32),
        "isolation_level": draw(st.integers(0, 1)),
    }
    changing: dict[str, object] = {
        "session_id": draw(INT32),
        "session_epoch": draw(INT32),
        "max_bytes": draw(INT32),
        "rack_id": draw(TEXT),
        "max_wait_ms": draw(INT32),
    }
    topics = draw(TO_FETCH)
    forgotten = draw(st.just([]) | TO_FORGET) if version >= 7 else []
    correlation_id, client_id = draw(INT32), draw(st.none() | TEXT)
    request = PreparedFetch(
        FetchTemplate(**common),
        topics=topics,  # type: ignore[arg-type]
        forgotten=forgotten,  # type: ignore[arg-type]
        **changing,  # type: ignore[arg-type]
    )
    message = whole(topics, forgotten, **common, **changing)  # type: ignore[arg-type]
    expected = framing.encode_request(message, version, correlation_id, client_id)
    assert request.encode(version, correlation_id, client_id) == expected
    assert request.usable_max_version == message.usable_max_version
    assert request.request_class is FetchRequest
    assert request.expects_response


@for_each(FETCH_VERSIONS)
def test_fixed_tagged_fields_have_the_bytes_of_the_message(version: int) -> None:
    fixed = FetchRequest(cluster_id="ü" * 100, rack_id="r")
    if version >= 15:
        fixed.replica_state = ReplicaState(replica_id=3, replica_epoch=4)
    template = compile_template(fixed, {FetchRequest: ("min_bytes",)}, version, "me")
    fixed.min_bytes = 77
    assert template(5, 77) == framing.encode_request(fixed, version, 5, "me")


@for_each(versions(HeartbeatRequest))
def test_requests_without_arrays_have_the_bytes_of_the_message(version: int) -> None:
    for instance_id in (None, "static") if version >= 3 else (None,):
        request = HeartbeatRequest(group_id="g", member_id="m", group_instance_id=instance_id)
        template = compile_template(request, {HeartbeatRequest: ("generation_id",)}, version, None)
        request.generation_id = 9
        assert template(1, 9) == framing.encode_request(request, version, 1, None)


@pytest.mark.parametrize("topics", [[one(), one(ZERO_UUID)], [one(ZERO_UUID)]])
def test_partitions_of_a_topic_without_an_id_are_asked_for_by_name(
    topics: list[TopicToFetch],
) -> None:
    assert fetch(topics).usable_max_version == 12
    assert fetch([one()], [("t", ZERO_UUID, [1])]).usable_max_version == 12
    assert fetch([one()], [("t", TOPIC_ID, [1])]).usable_max_version == FetchRequest.max_version


@for_each([4, 5, 6])
def test_what_a_version_cannot_carry_is_refused(version: int) -> None:
    with pytest.raises(UnsupportedVersionError, match="forgotten_topics_data"):
        fetch([one()], [("t", TOPIC_ID, [1])]).encode(version, 1, "me")
    fixed = FetchRequest(replica_state=ReplicaState(replica_id=1))
    with pytest.raises(UnsupportedVersionError, match="replica_state"):
        compile_template(fixed, {FetchRequest: ()}, version, "me")(1)


@for_each(
    [
        (12, fetch(max_bytes=2**31)),
        (12, fetch([one(offset=2**63)])),
        (13, fetch([one(b"short")])),
        (17, fetch([("t", TOPIC_ID, [(1, 2, 3)])])),  # type: ignore[list-item]
        (17, fetch([], [("t", TOPIC_ID, [2**31])])),
    ]
)
def test_values_that_do_not_fit_are_refused(version: int, request_: PreparedFetch) -> None:
    with pytest.raises(
        IllegalArgumentError, match=f"FetchRequest v{version}: a field has an invalid value"
    ):
        request_.encode(version, 1, "me")


def test_templates_of_consumers_with_the_same_settings_are_compiled_once() -> None:
    def template(min_bytes: int) -> FetchTemplate:
        return FetchTemplate(min_bytes=min_bytes, isolation_level=0)

    key = (FETCH_VERSIONS[-1], "tests", "", True)
    assert template(1).compile(key) is template(1).compile(key)
    assert template(1).compile(key) is not template(2).compile(key)
