"""What members of a group write for each other, and what the coordinator writes down."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite.errors import KafkaProtocolError, UnsupportedVersionError
from aiokafka_lite.protocol.codec import decode_key, decode_versioned, encode_key, encode_versioned
from aiokafka_lite.protocol.messages.coordinator_records import (
    GROUP_KEY_CLASSES,
    TRANSACTION_KEY_CLASSES,
    GroupMetadataKey,
    GroupMetadataValue,
    GroupRecordKey,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    TransactionLogKey,
)
from aiokafka_lite.protocol.messages.group_members import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from aiokafka_lite.protocol.schema import Blob
from tests.support.for_each import for_each, in_every_version
from tests.support.samples import BLOB_CLASSES, filled, name_of, versions


@in_every_version((cls, version) for cls in BLOB_CLASSES for version in versions(cls))
def test_blobs_say_their_version(cls: type[Blob], version: int) -> None:
    blob = filled(cls, version)
    written = encode_versioned(blob, version)
    assert written[:2] == version.to_bytes(2, "big")
    assert decode_versioned(cls, written) == blob


def test_a_subscription_is_laid_out_as_java_has_it() -> None:
    subscription = ConsumerProtocolSubscription(
        topics=["ab"], owned_partitions=[TopicPartition(topic="ab", partitions=[5])]
    )
    assert encode_versioned(subscription, 1) == (
        b"\0\1" + b"\0\0\0\1\0\2ab" + b"\xff\xff\xff\xff" + b"\0\0\0\1\0\2ab\0\0\0\1\0\0\0\5"
    )


def test_a_newer_subscription_is_read_as_far_as_it_is_known() -> None:
    subscription = ConsumerProtocolSubscription(topics=["t"], rack_id="r")
    newer = b"\0\x09" + encode_versioned(subscription, 3)[2:] + b"what came later"
    assert decode_versioned(ConsumerProtocolSubscription, newer) == subscription


def test_a_newer_group_record_is_refused_for_it_would_be_misread() -> None:
    newer = b"\0\5" + encode_versioned(OffsetCommitValue(offset=3), 4)[2:]
    with pytest.raises(UnsupportedVersionError, match="versions 0-4"):
        decode_versioned(OffsetCommitValue, newer)


def test_bytes_behind_a_subscription_are_refused_unless_its_version_is_newer() -> None:
    subscription = encode_versioned(ConsumerProtocolSubscription(topics=["t"]), 3)
    with pytest.raises(KafkaProtocolError, match="bytes were received"):
        decode_versioned(ConsumerProtocolSubscription, subscription + b"\0")


@pytest.mark.parametrize("cls", [ConsumerProtocolAssignment, OffsetCommitValue], ids=name_of)
@for_each(
    [
        (b"", "too few for the version"),
        (b"\0", "too few for the version"),
        (b"\0\0", "is incomplete"),
        (b"\0\0\x7f\xff\xff\xff", "is incomplete|too large for the remaining"),
    ]
)
def test_broken_blobs_are_refused(data: bytes, error: str, cls: type[Blob]) -> None:
    with pytest.raises(KafkaProtocolError, match=error):
        decode_versioned(cls, data)


def test_a_negative_version_is_refused() -> None:
    with pytest.raises(UnsupportedVersionError):
        decode_versioned(ConsumerProtocolAssignment, b"\xff\xff" + bytes(8))


@pytest.mark.parametrize(
    ("key", "written"),
    [
        (
            OffsetCommitKey(group="g", topic="t", partition=3),
            b"\0\1" + b"\0\1g" + b"\0\1t" + b"\0\0\0\3",
        ),
        (GroupMetadataKey(group="gr"), b"\0\2" + b"\0\2gr"),
    ],
)
def test_keys_start_with_their_record_type(key: GroupRecordKey, written: bytes) -> None:
    assert encode_key(key) == written
    assert decode_key(GROUP_KEY_CLASSES, written) == key


def test_offset_keys_of_the_oldest_type_are_read() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=3)
    assert decode_key(GROUP_KEY_CLASSES, b"\0\0" + encode_key(key)[2:]) == key


@pytest.mark.parametrize("record_type", [9, 17, -1])
def test_keys_of_other_groups_are_left_to_others(record_type: int) -> None:
    for rest in (b"whatever", b""):
        assert (
            decode_key(GROUP_KEY_CLASSES, record_type.to_bytes(2, "big", signed=True) + rest)
            is None
        )


def test_keys_of_transactions_start_with_their_record_type_too() -> None:
    key = TransactionLogKey(transactional_id="tx")
    written = b"\0\0" + b"\0\2tx"
    assert encode_key(key) == written
    assert decode_key(TRANSACTION_KEY_CLASSES, written) == key
    for newer in (b"\0\1", b"\0\1whatever"):
        assert decode_key(TRANSACTION_KEY_CLASSES, newer) is None
    with pytest.raises(KafkaProtocolError, match="too short for a record type"):
        decode_key(TRANSACTION_KEY_CLASSES, b"\0")


@given(st.binary(max_size=40))
def test_noise_is_no_key(noise: bytes) -> None:
    try:
        decode_key(GROUP_KEY_CLASSES, noise)
    except KafkaProtocolError:
        pass


def test_group_values_hold_what_members_wrote() -> None:
    subscription = encode_versioned(ConsumerProtocolSubscription(topics=["t"]), 3)
    member = MemberMetadata(member_id="m", subscription=subscription, session_timeout=10_000)
    value = GroupMetadataValue(protocol_type="consumer", generation=4, members=[member])
    (read,) = decode_versioned(GroupMetadataValue, encode_versioned(value, 3)).members
    assert decode_versioned(ConsumerProtocolSubscription, read.subscription).topics == ["t"]
