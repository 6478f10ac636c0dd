"""Large requests are cut into pieces of a size, and their answers put together again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from aiokafka_lite.broker.network.pieces import FIRST_PIECE, Pieces, shape_of
from aiokafka_lite.broker.refusals import LARGEST_SMALL, error_codes
from aiokafka_lite.protocol.messages.classic_group import LeaveGroupRequest, LeaveGroupResponse
from aiokafka_lite.protocol.messages.log_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from aiokafka_lite.protocol.messages.produce import (
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tests.support.for_each import for_each

SHAPE = shape_of(ListOffsetsRequest, 7)


def request(*sizes: int) -> ListOffsetsRequest:
    """Return a request for topics with so many partitions each, numbered from 0."""
    return ListOffsetsRequest(
        topics=[
            ListOffsetsTopic(
                name=f"t{number}",
                partitions=[ListOffsetsPartition(partition_index=index) for index in range(size)],
            )
            for number, size in enumerate(sizes)
        ]
    )


def pieces_of(asked: ListOffsetsRequest) -> list[tuple[list[tuple[str, int, int]], int]]:
    """Return for each piece the first partition and the size of each topic, and its depth."""
    found = []
    for piece, depth in Pieces(asked, SHAPE):
        assert isinstance(piece, ListOffsetsRequest)
        topics = [
            (each.name, each.partitions[0].partition_index if each.partitions else -1,
             len(each.partitions))
            for each in piece.topics
        ]  # fmt: skip
        found.append((topics, depth))
    return found


@for_each(
    [
        ((), [([], 0)]),
        ((32,), [([("t0", 0, 32)], 0)]),
        ((30, 2), [([("t0", 0, 30), ("t1", 0, 2)], 0)]),
        ((30, 3), [([("t0", 0, 30)], 0), ([("t1", 0, 3)], 0)]),
        ((31, 0, 1), [([("t0", 0, 31), ("t1", -1, 0)], 0), ([("t2", 0, 1)], 0)]),
        (
            (1, 70, 31),
            [
                ([("t0", 0, 1)], 0),
                ([("t1", 0, 32)], 0),
                ([("t1", 32, 32)], 1),
                ([("t1", 64, 6)], 1),
                ([("t2", 0, 31)], 0),
            ],
        ),
    ]
)
def test_pieces_are_as_large_as_they_may_be(
    sizes: Sequence[int], pieces: list[tuple[list[tuple[str, int, int]], int]]
) -> None:
    assert FIRST_PIECE == 32
    assert pieces_of(request(*sizes)) == pieces


class Counted(list[ListOffsetsTopic]):
    """A list that counts how many of its elements are looked at."""

    looked_at = 0

    def __iter__(self) -> Iterator[ListOffsetsTopic]:
        for each in super().__iter__():
            self.looked_at += 1
            yield each


def test_weight_is_counted_no_further_than_its_limit() -> None:
    asked = request(*[3] * 1_000)
    asked.topics = counted = Counted(asked.topics)
    assert SHAPE.weight(asked, 9) > 9
    assert counted.looked_at == 4
    assert [SHAPE.weight(request(*sizes), 99) for sizes in ((), (0,), (3, 0, 4))] == [1, 1, 8]


def answer(*topics: tuple[str, Sequence[int]], error_code: int = 0) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=name,
                partitions=[
                    ListOffsetsPartitionResponse(partition_index=index, error_code=error_code)
                    for index in indexes
                ],
            )
            for name, indexes in topics
        ]
    )


def test_answers_are_joined_where_a_piece_goes_on_with_a_topic() -> None:
    whole = answer(("a", [0, 1]))
    SHAPE.join(whole, answer(("a", [2]), ("b", [0])), 1)
    SHAPE.join(whole, answer(("b", [7])), 0)
    SHAPE.join(whole, answer(), 1)
    assert whole == answer(("a", [0, 1, 2]), ("b", [0]), ("b", [7]))


def test_each_node_that_answers_name_is_named_once() -> None:
    def produced(*nodes: int) -> ProduceResponse:
        partition = PartitionProduceResponse(index=0)
        return ProduceResponse(
            responses=[TopicProduceResponse(name="t", partition_responses=[partition])],
            node_endpoints=[NodeEndpoint(node_id=node) for node in nodes],
        )

    whole = produced(1)
    shape_of(ProduceRequest, 9).join(whole, produced(1, 2), 0)
    assert [node.node_id for node in whole.node_endpoints] == [1, 2]
    assert len(whole.responses) == 2


def test_first_error_of_the_pieces_is_that_of_the_whole() -> None:
    whole, shape = LeaveGroupResponse(), shape_of(LeaveGroupRequest, 5)
    for error_code, expected in ((0, 0), (16, 16), (25, 16), (0, 16)):
        shape.join(whole, LeaveGroupResponse(error_code=error_code), 0)
        assert whole.error_code == expected


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
    codes = error_codes(answer(*[("t", range(size)) for size in sizes]))
    assert (codes is None) is expected
