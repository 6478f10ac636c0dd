"""Whatever the bytes, decoding ends soon, in a message or in KafkaProtocolError (FE-13)."""

from __future__ import annotations

import random
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokafka_lite.errors import KafkaProtocolError
from aiokafka_lite.protocol import codec
from aiokafka_lite.protocol.messages.fetch import FetchResponse
from aiokafka_lite.protocol.messages.group_members import (
    HeartbeatRequest,
    HeartbeatResponse,
    SyncGroupResponse,
)
from aiokafka_lite.protocol.messages.metadata import ApiVersionsResponse, MetadataResponse
from aiokafka_lite.protocol.schema import Message
from aiokafka_lite.protocol.varint import encode_uvarint
from tests.support.for_each import for_each, in_every_version
from tests.support.rounds import LONG
from tests.support.samples import EVERY_VERSION, filled

MUTATIONS = 400 if LONG else 20
INTERESTING = (0, 1, 2, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF)


def _mutate(body: bytes, rng: random.Random) -> bytes:
    mutated = bytearray(body)
    for _ in range(rng.randint(1, 4)):
        pos = rng.randrange(len(mutated) + 1)
        match rng.randrange(5):
            case 0:
                mutated[pos : pos + 1] = bytes([rng.choice(INTERESTING)])
            case 1:
                mutated[pos : pos + 1] = bytes([rng.randrange(256)])
            case 2:
                del mutated[pos : pos + rng.randint(1, 8)]
            case 3:
                mutated[pos:pos] = bytes(rng.choice(INTERESTING) for _ in range(rng.randint(1, 5)))
            case _:
                mutated[pos : pos + 4] = rng.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff"))
    return bytes(mutated)


@in_every_version(EVERY_VERSION)
def test_mutated_messages_are_decoded_or_refused(cls: type[Message], version: int) -> None:
    rng = random.Random(f"{cls.__name__} {version}")
    body = codec.encode(filled(cls, version), version)
    for _ in range(MUTATIONS):
        mutated = _mutate(body, rng)
        try:
            message = codec.decode(cls, version, mutated)
        except KafkaProtocolError:
            continue
        # What was let in has values that can be sent on (if not the same bytes: unknown tags).
        # Compared as bytes: a float may be "not a number", which equals nothing.
        sent_on = codec.encode(message, version)
        assert codec.encode(codec.decode(cls, version, sent_on), version) == sent_on


@settings(max_examples=5_000 if LONG else 135)  # there are over a hundred messages
@given(case=st.sampled_from(EVERY_VERSION), noise=st.binary(max_size=300))
def test_noise_is_decoded_or_refused(case: tuple[type[Message], int], noise: bytes) -> None:
    cls, version = case
    try:
        codec.decode(cls, version, noise)
    except KafkaProtocolError:
        pass


@pytest.mark.parametrize("count", [2**31 - 1, 2**31 - 2, 10_000_000])
@for_each(
    [
        pytest.param(0, bytes(4), id="int32"),
        pytest.param(9, bytes(4), id="varint"),
    ]
)
def test_a_false_count_costs_nothing(version: int, head: bytes, count: int) -> None:
    """CVE-2022-34917: a broker allocated arrays by the count that a stranger sent."""
    if version == 0:
        body = count.to_bytes(4, "big") + bytes(64)
    else:
        body = head + encode_uvarint(count) + bytes(64)
    codec.decoder(MetadataResponse, version)  # compiled beforehand: that takes memory, too
    tracemalloc.start()
    try:
        with pytest.raises(KafkaProtocolError, match=r"brokers is .* too large for the remaining"):
            codec.decode(MetadataResponse, version, body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize("length", [-2, -32768])
def test_negative_lengths_are_refused(length: int) -> None:
    body = length.to_bytes(2, "big", signed=True) + bytes(20)
    with pytest.raises(KafkaProtocolError, match="group_id cannot be null"):
        codec.decode(HeartbeatRequest, 0, body)


def test_a_null_that_the_version_lacks_is_refused() -> None:
    with pytest.raises(KafkaProtocolError, match="group_id cannot be null"):
        codec.decode(HeartbeatRequest, 4, bytes(20))
    with pytest.raises(KafkaProtocolError, match="assignment cannot be null"):
        codec.decode(SyncGroupResponse, 0, b"\0\0" + b"\xff" * 4)


def test_strings_that_are_not_utf8_are_refused() -> None:
    body = b"\0\2\xff\xfe" + bytes(4) + b"\0\0"
    with pytest.raises(KafkaProtocolError, match="not UTF-8"):
        codec.decode(HeartbeatRequest, 0, body)


@pytest.mark.parametrize(
    "varint",
    [
        pytest.param(b"\x80" * 10 + b"\1", id="11-bytes"),
        pytest.param(b"\x80" * 5 + b"\1", id="6-bytes"),
        pytest.param(b"\xff\xff\xff\xff\x10", id="33-bits"),
    ],
)
def test_varints_longer_than_32_bits_are_refused(varint: bytes) -> None:
    with pytest.raises(KafkaProtocolError, match="varint"):
        codec.decode(HeartbeatRequest, 4, varint + bytes(30))


@pytest.mark.parametrize(
    ("tags", "error"),
    [
        pytest.param(b"\2\5\0\5\0", "follows tag 5", id="twice"),
        pytest.param(b"\2\7\0\5\0", "follows tag 7", id="descending"),
        pytest.param(b"\1\5\4abc", "tagged field 5 is 4 bytes", id="too-long"),
        pytest.param(b"\xff\xff\xff\xff\x0f\5\0", "is incomplete", id="too-many"),
    ],
)
def test_tagged_fields_out_of_order_are_refused(tags: bytes, error: str) -> None:
    with pytest.raises(KafkaProtocolError, match=error):
        codec.decode(HeartbeatResponse, 4, bytes(6) + tags)
    api_versions = bytes(2) + b"\1" + bytes(4)
    with pytest.raises(KafkaProtocolError, match=error):
        codec.decode(ApiVersionsResponse, 3, api_versions + tags)


def test_a_tagged_field_shorter_or_longer_than_its_value_is_refused() -> None:
    api_versions = bytes(2) + b"\1" + bytes(4)
    for size in (7, 9):
        tags = b"\1" + b"\1" + bytes([size]) + bytes(10)
        with pytest.raises(KafkaProtocolError, match="finalized_features_epoch"):
            codec.decode(ApiVersionsResponse, 3, api_versions + tags)


def test_unknown_tagged_fields_are_skipped() -> None:
    epoch = b"\1\x08" + (7).to_bytes(8, "big")
    unknown = b"\x60\3abc" + b"\x81\1\0"
    body = bytes(2) + b"\1" + bytes(4) + b"\3" + epoch + unknown
    assert codec.decode(ApiVersionsResponse, 3, body) == ApiVersionsResponse(
        finalized_features_epoch=7
    )
    assert codec.decode(HeartbeatResponse, 4, bytes(6) + b"\2" + unknown) == HeartbeatResponse()


def test_empty_arrays_cost_no_more_than_their_bytes_can_hold() -> None:
    """A topic takes three bytes at least: time and memory are bounded by the frame's limit."""
    count = 100_000
    body = bytes(4) + bytes(2) + bytes(4) + encode_uvarint(count + 1) + b"\1\1\0" * count + b"\0"
    started = time.process_time()
    decoded = codec.decode(FetchResponse, 12, body)
    assert len(decoded.responses) == count
    assert time.process_time() - started < 2  # generous: a loaded machine, a debug build
    with pytest.raises(KafkaProtocolError, match=r"responses is .* too large for the remaining"):
        codec.decode(FetchResponse, 12, body[:10] + encode_uvarint(count + 2) + body[13:])
