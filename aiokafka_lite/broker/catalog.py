"""The topics of the cluster, and their storage across restarts.

`cluster.json` in the data directory contains every topic with its id, configuration, leaders and
replicas. A write replaces the file and covers all changes since the previous write. Folders of
topics have the id in their name, so that topics of the same name do not share one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import shutil
from asyncio import _get_running_loop
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Final, TypedDict

from aiokafka_lite._virtual import simulation_of
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.broker.configs import (
    ClusterSettings,
    ResourceType,
    StoredSettings,
    parse_topic_config,
)
from aiokafka_lite.broker.log.disk import FORMAT, DiskQueue, load_formatted, replace_file
from aiokafka_lite.broker.log.partition_log import PartitionLog, TopicConfig
from aiokafka_lite.broker.log.storage import FolderStore, LogStore, MemoryStore
from aiokafka_lite.broker.topics import (
    GROUP_METADATA_TOPIC,
    NO_LEADER,
    NewTopic,
    Partition,
    PartitionKey,
    Topic,
    check_topic_name,
    partition_for,
)
from aiokafka_lite.errors import (
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidTopicError,
    KafkaStorageError,
    PolicyViolationError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from aiokafka_lite.protocol.wire import uuid_from_str, uuid_to_str

CATALOG_FILE: Final = "cluster.json"
LOCK_FILE: Final = ".lock"
# The part of a topic's name in its folder's name, which must stay below 255 bytes.
FOLDER_NAME_LENGTH: Final = 200
# Producer ids are reserved in blocks, so that most of them need no write.
PRODUCER_ID_BLOCK: Final = 1_000


class _StoredPartition(TypedDict):
    leader_id: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]


class _StoredTopic(TypedDict):
    id: str
    configs: dict[str, str]
    partitions: list[_StoredPartition]


class _StoredLater(TypedDict, total=False):
    settings: list[StoredSettings]  # the first versions did not store it


class _StoredHead(_StoredLater):
    format: int
    cluster_id: str
    next_producer_id: int


class _StoredCatalog(_StoredHead):
    topics: dict[str, _StoredTopic]


def _kept(topic: Topic) -> str:
    return json.dumps(
        _StoredTopic(
            id=uuid_to_str(topic.topic_id),
            configs=dict(topic.config.overrides),
            partitions=[
                _StoredPartition(
                    leader_id=partition.leader_id,
                    leader_epoch=partition.leader_epoch,
                    replicas=list(partition.replicas),
                    isr=list(partition.isr),
                )
                for partition in topic.partitions
            ],
        )
    )


def _catalog_json(head: str, topics: Mapping[str, str]) -> bytes:
    lines = ",\n".join(f"{json.dumps(name)}: {kept}" for name, kept in topics.items())
    return f'{head[:-1]}, "topics": {{\n{lines}\n}}}}'.encode()


def _plain(name: str) -> str:
    """Return a name as metrics have it. Two topics must not have the same."""
    return name.replace(".", "_")


class TopicCatalog:
    """All topics. Written only from the broker's loop, after `load`."""

    def __init__(
        self,
        config: BrokerConfig,
        disk: DiskQueue,
        rng: random.Random,
        on_change: Callable[[PartitionKey], None],
        in_sync: Callable[[Sequence[int]], list[int]],
    ) -> None:
        self._in_sync = in_sync
        self._config = config
        self._disk = disk
        self._rng = rng
        self._on_change = on_change
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._by_plain_name: dict[str, Topic] = {}
        self.partition_count = 0
        self._lock_file: IO[bytes] | None = None
        self._next_producer_id = self._producer_ids_end = 0
        # The number of requested saves (by the loop) and of completed ones (by the disk's thread).
        self._saves = self._saves_done = 0
        # The next content of the file, as JSON: all but the topics, and each topic by its name.
        # Written by the loop and read by the disk's thread. The strings do not change.
        self._kept_head = ""
        self._kept_topics: dict[str, str] = {}
        self._versions = itertools.count()
        # Grows when a topic is created, enlarged or deleted. And its value at the last creation.
        self.version = self.created_version = next(self._versions)
        self.cluster_id = uuid_to_str(rng.randbytes(16))
        self.settings = ClusterSettings(config)
        # By node id, empty if the nodes have no racks.
        self.racks = dict(enumerate(config.racks, config.node_id))

    # Looking up

    @property
    def topics(self) -> Mapping[str, Topic]:
        return MappingProxyType(self._topics)

    def by_name(self, name: str) -> Topic | None:
        return self._topics.get(name)

    def by_id(self, topic_id: bytes) -> Topic | None:
        return self._by_id.get(topic_id)

    def partition(self, topic: str | bytes, index: int) -> Partition:
        """Return a partition of a topic, which has this name or id."""
        known = self._by_id.get(topic) if isinstance(topic, bytes) else self._topics.get(topic)
        if known is not None and 0 <= index < len(known.partitions):
            return known.partitions[index]
        if known is None and isinstance(topic, bytes):
            raise UnknownTopicIdError("there is no topic with the requested id")
        name: object = topic if known is None else known.name
        raise UnknownTopicOrPartitionError(f"there is no partition {name}-{index}")

    def coordinators(self, internal_topic: str) -> int:
        """Return the number of partitions of an internal topic, which is fixed before it exists."""
        topic = self.by_name(internal_topic)
        if topic is not None:
            return topic.partition_count
        if internal_topic == GROUP_METADATA_TOPIC:
            return self._config.offsets_topic_partitions
        return self._config.transaction_topic_partitions

    def coordinator_of(self, internal_topic: str, key: str) -> int:
        """Return the id of the node that coordinates a group or transactional id, or NO_LEADER."""
        topic = self.by_name(internal_topic)
        if topic is None:
            return NO_LEADER
        return topic.partitions[partition_for(key, topic.partition_count)].leader_id

    def topic_ids(self, names: Collection[str]) -> frozenset[bytes]:
        """Return the ids of the topics that exist."""
        return frozenset(self._topics[name].topic_id for name in self._existing(names))

    def metadata_hash(self, names: Collection[str]) -> int:
        """Return a signed 64-bit hash of the topics that exist, 0 without any (KIP-1101)."""
        hashed = []
        for name in sorted(self._existing(names)):
            topic = self._topics[name]
            racks = [
                sorted(self.racks[node] for node in partition.replicas if node in self.racks)
                for partition in topic.partitions
            ]
            hashed.append((name, topic.topic_id.hex(), racks))
        if not hashed:
            return 0
        # Kafka's is XXH3, but coordinators compare only their own hashes.
        digest = hashlib.blake2b(ascii(hashed).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little", signed=True)

    def _existing(self, names: Collection[str]) -> Collection[str]:
        existing = self._topics.keys()
        if len(names) <= len(existing):
            return existing & names
        return frozenset(names).intersection(existing)

    def parse_config(self, overrides: Mapping[str, str]) -> TopicConfig:
        """Check a topic's configuration and add the broker's defaults."""
        return parse_topic_config(overrides, self.settings.topic_defaults())

    def check_name(self, name: str) -> None:
        """Check that a topic of this name may be created, whether or not it exists."""
        check_topic_name(name)
        other = self._by_plain_name.get(_plain(name))
        if other is not None and other.name != name:
            raise InvalidTopicError(f"Topic '{name}' collides with existing topic: {other.name}")

    def check_growth(self, more: int) -> None:
        if more < 1:
            raise InvalidPartitionsError(
                "Number of partitions was set to an invalid non-positive value."
            )
        limit = self._config.max_partitions
        if self.partition_count + more > limit:
            raise PolicyViolationError(
                f"cannot create {more} partitions: this broker already has "
                f"{self.partition_count}, and max_partitions is {limit}"
            )

    # Changing

    def create(self, new: NewTopic) -> Topic:
        """Create a validated topic. It is durable after `DiskQueue.settled`."""
        topic_id = self._rng.randbytes(16)
        while topic_id in self._by_id:  # of a former run with the same seed
            topic_id = self._rng.randbytes(16)
        topic = Topic(new.name, topic_id, new.config)
        for replicas in new.replicas:
            self._add_partition(topic, replicas)
        self._add(topic)
        self.version = self.created_version = next(self._versions)
        self._save_growth(topic)
        return topic

    def _add(self, topic: Topic) -> None:
        self._topics[topic.name] = self._by_id[topic.topic_id] = topic
        self._by_plain_name[_plain(topic.name)] = topic

    def add_partitions(self, topic: Topic, replicas: Sequence[Sequence[int]]) -> None:
        for nodes in replicas:
            self._add_partition(topic, nodes)
        self.version = next(self._versions)
        self._save_growth(topic)

    def _add_partition(self, topic: Topic, replicas: Sequence[int]) -> None:
        isr = self._in_sync(replicas)
        stored = _StoredPartition(leader_id=isr[0], leader_epoch=0, replicas=[*replicas], isr=isr)
        topic.partitions.append(self._open(topic, len(topic.partitions), stored))
        self.partition_count += 1

    def _open(self, topic: Topic, index: int, stored: _StoredPartition) -> Partition:
        log = PartitionLog(self._store(topic, index), run_slowly=self._run_slowly)
        log.configure(topic.config)
        log.begin_epoch(stored["leader_epoch"])
        return Partition(
            topic=topic.name,
            key=PartitionKey(topic.topic_id, index),
            log=log,
            on_change=self._on_change,
            **stored,
        )

    def delete(self, topic: Topic) -> None:
        del self._topics[topic.name], self._by_id[topic.topic_id]
        del self._by_plain_name[_plain(topic.name)]
        self.version = next(self._versions)
        self.partition_count -= len(topic.partitions)
        self._kept_topics.pop(topic.name, None)
        self._save()
        for partition in topic.partitions:
            partition.log.delete()
            self._on_change(partition.key)
        folder = self._folder(topic)
        if folder is not None:
            self._disk.submit_behind(lambda: shutil.rmtree(folder, ignore_errors=True))

    def leaders_changed(self) -> None:
        if self._config.data_dir is not None:
            self._kept_topics = {name: _kept(topic) for name, topic in self._topics.items()}
        self._save()

    def configure_topic(self, topic: Topic, config: TopicConfig) -> None:
        self._apply(topic, config)
        self._save_topic(topic)

    def configure(
        self, kind: ResourceType, name: str, settings: Mapping[str, str], *, validate_only: bool
    ) -> None:
        """Replace the settings of a resource other than a topic. Topics follow their defaults."""
        before = self.settings.overrides(kind, name)
        self.settings.put(kind, name, settings)
        try:
            configs = [
                (topic, self.parse_config(topic.config.overrides))
                for topic in self._topics.values()
            ]
        except InvalidConfigurationError:
            validate_only = True
            raise
        finally:
            if validate_only:
                self.settings.put(kind, name, before)
        if not validate_only:
            for topic, config in configs:
                self._apply(topic, config)
            self._save()

    def _apply(self, topic: Topic, config: TopicConfig) -> None:
        topic.config = config
        for partition in topic.partitions:
            partition.log.configure(config)

    def next_producer_id(self) -> int:
        if self._next_producer_id == self._producer_ids_end:
            self._producer_ids_end += PRODUCER_ID_BLOCK
            self._save()
        self._next_producer_id += 1
        return self._next_producer_id - 1

    # Storing

    def is_kept(self, topic: Topic) -> bool:
        """Return whether a topic survives a crash. Before, no write to it may be acknowledged."""
        return topic.saved_by <= self._saves_done

    def _run_slowly(self, work: Callable[[], None]) -> None:
        if self._config.data_dir is None:
            work()  # memory is not slow
        else:
            self._disk.submit_behind(work)

    def _folder(self, topic: Topic) -> Path | None:
        data_dir = self._config.data_dir
        if data_dir is None:
            return None
        return data_dir / f"{topic.name[:FOLDER_NAME_LENGTH]}.{uuid_to_str(topic.topic_id)}"

    def _store(self, topic: Topic, index: int) -> LogStore:
        folder = self._folder(topic)
        if folder is None:
            return MemoryStore(topic.config.segment_bytes)
        name = f"{topic.name}-{index}"
        return FolderStore(folder / str(index), topic.config.segment_bytes, name)

    def _save_topic(self, topic: Topic) -> None:
        if self._config.data_dir is not None:
            self._kept_topics[topic.name] = _kept(topic)
        self._save()

    def _save_growth(self, topic: Topic) -> None:
        self._save_topic(topic)
        topic.saved_by = self._saves

    def _save(self) -> None:
        """Queue a write of the catalog. It is skipped if an earlier write covers it."""
        if self._config.data_dir is None:
            return
        path = self._config.data_dir / CATALOG_FILE
        self._kept_head = json.dumps(
            _StoredHead(
                format=FORMAT,
                cluster_id=self.cluster_id,
                next_producer_id=self._producer_ids_end,
                settings=self.settings.stored(),
            )
        )
        # Last, because the disk's thread reads the number before the content.
        self._saves += 1
        number = self._saves

        def save() -> None:
            if self._saves_done < number:
                brought = self._saves
                replace_file(path, _catalog_json(self._kept_head, self._kept_topics.copy()))
                self._saves_done = brought

        self._disk.submit(save)

    def load(self, data_dir: Path) -> None:
        """Lock the data directory and load it. Blocks on the disk."""
        try:
            data_dir.mkdir(parents=True, exist_ok=True)
            self._lock(data_dir)
            stored = (data_dir / CATALOG_FILE).read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise KafkaStorageError(f"cannot use the data directory {data_dir}: {error}") from error
        try:
            self._restore(load_formatted(data_dir / CATALOG_FILE, stored, _StoredCatalog))
        except (
            ValueError,
            KeyError,
            TypeError,
            InvalidConfigurationError,
            InvalidTopicError,
        ) as error:
            raise KafkaStorageError(
                f"cannot load the topics from {data_dir / CATALOG_FILE}, "
                f"because its content is invalid: {error!r}"
            ) from error
        self._remove_leftovers(data_dir)

    def _lock(self, data_dir: Path) -> None:
        if simulation_of(_get_running_loop()) is not None:
            return  # a simulated power cut would leave the lock to this process
        try:
            import fcntl  # late, because a broker in memory works without
        except ModuleNotFoundError:
            raise KafkaStorageError(
                f"data_dir={str(data_dir)!r} needs POSIX file locks, "
                "which this system does not have: leave data_dir out to keep records in memory"
            ) from None
        lock = (data_dir / LOCK_FILE).open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise KafkaStorageError(
                f"another broker uses the data directory {data_dir}: "
                "stop that broker, or choose another directory"
            ) from None
        self._lock_file = lock

    def _restore(self, stored: _StoredCatalog) -> None:
        self.cluster_id = stored["cluster_id"]
        self._next_producer_id = self._producer_ids_end = stored["next_producer_id"]
        self.settings.restore(stored.get("settings", []))
        for name, stored_topic in stored["topics"].items():
            check_topic_name(name)  # a part of paths
            topic = Topic(
                name, uuid_from_str(stored_topic["id"]), self.parse_config(stored_topic["configs"])
            )
            self._add(topic)  # first, so that `close` also closes a part of its partitions
            for index, stored_partition in enumerate(stored_topic["partitions"]):
                partition = self._open(topic, index, stored_partition)
                if not partition.log.was_clean:
                    # Records may be lost. With a new epoch, consumers notice (KIP-320).
                    partition.leader_epoch += 1
                    partition.log.begin_epoch(partition.leader_epoch)
                topic.partitions.append(partition)
            self.partition_count += len(topic.partitions)

    def _remove_leftovers(self, data_dir: Path) -> None:
        known = {self._folder(topic) for topic in self._topics.values()}
        for folder in data_dir.iterdir():
            if folder.is_dir() and folder not in known:
                shutil.rmtree(folder)

    def close(self) -> None:
        """Make every log durable and unlock the data directory. Blocks on the disk."""
        for topic in self._topics.values():
            for partition in topic.partitions:
                partition.log.close()
        if self._lock_file is not None:
            self._lock_file.close()  # releases the lock
