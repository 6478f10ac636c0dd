"""What is encoded is decoded again, in every version of every message."""

from __future__ import annotations

import copy
import pickle
import traceback

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokafka_lite.errors import IllegalArgumentError, KafkaProtocolError, UnsupportedVersionError
from aiokafka_lite.protocol import codec, framing
from aiokafka_lite.protocol.decoding import Head
from aiokafka_lite.protocol.encoding import Part
from aiokafka_lite.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from aiokafka_lite.protocol.messages.group_members import HeartbeatRequest, JoinGroupRequest
from aiokafka_lite.protocol.messages.metadata import ApiVersionsResponse, MetadataRequest
from aiokafka_lite.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchRequestTopics,
)
from aiokafka_lite.protocol.registry import REQUESTS
from aiokafka_lite.protocol.schema import Message
from aiokafka_lite.protocol.source import ELEMENTS_PER_STEP, run_to_end
from aiokafka_lite.protocol.varint import encode_uvarint
from tests.support.for_each import for_each, in_every_version
from tests.support.rounds import LONG
from tests.support.samples import (
    EVERY_VERSION,
    MESSAGE_CLASSES,
    any_message,
    filled,
    versions,
)

every_version = in_every_version(EVERY_VERSION)


@every_version
def test_messages_survive(cls: type[Message], version: int) -> None:
    for message in (cls(), filled(cls, version), filled(cls, version, has_nulls=True)):
        assert codec.decode(cls, version, codec.encode(message, version)) == message


@every_version
def test_steps_come_to_the_same(cls: type[Message], version: int) -> None:
    for message in (cls(), filled(cls, version), filled(cls, version, has_nulls=True)):
        parts: list[Part] = []
        body = codec.encode(message, version)
        run_to_end(codec.encoder_in_steps(cls, version)(message, parts.append))
        assert b"".join(parts) == body
        decode = codec.decoder_in_steps(cls, version)
        assert run_to_end(decode(memoryview(body))) == message
        for size in range(0, len(body), 7 if LONG else 29):
            with pytest.raises(KafkaProtocolError):
                run_to_end(decode(memoryview(body)[:size]))


def test_large_message_takes_many_steps() -> None:
    topics = [
        ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition() for _ in range(n)])
        for n in (3_000, 1, 2_000)
    ]
    request = ListOffsetsRequest(topics=topics)
    parts: list[Part] = []
    encoding = list(codec.encoder_in_steps(ListOffsetsRequest, 9)(request, parts.append))
    body = memoryview(b"".join(parts))
    decoding = list(codec.decoder_in_steps(ListOffsetsRequest, 9)(body))
    assert len(encoding) == len(decoding) == 5_004 // (ELEMENTS_PER_STEP + 1)


def test_an_array_of_numbers_ends_a_step() -> None:
    topic = OffsetFetchRequestTopics(name="t", partition_indexes=list(range(1_000)))
    request = OffsetFetchRequest(topics=[topic] * 3)
    parts: list[Part] = []
    assert len(list(codec.encoder_in_steps(OffsetFetchRequest, 7)(request, parts.append))) == 3
    body = memoryview(b"".join(parts))
    assert len(list(codec.decoder_in_steps(OffsetFetchRequest, 7)(body))) == 3


def unknown_tags(count: int) -> bytes:
    """Return so many tagged fields that no message has."""
    tags = b"".join(encode_uvarint(tag) + b"\0" for tag in range(100, 100 + count))
    return encode_uvarint(count) + tags


def test_unknown_tags_are_skipped_in_steps() -> None:
    heartbeat = codec.encode(HeartbeatRequest(group_id="g"), 4)[:-1]
    api_versions = codec.encode(ApiVersionsResponse(), 3)[:-1]
    for count, expected in ((99, 0), (100, 1), (1_000, 10)):
        body = memoryview(heartbeat + unknown_tags(count))
        assert len(list(codec.decoder_in_steps(HeartbeatRequest, 4)(body))) == expected
        # Among tagged fields of its own.
        body = memoryview(api_versions + unknown_tags(count + expected))
        assert len(list(codec.decoder_in_steps(ApiVersionsResponse, 3)(body))) == expected
    body = memoryview(heartbeat + unknown_tags(1_000))
    steps = codec.decoder_in_steps(HeartbeatRequest, 4)(memoryview(body))
    assert run_to_end(steps) == HeartbeatRequest(group_id="g")


@for_each([126, 127, (1 << 14) - 2, (1 << 14) - 1, (1 << 21) - 1])
def test_lengths_at_which_varints_grow_survive(size: int) -> None:
    request = HeartbeatRequest(group_id="g" * (size & 0x7FFF), member_id="m" * size)
    body = codec.encode(request, 4)
    assert codec.decode(HeartbeatRequest, 4, body) == request
    head = len(encode_uvarint(len(request.group_id) + 1))
    for shortened in range(head):
        with pytest.raises(KafkaProtocolError):
            codec.decode(HeartbeatRequest, 4, body[:shortened])


@every_version
def test_every_shortened_message_is_refused(cls: type[Message], version: int) -> None:
    body = codec.encode(filled(cls, version), version)
    for size in range(len(body) - 1, -1, -1 if LONG else -4):
        with pytest.raises(KafkaProtocolError):
            codec.decode(cls, version, body[:size])


@every_version
def test_bytes_behind_a_message_are_refused(cls: type[Message], version: int) -> None:
    with pytest.raises(KafkaProtocolError, match="bytes were received"):
        codec.decode(cls, version, codec.encode(cls(), version) + b"\0")


@every_version
def test_bytes_behind_an_answer_are_passed_over(cls: type[Message], version: int) -> None:
    """As other clients do: librdkafka's mock cluster sends a byte too many."""
    for request in REQUESTS.values():
        if request.response is cls:
            frame = framing.encode_response(cls(), version, 1)[4:]
            exact = framing.response_decoder(request, version)(memoryview(frame))
            assert framing.response_decoder(request, version)(memoryview(frame + b"\0")) == exact


@settings(max_examples=5_000 if LONG else 135)  # there are over a hundred messages
@given(case=st.sampled_from(EVERY_VERSION), data=st.data())
def test_any_message_survives(case: tuple[type[Message], int], data: st.DataObject) -> None:
    cls, version = case
    message = data.draw(any_message(cls, version))
    body = codec.encode(message, version)
    decoded = codec.decode(cls, version, body)
    assert decoded == message
    assert codec.encode(decoded, version) == body


@for_each([4, 11, 12, 18])
def test_record_sets_are_slices_of_the_frame_and_sent_without_a_copy(version: int) -> None:
    record_set = bytes(range(256)) * 100
    partition = PartitionData(records=record_set)
    response = FetchResponse(responses=[FetchableTopicResponse(partitions=[partition])])
    assert any(part is record_set for part in codec.encode_parts(response, version))

    frame = codec.encode(response, version)
    decoded = codec.decode(FetchResponse, version, frame).responses[0].partitions[0].records
    assert isinstance(decoded, memoryview)
    assert decoded.obj is frame
    assert decoded == record_set


def test_a_set_field_that_the_version_lacks_is_refused() -> None:
    with pytest.raises(UnsupportedVersionError, match=r"version 2 .* HeartbeatRequest\.group_inst"):
        codec.encode(HeartbeatRequest(group_instance_id="static"), 2)
    nested = FetchRequest(topics=[FetchTopic(partitions=[FetchPartition(last_fetched_epoch=3)])])
    with pytest.raises(UnsupportedVersionError, match="last_fetched_epoch"):
        codec.encode(nested, 11)


def test_an_ignorable_field_that_the_version_lacks_is_left_out() -> None:
    body = codec.encode(JoinGroupRequest(group_id="g", reason="restart"), 7)
    assert codec.decode(JoinGroupRequest, 7, body) == JoinGroupRequest(group_id="g")


def test_a_null_that_the_version_lacks_is_refused() -> None:
    with pytest.raises(UnsupportedVersionError, match=r"version 0 .* MetadataRequest\.topics"):
        codec.encode(MetadataRequest(topics=None), 0)


@pytest.mark.parametrize("version", [1, 11])
def test_a_version_that_does_not_exist_is_refused(version: int) -> None:
    with pytest.raises(UnsupportedVersionError, match="versions 2-10"):
        codec.encode(OffsetCommitRequest(), version)
    with pytest.raises(UnsupportedVersionError, match="versions 2-10"):
        codec.decode(OffsetCommitRequest, version, b"")
    with pytest.raises(UnsupportedVersionError, match="versions 2-10"):
        codec.encoder_in_steps(OffsetCommitRequest, version)
    with pytest.raises(UnsupportedVersionError, match="versions 2-10"):
        codec.decoder_in_steps(OffsetCommitRequest, version)
    with pytest.raises(UnsupportedVersionError, match="versions 4-18"):
        codec.piecewise_decoder(FetchResponse, 3, PartitionData, Head.PLAIN)


@for_each(
    [
        HeartbeatRequest(generation_id=2**31),
        HeartbeatRequest(group_id="x" * 40_000),
        HeartbeatRequest(group_id="\ud800"),
        HeartbeatRequest(group_id=None),  # type: ignore[arg-type] # that is the point
        HeartbeatRequest(member_id=b"bytes"),  # type: ignore[arg-type] # likewise
    ]
)
def test_a_value_that_misfits_its_field_is_the_callers_mistake(message: HeartbeatRequest) -> None:
    with pytest.raises(IllegalArgumentError, match="HeartbeatRequest v3"):
        codec.encode(message, 3)


@pytest.mark.parametrize("topic_id", [b"", bytes(15), bytes(17)])
def test_a_uuid_of_another_length_is_the_callers_mistake(topic_id: bytes) -> None:
    with pytest.raises(IllegalArgumentError, match=r"topics\.topic_id does not have 16 bytes"):
        codec.encode(FetchRequest(topics=[FetchTopic(topic_id=topic_id)]), 13)


def test_generated_code_shows_in_tracebacks() -> None:
    with pytest.raises(IllegalArgumentError) as caught:
        codec.encode(HeartbeatRequest(generation_id="seven"), 4)  # type: ignore[arg-type] # so
    cause = caught.value.__cause__
    assert cause is not None
    shown = "".join(traceback.format_tb(cause.__traceback__))
    assert "encode HeartbeatRequest v4" in shown
    assert "message.generation_id" in shown


@for_each(MESSAGE_CLASSES)
def test_messages_are_copied_and_pickled_by_value(cls: type[Message]) -> None:
    message = filled(cls, cls.versions.last)
    assert copy.deepcopy(message) == message
    assert pickle.loads(pickle.dumps(message)) == message  # noqa: S301 -- our own bytes


def test_aborted_transactions_tell_null_from_none() -> None:
    for aborted in (None, [], [AbortedTransaction(producer_id=7, first_offset=5)]):
        partition = PartitionData(aborted_transactions=aborted)
        response = FetchResponse(responses=[FetchableTopicResponse(partitions=[partition])])
        for version in versions(FetchResponse):
            body = codec.encode(response, version)
            (topic,) = codec.decode(FetchResponse, version, body).responses
            assert topic.partitions[0].aborted_transactions == aborted
