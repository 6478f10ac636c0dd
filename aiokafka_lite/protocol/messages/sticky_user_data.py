"""What members of a group with the sticky assignor tell their leader about their past.

Kafka has no definition file of it. org.apache.kafka.clients.consumer.StickyAssignor writes it as
the user data of a subscription, without a version in front. v1 adds the generation (KIP-341).
"""

from __future__ import annotations

from aiokafka_lite.protocol.schema import Blob, Struct, array, int32, string


class PreviousShare(Struct):
    """Partitions of one topic."""

    topic: str = string("0+")
    partitions: list[int] = array(int32, "0+")


class StickyUserData(Blob, versions="0-1"):
    """What a member had when it last had something, and in which generation."""

    previous_assignment: list[PreviousShare] = array(PreviousShare, "0+")
    generation: int = int32("1+", default=-1, ignorable=True)
