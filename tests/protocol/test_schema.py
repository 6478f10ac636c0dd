"""What a declaration becomes."""

from __future__ import annotations

import inspect
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    PartitionData,
)
from aiokafka_lite.protocol.messages.sasl import SaslAuthenticateRequest
from aiokafka_lite.protocol.schema import ZERO_UUID, Message
from aiokafka_lite.protocol.varint import encode_uvarint, read_uvarint
from aiokafka_lite.protocol.wire import VersionRange, uuid_from_str, uuid_to_str
from tests.support.for_each import for_each
from tests.support.samples import MESSAGE_CLASSES, filled


@for_each(MESSAGE_CLASSES)
def test_constructors_take_keywords_only_and_fill_in_defaults(cls: type[Message]) -> None:
    message = cls()
    for field in cls.schema:
        assert getattr(message, field.name) == field.new_default()
    names = [field.name for field in cls.schema]
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    assert [parameter.name for parameter in parameters] == names
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters)
    with pytest.raises(TypeError):
        cls(no_such_field=1)  # type: ignore[call-arg] # that is the point


@for_each(MESSAGE_CLASSES)
def test_messages_have_slots_only(cls: type[Message]) -> None:
    message = cls()
    assert not hasattr(message, "__dict__")
    with pytest.raises(AttributeError):
        setattr(message, "no_such_field", 1)  # noqa: B010 -- a type checker would object


def test_messages_do_not_share_their_lists_and_structs() -> None:
    one, other = FetchRequest(), FetchRequest()
    one.topics.append(FetchTopic())
    one.replica_state.replica_id = 7
    assert other == FetchRequest()
    first, second = PartitionData(), PartitionData()
    first.current_leader.leader_id = 3
    assert second.current_leader == LeaderIdAndEpoch()
    assert first.current_leader is first.current_leader
    first.current_leader = LeaderIdAndEpoch(leader_id=5)
    assert first.current_leader.leader_id == 5


def test_messages_are_equal_by_value_and_class() -> None:
    assert FetchPartition(partition=1) == FetchPartition(partition=1)
    assert FetchPartition(partition=1) != FetchPartition(partition=2)
    assert FetchPartition() != FetchTopic()
    with pytest.raises(TypeError, match="unhashable"):
        hash(FetchPartition())


def test_repr_shows_what_was_set() -> None:
    topic = FetchTopic(topic="t", topic_id=bytes(15) + b"\1", partitions=[FetchPartition()])
    assert repr(topic) == (
        "FetchTopic(topic='t', topic_id=AAAAAAAAAAAAAAAAAAAAAQ, partitions=[FetchPartition()])"
    )
    assert repr(FetchRequest()) == "FetchRequest()"


def test_repr_keeps_credentials_and_records_to_itself() -> None:
    assert repr(SaslAuthenticateRequest(auth_bytes=b"\0me\0secret")) == (
        "SaslAuthenticateRequest(auth_bytes=<10 bytes>)"
    )
    partition = PartitionData(records=memoryview(b"private"))
    assert repr(partition) == "PartitionData(records=<7 bytes>)"


def test_repr_shortens_long_lists() -> None:
    partitions = [PartitionData(partition_index=index) for index in range(3000)]
    response = FetchResponse(responses=[FetchableTopicResponse(partitions=partitions)])
    assert "... 2984 more]" in repr(response)
    assert len(repr(response)) < 1000
    assert "more]" not in repr(FetchableTopicResponse(partitions=partitions[:16]))
    assert "... 1 more]" in repr(FetchableTopicResponse(partitions=partitions[:17]))


@for_each(MESSAGE_CLASSES)
def test_repr_can_be_read_by_people(cls: type[Message]) -> None:
    shown = repr(filled(cls, cls.versions.last))
    assert shown.startswith(f"{cls.__name__}(")
    assert "object at 0x" not in shown


@for_each(
    [
        ("0+", {0, 1, 2, 3, 4}),
        ("2-3", {2, 3}),
        ("3", {3}),
        ("4+", {4}),
        ("12+", set()),
        ("none", set()),
    ]
)
def test_version_ranges_read_and_write_kafkas_notation(text: str, covered: set[int]) -> None:
    VersionRange.parse.cache_clear()
    versions = VersionRange.parse(text)
    assert {version for version in range(5) if versions.covers(version)} == covered
    assert str(versions) == text


@given(st.binary(min_size=16, max_size=16))
def test_uuids_are_written_as_kafka_does(uuid: bytes) -> None:
    text = uuid_to_str(uuid)
    assert uuid_from_str(text) == uuid
    assert len(text) == 22
    assert set(text) <= set(string.ascii_letters + string.digits + "-_")


def test_a_uuid_of_another_length_is_refused() -> None:
    assert uuid_to_str(ZERO_UUID) == "A" * 22
    with pytest.raises(ValueError, match="not a Kafka UUID"):
        uuid_from_str("AAAA")


@given(st.integers(0, 2**32 - 1))
def test_varints_take_seven_bits_a_byte(value: int) -> None:
    written = encode_uvarint(value)
    assert len(written) == max(1, -(-value.bit_length() // 7))
    assert read_uvarint(memoryview(written + b"\xff"), 0) == (value, len(written))
