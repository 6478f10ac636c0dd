"""What members and leader write for each other, and what comes of nonsense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiokafka_lite.consumer.assignors import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)
from aiokafka_lite.consumer.assignors.blobs import (
    decode_assignment,
    decode_subscriptions,
    encode_assignments,
    encode_subscription,
)
from aiokafka_lite.errors import KafkaProtocolError
from aiokafka_lite.protocol.messages.group_members import JoinGroupResponseMember

topic_names = st.text(min_size=1, max_size=12)


def joined(member_id: str, metadata: bytes) -> JoinGroupResponseMember:
    return JoinGroupResponseMember(
        member_id=member_id, metadata=metadata, group_instance_id=f"static-{member_id}"
    )


@given(topics=st.lists(topic_names, unique=True), user_data=st.binary(max_size=20))
def test_the_leader_reads_what_a_member_says(topics: list[str], user_data: bytes) -> None:
    blob = encode_subscription(ConsumerProtocolMemberMetadata(0, topics, user_data))

    read = decode_subscriptions([joined("m", blob)])

    assert read == {"m": ConsumerProtocolMemberMetadata(0, topics, user_data, "static-m")}


@given(garbage=st.binary(max_size=40))
def test_whatever_a_peer_writes_the_other_members_are_read(garbage: bytes) -> None:
    good = encode_subscription(ConsumerProtocolMemberMetadata(0, ["t"]))

    read = decode_subscriptions([joined("bad", garbage), joined("good", good)])

    assert set(read) == {"bad", "good"}
    assert read["good"].subscription == ["t"]


def test_a_member_reads_what_the_leader_gives(caplog: pytest.LogCaptureFixture) -> None:
    blobs = encode_assignments(
        {"m": ConsumerProtocolMemberAssignment(0, [("t", [2, 0]), ("u", [1])], b"data")}
    )

    read = decode_assignment(blobs["m"], frozenset({"t", "u"}))

    assert read == ConsumerProtocolMemberAssignment(0, [("t", [0, 2]), ("u", [1])], b"data")
    assert caplog.text == ""


def test_an_empty_answer_is_an_empty_share() -> None:
    read = decode_assignment(b"", frozenset({"t"}))

    assert read.partitions() == []
    assert (read.version, read.user_data) == (0, b"")


@pytest.mark.parametrize(
    ("share", "complaint"),
    [
        (("t", [0, -1]), "negative"),
        (("t", [0, 0]), "duplicate"),
        (("other", [0]), "does not subscribe"),
    ],
)
def test_partitions_that_cannot_be_are_left_out(
    share: tuple[str, list[int]], complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    both = [share, ("u", [3])]
    blobs = encode_assignments({"m": ConsumerProtocolMemberAssignment(0, both)})

    read = decode_assignment(blobs["m"], frozenset({"t", "u"}))

    assert read.partitions() == [("t", 0), ("u", 3)][share[0] != "t" :]
    assert complaint in caplog.text


@given(garbage=st.binary(min_size=1, max_size=40))
def test_an_unreadable_share_is_an_error_of_the_protocol(garbage: bytes) -> None:
    try:
        decode_assignment(garbage, frozenset())
    except KafkaProtocolError:
        pass
