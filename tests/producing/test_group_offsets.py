"""The offsets that a transaction sends to a group, and the group's response."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from aiokafka_lite.errors import (
    CommitFailedError,
    GroupAuthorizationFailedError,
    IllegalGenerationError,
    KafkaError,
    NoError,
)
from aiokafka_lite.producing.group_offsets import OffsetsOfGroup, are_known, raise_refusal
from aiokafka_lite.protocol.messages.offsets import PartitionErrorCode
from aiokafka_lite.protocol.messages.transactions import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponseTopic,
)
from aiokafka_lite.protocol.schema import ZERO_UUID
from aiokafka_lite.structs import ConsumerGroupMetadata, TopicPartition

TPS = [TopicPartition("t", number) for number in range(3)]
TOPIC_ID = bytes(range(16))


class Delivery(OffsetsOfGroup):
    """Offsets that note their refusal."""

    def __init__(self) -> None:
        super().__init__(ConsumerGroupMetadata("g"), dict.fromkeys(TPS, (1, "", -1)))
        self.refusals: list[KafkaError] = []

    def topic_ids(self) -> Collection[tuple[TopicPartition, bytes]]:
        return [(tp, TOPIC_ID) for tp in TPS]

    def refused(self, error: KafkaError) -> bool:
        self.refusals.append(error)
        return super().refused(error)


def answer(*codes: int, name: str = "t") -> TxnOffsetCommitResponse:
    """Return a response with an error code for each partition of a topic."""
    partitions = [
        PartitionErrorCode(partition_index=index, error_code=code)
        for index, code in enumerate(codes)
    ]
    topic = TxnOffsetCommitResponseTopic(name=name, partitions=partitions)
    if not name:
        topic.topic_id = TOPIC_ID
    return TxnOffsetCommitResponse(topics=[topic])


@pytest.mark.parametrize("name", ["t", ""], ids=["by name", "by id"])
def test_the_error_of_any_partition_is_raised_with_its_name(name: str) -> None:
    delivery = Delivery()
    raise_refusal(delivery, "g", answer(0, 0, 0, name=name))
    code = GroupAuthorizationFailedError.errno
    with pytest.raises(GroupAuthorizationFailedError, match=r"t-2, group 'g'") as caught:
        raise_refusal(delivery, "g", answer(NoError.errno, NoError.errno, code, name=name))
    assert delivery.refusals == [caught.value]
    assert caught.value.tp == TPS[2]


def test_a_membership_that_is_lost_is_a_failed_commit() -> None:
    delivery = Delivery()
    with pytest.raises(CommitFailedError, match="has rebalanced") as caught:
        raise_refusal(delivery, "g", answer(0, IllegalGenerationError.errno))
    assert delivery.refusals == [caught.value.__cause__]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [([], False), ([TOPIC_ID], True), ([TOPIC_ID, ZERO_UUID], False), ([TOPIC_ID, b""], False)],
)
def test_topics_are_known_if_each_has_an_id(ids: list[bytes], *, expected: bool) -> None:
    assert are_known(list(zip(TPS, ids, strict=False))) is expected


def test_later_offsets_of_a_group_replace_earlier_ones() -> None:
    group = ConsumerGroupMetadata("g")
    offsets = OffsetsOfGroup(group, {TPS[0]: (1, "", -1), TPS[1]: (1, "", -1)})
    offsets.join(OffsetsOfGroup(group, {TPS[1]: (2, "m", -1)}))
    assert offsets.to_commit() == (group, {TPS[0]: (1, "", -1), TPS[1]: (2, "m", -1)})
