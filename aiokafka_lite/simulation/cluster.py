"""The cluster of a run: nodes of the embedded broker, each on a simulated host of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from aiokafka_lite._virtual import START_MS
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.topics import GROUP_METADATA_TOPIC, Partition
from aiokafka_lite.errors import NoError
from aiokafka_lite.protocol.codec import decode_key, decode_versioned
from aiokafka_lite.protocol.messages.coordinator_records import (
    GROUP_KEY_CLASSES,
    OffsetCommitKey,
    OffsetCommitValue,
)
from aiokafka_lite.records import RecordSet
from aiokafka_lite.records.batch import BatchHeader, iter_batches
from aiokafka_lite.records.transactions import ControlType, end_marker
from aiokafka_lite.simulation.engine import Loop
from aiokafka_lite.simulation.history import Event, Facts, History, Kind
from aiokafka_lite.structs import ConsumerRecord, TopicPartition

PORT: Final = 9092
READ_BYTES: Final = 1 << 20


def host_of(node_id: int) -> str:
    return f"b{node_id}"


class SimulatedCluster:
    """An embedded broker whose nodes are machines of the simulated network.

    `settings` are those of the `Broker`.
    """

    def __init__(self, loop: Loop, nodes: int, **settings: Any) -> None:
        self.loop = loop
        self.node_ids = range(1, nodes + 1)
        addresses = []
        for host in self.hosts:
            loop.net.host(host)
            addresses.append(loop.net.address(host))
        self.broker = Broker(
            nodes=nodes,
            host=addresses[0],
            port=PORT,
            allow_remote=True,
            default_replication_factor=nodes,
            offsets_topic_partitions=3,
            transaction_topic_partitions=3,
            # It is made before the loop runs, whose seed it would take.
            seed=loop.seed,
            clock=lambda: START_MS + int(loop.now * 1000),
            **settings,
        )
        for node, address in zip(self.broker.nodes.values(), addresses, strict=True):
            for endpoint in node.endpoints.values():
                endpoint.address = endpoint.address._replace(host=address)
        self.bootstrap_servers = ",".join(
            f"{address}:{PORT + n}" for n, address in enumerate(addresses)
        )
        self._read_to: dict[int, int] = {}
        # The commits of open transactions, by the partition of the groups' log and the producer.
        self._pending: dict[tuple[int, int], list[Event]] = {}
        self._logs: dict[TopicPartition, tuple[tuple[object, ...], dict[int, bytes]]] = {}

    @property
    def hosts(self) -> list[str]:
        return [host_of(node_id) for node_id in self.node_ids]

    def group_members(self) -> list[tuple[str, str]]:
        """Return the groups that have a coordinator now, with each of their member ids."""
        return sorted(
            (group, member_id)
            for node in self.broker.nodes.values()
            for group, known in node.groups.groups.items()
            if node.groups.availability(group) is NoError
            for member_id in known.members
        )

    def partitions_of(self, *topics: str) -> list[TopicPartition]:
        """Return the partitions of these topics, without those of unknown topics."""
        known = [found for name in topics if (found := self.broker.topic(name)) is not None]
        return [TopicPartition(each.name, n) for each in known for n in range(each.partition_count)]

    def value_at(self, tp: TopicPartition, offset: int) -> bytes:
        """Return the value of a record; b"" if the log has none there."""
        view = self.broker.partition(*tp).log.read(offset, 1)
        batch = RecordSet(tp.topic, tp.partition, view, fetch_offset=offset)
        return next((each.value or b"" for each in batch.take(1) if each.offset == offset), b"")

    def read_commits(self, history: History) -> None:
        """Note the commits of all groups that the log has got since the last call.

        The commits of a transaction are noted when its marker commits them, with their own time.
        """
        topic = self.broker.topic(GROUP_METADATA_TOPIC)
        for partition in () if topic is None else topic.partitions:
            position = max(self._read_to.get(partition.index, 0), partition.log_start_offset)
            end = partition.high_watermark
            while position < end:
                view = partition.log.read(position, READ_BYTES, end_offset=end)
                for header, batch in iter_batches(view, check_crcs=False):
                    history.events += self._commits_by(partition, header, batch)
                    position = header.last_offset + 1
            self._read_to[partition.index] = position

    def _commits_by(
        self, partition: Partition, header: BatchHeader, batch: memoryview
    ) -> list[Event]:
        """Return the commits that a batch of the groups' log makes, or those that it ends."""
        transaction = partition.index, header.producer_id
        if header.is_control:
            commits = self._pending.pop(transaction, [])
            marker = end_marker(header, batch)
            return commits if marker is not None and marker.type is ControlType.COMMIT else []
        records = RecordSet(
            partition.topic, partition.index, batch, fetch_offset=header.base_offset
        ).take(READ_BYTES)
        commits = [event for record in records if (event := _commit_of(record)) is not None]
        if not header.is_transactional:
            return commits
        self._pending.setdefault(transaction, []).extend(commits)
        return []

    def add_logs(self, facts: Facts, partitions: Iterable[TopicPartition]) -> None:
        """Add the records that a read_committed reader gets of some partitions."""
        for tp in partitions:
            facts.starts[tp] = self.broker.partition(*tp).log.log_start_offset
            facts.logs[tp] = self._values(tp)

    def _values(self, tp: TopicPartition) -> dict[int, bytes]:
        """Return the values by offset. A log is read again if it has changed."""
        partition = self.broker.partition(*tp)
        log = partition.log
        ends = log.log_start_offset, log.last_stable_offset, log.log_end_offset
        state = (log, *ends, log.size, partition.leader_epoch)
        if tp not in self._logs or self._logs[tp][0] != state:
            records = self.broker.records(*tp, isolation_level="read_committed")
            self._logs[tp] = state, {record.offset: record.value or b"" for record in records}
        return self._logs[tp][1]


def _commit_of(record: ConsumerRecord[Any, Any]) -> Event | None:
    if record.key is None or record.value is None:
        return None
    key = decode_key(GROUP_KEY_CLASSES, record.key)
    if not isinstance(key, OffsetCommitKey):
        return None
    commit = decode_versioned(OffsetCommitValue, record.value)
    tp = TopicPartition(key.topic, key.partition)
    at_s = (record.timestamp - START_MS) / 1000
    return Event(at_s, Kind.COMMITTED, key.group, tp, commit.offset, note=commit.metadata)
