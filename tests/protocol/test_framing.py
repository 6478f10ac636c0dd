"""Headers and sizes, in both directions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite.errors import (
    IllegalArgumentError,
    KafkaProtocolError,
    UnsupportedVersionError,
)
from aiokafka_lite.protocol import codec, framing
from aiokafka_lite.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from aiokafka_lite.protocol.messages.group_members import HeartbeatRequest, HeartbeatResponse
from aiokafka_lite.protocol.messages.groups import ListGroupsRequest
from aiokafka_lite.protocol.messages.metadata import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from aiokafka_lite.protocol.schema import Request, Response
from aiokafka_lite.protocol.source import run_to_end
from tests.support.for_each import in_every_version
from tests.support.frames import correlation_id_of, request_in
from tests.support.samples import REQUEST_CLASSES, versions

EVERY_REQUEST = [(cls, version) for cls in REQUEST_CLASSES for version in versions(cls)]


def _frame(message: bytes) -> memoryview:
    """Check the size prefix and take it off."""
    assert int.from_bytes(message[:4], "big") == len(message) - 4
    return memoryview(message)[4:]


@in_every_version(EVERY_REQUEST)
def test_requests_arrive_with_their_headers(cls: type[Request[Response]], version: int) -> None:
    request = cls().from_version(version)
    for client_id in ("worker-ü", "", None):
        message = framing.encode_request(request, version, 2**31 - 1, client_id)
        frame = framing.decode_request(_frame(message))
        assert (frame.api_key, frame.version) == (cls.api_key, version)
        assert (frame.correlation_id, frame.client_id) == (2**31 - 1, client_id)
        assert request_in(frame) == request


@in_every_version(EVERY_REQUEST)
def test_responses_arrive_with_their_headers(cls: type[Request[Response]], version: int) -> None:
    response = cls.response().from_version(version)
    frame = _frame(framing.encode_response(response, version, -5))
    assert correlation_id_of(frame) == -5
    assert framing.response_decoder(cls, version)(frame) == response


def test_headers_are_laid_out_as_kafka_has_them() -> None:
    request = framing.encode_request(HeartbeatRequest(), 3, 7, "me")
    assert request[:16] == b"\0\0\0\x16" + b"\0\x0c\0\3" + b"\0\0\0\7" + b"\0\2me"
    flexible = framing.encode_request(HeartbeatRequest(), 4, 7, "me")
    assert flexible[:17] == b"\0\0\0\x15" + b"\0\x0c\0\4" + b"\0\0\0\7" + b"\0\2me" + b"\0"
    assert framing.encode_response(HeartbeatResponse(), 3, 7)[:10] == (
        b"\0\0\0\x0a" + b"\0\0\0\7" + bytes(2)
    )
    assert framing.encode_response(HeartbeatResponse(), 4, 7)[4:9] == b"\0\0\0\7" + b"\0"


def test_the_answer_to_api_versions_never_has_tagged_fields_in_its_header() -> None:
    response = framing.encode_response(ApiVersionsResponse(error_code=9), 4, 7)
    assert response[4:10] == b"\0\0\0\7" + b"\0\x09"


def test_tagged_fields_in_headers_are_skipped() -> None:
    tags = b"\1\5\3abc"
    request = b"\0\x0c\0\4" + bytes(4) + b"\xff\xff" + tags
    request += codec.encode(HeartbeatRequest(group_id="g"), 4)
    assert request_in(framing.decode_request(memoryview(request))) == HeartbeatRequest(group_id="g")
    response = bytes(4) + tags + codec.encode(HeartbeatResponse(error_code=27), 4)
    assert framing.response_decoder(HeartbeatRequest, 4)(memoryview(response)).error_code == 27


def test_a_broker_too_old_for_the_version_of_api_versions_is_understood() -> None:
    refusal = ApiVersionsResponse(
        error_code=UnsupportedVersionError.errno,
        api_keys=[ApiVersion(api_key=18, min_version=0, max_version=2)],
    )
    frame = _frame(framing.encode_response(refusal, 0, 1))
    assert framing.response_decoder(ApiVersionsRequest, 4)(frame) == refusal


def test_the_error_of_a_broker_too_old_is_enough_without_versions() -> None:
    """As librdkafka's mock cluster has it: nothing follows the error in any version's layout."""
    frame = bytes(4) + UnsupportedVersionError.errno.to_bytes(2, "big")
    refused = framing.response_decoder(ApiVersionsRequest, 4)(memoryview(frame))
    assert (refused.error_code, refused.api_keys) == (UnsupportedVersionError.errno, [])
    for size in (4, 5):
        with pytest.raises(KafkaProtocolError, match="is incomplete"):
            framing.response_decoder(ApiVersionsRequest, 4)(memoryview(frame)[:size])


def test_a_client_id_that_is_longer_than_its_frame_is_refused() -> None:
    frame = b"\0\x0c\0\3" + bytes(4) + b"\0\5abc"
    with pytest.raises(KafkaProtocolError, match="length field of client_id is 5"):
        framing.decode_request(memoryview(frame))


def test_a_request_for_an_unknown_version_still_shows_its_header() -> None:
    frame = framing.decode_request(memoryview(b"\0\x12\0\x7f" + bytes(4) + b"\0\1x" + b"\0???"))
    assert (frame.api_key, frame.version, frame.client_id) == (18, 127, "x")
    with pytest.raises(
        UnsupportedVersionError, match="ApiVersionsRequest is supported in versions 0-5"
    ):
        request_in(frame)


def test_a_request_for_an_unknown_api_still_shows_its_header() -> None:
    frame = framing.decode_request(memoryview(b"\x7f\xff\0\0" + bytes(4) + b"\xff\xff"))
    assert (frame.api_key, frame.version, frame.client_id) == (32767, 0, None)


@given(st.binary(max_size=60))
def test_noise_is_no_header(noise: bytes) -> None:
    try:
        framing.decode_request(memoryview(noise))
    except KafkaProtocolError:
        pass
    for cls, version in ((HeartbeatRequest, 0), (HeartbeatRequest, 4), (ApiVersionsRequest, 4)):
        try:
            framing.response_decoder(cls, version)(memoryview(noise))
        except KafkaProtocolError:
            pass


@pytest.mark.parametrize("size", range(4))
def test_a_response_without_a_header_is_refused(size: int) -> None:
    frame = memoryview(bytes(size))
    for version in (0, 4):
        with pytest.raises(KafkaProtocolError, match=f"HeartbeatResponse v{version} is incomplete"):
            framing.response_decoder(HeartbeatRequest, version)(frame)
    for version in (0, 5):
        with pytest.raises(
            KafkaProtocolError, match=f"ListGroupsResponse v{version} is incomplete"
        ):
            framing.response_decoder(ListGroupsRequest, version)(memoryview(bytes(4)))


def test_large_record_sets_are_handed_on_uncopied_between_small_buffers() -> None:
    large, small = bytes(100_000), bytes(10)
    partitions = [
        PartitionData(partition_index=index, records=record_set)
        for index, record_set in enumerate([large, small, None, memoryview(large)])
    ]
    response = FetchResponse(responses=[FetchableTopicResponse(partitions=partitions)])
    for version in versions(FetchRequest):
        parts = framing.encode_response_parts(response, version, 3)
        assert len(parts) in (4, 5)  # tagged fields follow where there can be some
        assert parts[1] is large
        assert isinstance(parts[3], memoryview)
        assert parts[3].obj is large
        assert b"".join(parts) == framing.encode_response(response, version, 3)
        frame = _frame(b"".join(parts))
        assert framing.response_decoder(FetchRequest, version)(frame) == response


@pytest.mark.parametrize(("size", "is_copied"), [(4_095, True), (4_096, False)])
def test_record_sets_are_large_from_four_kibibytes_on(size: int, is_copied: bool) -> None:
    response = fetched(bytes(size))
    (partition,) = response.responses[0].partitions
    parts = framing.encode_response_parts(response, 12, 3)
    assert any(part is partition.records for part in parts) is not is_copied


def fetched(*record_sets: bytes) -> FetchResponse:
    """Return a response with a partition for each record set."""
    partitions = [
        PartitionData(partition_index=index, records=record_set)
        for index, record_set in enumerate(record_sets)
    ]
    return FetchResponse(responses=[FetchableTopicResponse(partitions=partitions)])


@pytest.mark.parametrize(
    "response",
    [HeartbeatResponse(), fetched(b"small"), fetched(bytes(5_000)), fetched(*[bytes(5_000)] * 250)],
    ids=["tiny", "small", "large", "many"],
)
@pytest.mark.parametrize("version", [4, 12])
def test_responses_have_the_same_bytes_in_steps(response: Response, version: int) -> None:
    version = min(version, type(response).versions.last)
    parts = run_to_end(framing.encode_response_in_steps(response, version, 3))
    assert b"".join(parts) == framing.encode_response(response, version, 3)


def test_a_value_that_misfits_is_the_callers_mistake_in_steps_too() -> None:
    steps = framing.encode_response_in_steps(HeartbeatResponse(error_code=2**15), 3, 1)
    with pytest.raises(IllegalArgumentError, match="HeartbeatResponse v3"):
        run_to_end(steps)
