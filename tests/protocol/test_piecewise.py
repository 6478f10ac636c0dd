"""Decoding a piece at a time comes to what decoding in one go comes to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokafka_lite.errors import KafkaProtocolError
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.decoding import PIECE
from aiokafka_lite.protocol.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from tests.support.for_each import for_each
from tests.support.rounds import LONG

VERSIONS = range(FetchRequest.min_version, FetchRequest.max_version + 1)


def partition(number: int, version: int) -> PartitionData:
    data = PartitionData(
        partition_index=number,
        high_watermark=number * 10,
        records=memoryview(b"r" * (number % 5)),
    )
    if version >= 4 and number % 3 == 0:
        data.aborted_transactions = [AbortedTransaction(producer_id=1, first_offset=number)]
    if version >= 12 and number % 7 == 0:
        data.error_code = 6
        data.current_leader = LeaderIdAndEpoch(leader_id=2, leader_epoch=number)
    return data


def response_of(counts: list[int], version: int) -> FetchResponse:
    response = FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic="" if version >= 13 else f"t{index}",
                topic_id=bytes([index]) * 16 if version >= 13 else bytes(16),
                partitions=[partition(number, version) for number in range(count)],
            )
            for index, count in enumerate(counts)
        ]
    )
    if version >= 7:
        response.session_id = 5
    if version >= 16:
        response.node_endpoints = [NodeEndpoint(node_id=2, host="h", port=9092)]
    return response


def gathered(frame: memoryview, version: int) -> FetchResponse:
    """Decode a piece at a time, and put the pieces together again."""
    pieces = framing.piecewise_decoder(FetchRequest, version, PartitionData)(frame)
    response = next(pieces)
    assert isinstance(response, FetchResponse)
    topics: list[FetchableTopicResponse] = []
    for topic in _topics(pieces):
        assert len(topic.partitions) <= PIECE
        if not topics or (topics[-1].topic, topics[-1].topic_id) != (topic.topic, topic.topic_id):
            topics.append(
                FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=[])
            )
        topics[-1].partitions += topic.partitions
    response.responses = topics
    return response


def _topics(pieces: Iterator[object]) -> Iterator[FetchableTopicResponse]:
    for piece in pieces:
        assert isinstance(piece, FetchableTopicResponse)
        yield piece


@settings(max_examples=1_500 if LONG else 75)  # there are fifteen versions
@given(st.sampled_from(VERSIONS), st.lists(st.integers(0, 2 * PIECE + 1), max_size=4))
def test_pieces_together_are_the_whole(version: int, counts: list[int]) -> None:
    frame = memoryview(framing.encode_response(response_of(counts, version), version, 1))[4:]
    whole = framing.response_decoder(FetchRequest, version)(frame)
    assert gathered(frame, version) == whole


@for_each(VERSIONS)
def test_wherever_it_breaks_off_both_refuse_it(version: int) -> None:
    frame = memoryview(framing.encode_response(response_of([3, 0, 2], version), version, 1))[4:]
    for end in range(4, len(frame)):
        with pytest.raises(KafkaProtocolError):
            framing.response_decoder(FetchRequest, version)(frame[:end])
        with pytest.raises(KafkaProtocolError):
            gathered(frame[:end], version)


@for_each(VERSIONS)
def test_bytes_behind_the_last_piece_are_passed_over(version: int) -> None:
    frame = memoryview(framing.encode_response(response_of([3], version), version, 1))[4:]
    assert gathered(memoryview(bytes(frame) + b"\0"), version) == gathered(frame, version)
