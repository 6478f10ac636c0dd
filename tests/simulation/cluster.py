"""The cluster of a run: three nodes of the embedded broker, each on a simulated host of its own."""

from __future__ import annotations

from typing import Any, Final

from aiokafka_lite._virtual import START_MS
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.topics import GROUP_METADATA_TOPIC
from aiokafka_lite.protocol.codec import decode_key, decode_versioned
from aiokafka_lite.protocol.messages.group_records import (
    KEY_CLASSES,
    OffsetCommitKey,
    OffsetCommitValue,
)
from aiokafka_lite.records import RecordSet
from aiokafka_lite.simulation.engine import Loop
from aiokafka_lite.simulation.history import Event, Facts, History, Kind
from aiokafka_lite.structs import ConsumerRecord, TopicPartition
from tests.simulation.plan import NODES, Plan

INPUT: Final = "in"
OUTPUT: Final = "out"
DEAD: Final = "dead"
GROUP: Final = "g"
PORT: Final = 9092
SESSION_MS: Final = 6_000
READ_BYTES: Final = 1 << 20


def host_of(node_id: int) -> str:
    return f"b{node_id}"


class SimulatedCluster:
    """An embedded broker whose nodes are machines of the simulated network."""

    def __init__(self, loop: Loop, plan: Plan) -> None:
        self.loop = loop
        net = loop.net
        for node_id in NODES:
            net.host(host_of(node_id))
        self.addresses = [net.address(host_of(node_id)) for node_id in NODES]
        self.broker = Broker(
            nodes=len(NODES),
            host=self.addresses[0],
            port=PORT,
            allow_remote=True,
            default_replication_factor=len(NODES),
            group_consumer_session_timeout_ms=SESSION_MS,
            offsets_topic_partitions=3,
            transaction_topic_partitions=3,
            clock=lambda: START_MS + int(loop.now * 1000),
        )
        for node, address in zip(self.broker.nodes.values(), self.addresses, strict=True):
            for endpoint in node.endpoints.values():
                endpoint.address = endpoint.address._replace(host=address)
        self._partitions = plan.partitions
        self._read_to: dict[int, int] = {}

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{address}:{PORT + n}" for n, address in enumerate(self.addresses))

    async def start(self) -> None:
        await self.broker.start()
        self.broker.create_topic(INPUT, self._partitions)
        self.broker.create_topic(OUTPUT, self._partitions)
        self.broker.create_topic(DEAD, self._partitions)

    def input_partitions(self) -> list[TopicPartition]:
        topic = self.broker.known_topic(INPUT)
        return [TopicPartition(INPUT, index) for index in range(topic.partition_count)]

    def read_commits(self, history: History) -> None:
        """Note the group's commits that the log has got since the last call."""
        topic = self.broker.topic(GROUP_METADATA_TOPIC)
        for partition in () if topic is None else topic.partitions:
            position = max(self._read_to.get(partition.index, 0), partition.log_start_offset)
            while position < partition.high_watermark:
                view = partition.log.read(position, READ_BYTES)
                batch = RecordSet(topic.name, partition.index, view, fetch_offset=position)  # type: ignore[union-attr]
                for record in batch.take(READ_BYTES):
                    self._note_commit(history, record)
                position = batch.next_offset
            self._read_to[partition.index] = position

    def _note_commit(self, history: History, record: ConsumerRecord[Any, Any]) -> None:
        if record.key is None or record.value is None:
            return
        key = decode_key(KEY_CLASSES, record.key)
        if not isinstance(key, OffsetCommitKey) or key.group != GROUP:
            return
        commit = decode_versioned(OffsetCommitValue, record.value)
        tp = TopicPartition(key.topic, key.partition)
        at_s = (record.timestamp - START_MS) / 1000
        history.events.append(Event(at_s, Kind.COMMITTED, GROUP, tp, commit.offset))

    def facts(self) -> Facts:
        """Return what the logs and the group have now."""
        facts = Facts(committed=self.broker.committed(GROUP))
        for tp in self.input_partitions():
            facts.starts[tp] = self.broker.partition(*tp).log.log_start_offset
            facts.logs[tp] = {
                record.offset: record.value or b""
                for record in self.broker.records(*tp, isolation_level="read_committed")
            }
        for topic, values in ((OUTPUT, facts.output), (DEAD, facts.dead)):
            records = self.broker.records(topic, isolation_level="read_committed")
            values.extend(record.value or b"" for record in records)
        return facts
