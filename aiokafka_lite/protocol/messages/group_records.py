"""Keys and values in ``__consumer_offsets``, and what the keys and values of markers hold.

A key starts with the type of the record, a value with its version, two bytes each. The types are
Kafka's ``CoordinatorRecordType``: 1 (before Kafka 0.9: 0) a committed offset, 2 a classic group,
3 to 8 and 16 the groups of KIP-848 (consumer_group_records.py); the others belong to kinds of
groups that are not known here.
"""

from __future__ import annotations

import enum
import struct
from typing import ClassVar, Final

from aiokafka_lite._compat import Buffer
from aiokafka_lite.errors import KafkaProtocolError
from aiokafka_lite.protocol.codec import decode, decode_versioned, encode, encode_versioned
from aiokafka_lite.protocol.messages import consumer_group_records as consumer_groups
from aiokafka_lite.protocol.schema import (
    Blob,
    Struct,
    array,
    blob,
    int16,
    int32,
    int64,
    string,
    uuid,
)

__all__ = [
    "ControlRecordType",
    "ControlRecordTypeSchema",
    "EndTxnMarker",
    "GroupMetadataKey",
    "GroupMetadataValue",
    "GroupRecordKey",
    "MemberMetadata",
    "OffsetCommitKey",
    "OffsetCommitValue",
    "decode_key",
    "decode_versioned",
    "encode_key",
    "encode_versioned",
]


class OffsetCommitKey(Blob, versions="0"):
    """Whose position in what."""

    record_type: ClassVar[int] = 1

    group: str = string("0")
    topic: str = string("0")
    partition: int = int32("0")


class OffsetCommitValue(Blob, versions="0-4", flexible="4+"):
    """A position, as OffsetCommit brought it. No value: it expired or was deleted."""

    offset: int = int64("0+")
    leader_epoch: int = int32("3+", default=-1, ignorable=True)  # KIP-320
    metadata: str = string("0+")
    commit_timestamp: int = int64("0+")
    expire_timestamp: int = int64("1", default=-1, ignorable=True)
    topic_id: bytes = uuid("4+", tag=0, ignorable=True)  # KIP-848


class GroupMetadataKey(Blob, versions="0"):
    """The key: a group."""

    record_type: ClassVar[int] = 2

    group: str = string("0")


class MemberMetadata(Struct):
    """A member of a stable generation."""

    member_id: str = string("0+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None, ignorable=True)
    client_id: str = string("0+")
    client_host: str = string("0+")
    rebalance_timeout: int = int32("1+", default=-1, ignorable=True)  # milliseconds
    session_timeout: int = int32("0+")  # milliseconds
    subscription: bytes = blob("0+")
    assignment: bytes = blob("0+")


class GroupMetadataValue(Blob, versions="0-4", flexible="4+"):
    """A generation of a classic group. No value: the group is gone."""

    protocol_type: str = string("0+")
    generation: int = int32("0+")
    protocol: str | None = string("0+", nullable="0+")
    leader: str | None = string("0+", nullable="0+")
    current_state_timestamp: int = int64("2+", default=-1, ignorable=True)
    members: list[MemberMetadata] = array(MemberMetadata, "0+")


GroupRecordKey = OffsetCommitKey | GroupMetadataKey | consumer_groups.ConsumerGroupKey
_INT16: Final = struct.Struct(">h")
_KEYS: Final[dict[int, type[GroupRecordKey]]] = {
    0: OffsetCommitKey,
    OffsetCommitKey.record_type: OffsetCommitKey,
    GroupMetadataKey.record_type: GroupMetadataKey,
    **{key.record_type: key for key in consumer_groups.VALUE_OF},
}


def encode_key(key: GroupRecordKey) -> bytes:
    """Encode the key of a group record after its record type."""
    return _INT16.pack(key.record_type) + encode(key, 0)


def decode_key(data: Buffer) -> GroupRecordKey | None:
    """Decode the key of a group record; None for types that are not known here.

    Raises:
        KafkaProtocolError: The bytes are no such key.
    """
    view = memoryview(data)
    if len(view) < _INT16.size:
        raise KafkaProtocolError(
            f"a group record's key of {len(view)} bytes is too short for a record type"
        )
    (record_type,) = _INT16.unpack_from(view)
    cls = _KEYS.get(record_type)
    return None if cls is None else decode(cls, 0, view[_INT16.size :])


# --- Control records -------------------------------------------------------------------------
class ControlRecordType(enum.IntEnum):
    """The type of a control record (Java: ControlRecordType)."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class ControlRecordTypeSchema(Blob, versions="0"):
    """The key of a control record."""

    type: int = int16("0+")


class EndTxnMarker(Blob, versions="0"):
    """The value of a transaction's marker."""

    coordinator_epoch: int = int32("0+")
