"""Groups of members of three clients: this one, Java's and librdkafka; each leads once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as TheirPartition

from aiokafka_lite import AIOKafkaConsumer, CooperativeStickyPartitionAssignor
from aiokafka_lite.consumer.assignors.blobs import encode_subscription
from aiokafka_lite.structs import TopicPartition
from tests.support.cluster import KafkaHandle, unique
from tests.support.java import JavaTools
from tests.support.java_member import JavaMember
from tests.support.rows import rows
from tests.support.waiting import until

PARTITIONS: Final = 6
BATCH: Final = 20
SUBSCRIPTION_PROBE: Final = """
import java.nio.ByteBuffer;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.*;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.TopicPartition;
public class Probe {
    public static void main(String[] arguments) {
        CooperativeStickyAssignor assignor = new CooperativeStickyAssignor();
        List<TopicPartition> owned = List.of(
            new TopicPartition("b", 0), new TopicPartition("a", 4), new TopicPartition("a", 1));
        show(assignor, List.of(), -1, Optional.empty());
        assignor.onAssignment(
            new Assignment(owned), new ConsumerGroupMetadata("g", 7, "m", Optional.empty()));
        show(assignor, owned, 7, Optional.of("r1"));
    }
    static void show(CooperativeStickyAssignor assignor, List<TopicPartition> owned,
                     int generation, Optional<String> rack) {
        ByteBuffer data = assignor.subscriptionUserData(Set.of("a", "b"));
        ByteBuffer bytes = ConsumerProtocol.serializeSubscription(
            new Subscription(List.of("b", "a"), data, owned, generation, rack));
        byte[] copy = new byte[bytes.remaining()];
        bytes.get(copy);
        System.out.println(HexFormat.of().formatHex(copy));
    }
}
"""


@pytest.mark.java
async def test_what_a_cooperative_member_says_is_javas_to_the_byte(
    java_tools: JavaTools, tmp_path: Path
) -> None:
    source = tmp_path / "Probe.java"
    source.write_text(SUBSCRIPTION_PROBE)
    done = await java_tools.run(str(source))
    assignor = CooperativeStickyPartitionAssignor()
    fresh = encode_subscription(assignor.metadata(["b", "a"]), ())
    assignor.on_generation_assignment(7)
    owned = [TopicPartition("b", 0), TopicPartition("a", 4), TopicPartition("a", 1)]
    later = encode_subscription(assignor.metadata(["b", "a"]), owned, 7, "r1")
    assert done.stdout.split() == [fresh.hex(), later.hex()], done.stderr


# --- Members ------------------------------------------------------------------------------
class Member(ABC):
    """A member of some client that reads on and on, and commits as it does by itself."""

    def __init__(self, kafka: KafkaHandle, topic: str, group: str, protocol: str) -> None:
        self.servers, self.topic, self.group = kafka.bootstrap_servers, topic, group
        # "classic" is that with cooperative-sticky; "default" is what the client does by itself.
        self.protocol = protocol
        self.seen: list[tuple[int, int]] = []

    @property
    @abstractmethod
    def owned(self) -> set[int]:
        """The partitions that it has."""

    @abstractmethod
    async def start(self) -> None:
        """Begin."""

    @abstractmethod
    async def stop(self) -> None:
        """Leave the group; idempotent."""


class Ours(Member):
    """A member of this client."""

    async def start(self) -> None:
        all_settings: dict[str, dict[str, object]] = {
            "consumer": {"group_protocol": "consumer"},
            "classic": {"partition_assignment_strategy": (CooperativeStickyPartitionAssignor,)},
            "default": {},
        }
        self._consumer = AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.servers,
            group_id=self.group,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=200,
            fetch_max_wait_ms=50,
            **all_settings[self.protocol],  # type: ignore[arg-type]
        )
        await self._consumer.start()
        self._task = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while True:
            for tp, records in (await self._consumer.getmany(timeout_ms=50)).items():
                self.seen += [(tp.partition, record.offset) for record in records]

    @property
    def owned(self) -> set[int]:
        return {tp.partition for tp in self._consumer.assignment()}

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        await self._consumer.stop()


class Librdkafka(Member):
    """A member of confluent-kafka, on a thread of its own."""

    def __init__(self, kafka: KafkaHandle, topic: str, group: str, protocol: str) -> None:
        super().__init__(kafka, topic, group, protocol)
        self._owned: set[int] = set()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    async def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        timing: dict[str, str | int] = {"heartbeat.interval.ms": 200, "session.timeout.ms": 6000}
        all_settings: dict[str, dict[str, str | int]] = {
            "consumer": {"group.protocol": "consumer"},
            "classic": {"partition.assignment.strategy": "cooperative-sticky", **timing},
            "default": timing,
        }
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                **all_settings[self.protocol],
            }
        )
        consumer.subscribe([self.topic], on_assign=self._assigned, on_revoke=self._revoked)
        while not self._is_over.is_set():
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                self.seen.append((partition, offset))
        consumer.close()

    def _assigned(self, _: Consumer, partitions: list[TheirPartition]) -> None:
        self._owned |= {each.partition for each in partitions}

    def _revoked(self, _: Consumer, partitions: list[TheirPartition]) -> None:
        self._owned -= {each.partition for each in partitions}

    @property
    def owned(self) -> set[int]:
        return self._owned

    async def stop(self) -> None:
        self._is_over.set()
        await asyncio.to_thread(self._thread.join)


class Java(Member):
    """A member of Java's client."""

    tools: JavaTools

    async def start(self) -> None:
        strategy = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
        settings = {
            "consumer": ["--group-protocol", "consumer"],
            "classic": ["--assignment-strategy", strategy, "--session-timeout", "6000"],
            "default": ["--session-timeout", "6000"],
        }[self.protocol]
        self._member = JavaMember(self.tools, self.servers, self.topic, self.group, *settings)
        self.seen = self._member.seen
        await self._member.start()

    @property
    def owned(self) -> set[int]:
        return self._member.owned

    async def stop(self) -> None:
        await self._member.stop()


CLIENTS: Final[dict[str, type[Member]]] = {"ours": Ours, "java": Java, "librdkafka": Librdkafka}


def have(*members: Member) -> bool:
    """Whether these have all partitions, each as many as the others."""
    owned = [each.owned for each in members]
    shares = {len(each) for each in owned}
    return len(shares) == 1 and len(set().union(*owned)) == sum(map(len, owned)) == PARTITIONS


@pytest.mark.java
@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "first"),
    [
        *(("classic", each) for each in CLIENTS),
        ("consumer", "ours"),
        ("consumer", "java"),
        # Ours makes it a group of KIP-848, and the others are of the classic protocol.
        *(("default", each) for each in CLIENTS),
    ],
)
async def test_members_of_three_clients_share_a_group_whoever_leads_it(
    kafka: KafkaHandle, java_tools: JavaTools, protocol: str, first: str
) -> None:
    """The first member of a classic group leads it."""
    Java.tools = java_tools
    topic, group = await kafka.create_topic(partitions=PARTITIONS), unique("g")
    written = 0

    async def write() -> None:
        nonlocal written
        for partition in range(PARTITIONS):
            await kafka.produce(topic, partition, rows(written, BATCH))
        written += BATCH

    order = [first, *(each for each in CLIENTS if each != first)]
    members = [CLIENTS[each](kafka, topic, group, protocol) for each in order]
    await write()
    async with contextlib.AsyncExitStack() as stack:
        for count, each in enumerate(members, start=1):
            await each.start()
            stack.push_async_callback(each.stop)
            await until(lambda count=count: have(*members[:count]))  # type: ignore[misc]
            await write()
        await members[0].stop()
        await write()
        await until(lambda: have(*members[1:]))
        await write()
        expected = {(partition, n) for partition in range(PARTITIONS) for n in range(written)}

        def seen() -> Counter[tuple[int, int]]:
            return Counter(place for each in members for place in each.seen)

        await until(lambda: seen().keys() >= expected)
        assert [place for place, times in seen().items() if times > 1] == []
