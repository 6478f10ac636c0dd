"""Record the corpus: the conversations of `scenario.py` with real Kafkas, and what clients send.

    python -m tests.fuzz.recording               writes tests/fuzz/corpus.xz

Each Kafka is started for that, on free ports. Older ones than 3.9 would need ZooKeeper: record sets
in their formats (magic 0 and 1) are in tests/records/fixtures, written by Kafka's own builder.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any, Final

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka_lite.protocol import framing
from aiokafka_lite.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from aiokafka_lite.protocol.messages.metadata import ApiVersionsRequest
from aiokafka_lite.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from aiokafka_lite.protocol.schema import Request
from tests.fuzz import corpus, scenario
from tests.fuzz.corpus import Entry, Kind
from tests.support.real_kafka import RealKafka
from tests.support.wire import RawClient

KAFKAS: Final = ("3.9.1", "4.0.0", "4.3.1", "4.4.0")
COMPLETE: Final = "4.3.1"
TOPIC: Final = "t"
FETCH_BY_NAME: Final = 12
OLD_ENOUGH: Final = 5
PROPERTIES: Final = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.coordinator.rebalance.protocols": "classic,consumer",
}
LARGEST_BYTES: Final = 6_000
SAME_SHAPE: Final = 4


class Recorder:
    """Asks a broker, in the versions of a level, and keeps the frames."""

    def __init__(
        self, client: RawClient, source: str, level: int, newest: dict[int, tuple[int, int]]
    ) -> None:
        self._client = client
        self._source = source
        self._level = level
        self._versions = newest
        self.entries: list[Entry] = []

    async def ask(self, request: Request[Any]) -> Any:
        cls = type(request)
        if cls.api_key not in self._versions:
            return None
        oldest, newest = self._versions[cls.api_key]
        version = min(scenario.version_at(self._level, cls), newest)
        if version < oldest:
            return None
        try:
            frame = framing.encode_request(request, version, self._level, "fuzz")
        except scenario.CANNOT_CARRY:
            return None
        answer = await asyncio.wait_for(self._client.exchange(frame), 20)
        for kind, content in ((Kind.REQUEST, frame[4:]), (Kind.RESPONSE, bytes(answer))):
            if len(content) <= LARGEST_BYTES:
                self.entries.append(Entry(kind, self._source, cls.api_key, version, content))
        return framing.response_decoder(cls, version)(answer)


async def record(bootstrap_servers: str, source: str, levels: Sequence[int]) -> list[Entry]:
    """Run each scene at some levels, then what a consumer and a producer do, and read the logs."""
    found: list[Entry] = []
    async with RawClient(bootstrap_servers) as client:
        asked = ApiVersionsRequest(client_software_name="fuzz", client_software_version="1")
        known = await client.request(asked, 3)
        new = CreatableTopic(name=TOPIC, num_partitions=2, replication_factor=1)
        await client.request(CreateTopicsRequest(topics=[new], timeout_ms=10_000), OLD_ENOUGH)
    versions = {api.api_key: (api.min_version, api.max_version) for api in known.api_keys}
    await _work(bootstrap_servers)
    for level in levels:
        for scene in scenario.SCENES:
            async with RawClient(bootstrap_servers) as client:
                recorder = Recorder(client, source, level, versions)
                try:
                    await scene(recorder.ask, TOPIC)
                except (
                    asyncio.IncompleteReadError,
                    asyncio.TimeoutError,
                    ConnectionError,
                ) as error:
                    print(f"{source}, level {level}, {scene.__name__}: {type(error).__name__}")
                found += recorder.entries
    for kind, topic in (
        (Kind.RECORDS, TOPIC),
        (Kind.GROUP_RECORDS, "__consumer_offsets"),
        (Kind.TRANSACTION_RECORDS, "__transaction_state"),
    ):
        content = await _log(bootstrap_servers, topic)
        found.append(Entry(kind, source, FetchRequest.api_key, FETCH_BY_NAME, content))
    return found


async def _work(bootstrap_servers: str) -> None:
    """Have groups of both protocols, so that the logs have their records."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap_servers) as producer:
        await producer.send_and_wait(TOPIC, b"v", key=b"k", headers=[("h", b"1")])
    for protocol in ("classic", "consumer"):
        try:
            async with AIOKafkaConsumer(
                TOPIC,
                bootstrap_servers=bootstrap_servers,
                group_id=f"work-{protocol}",
                group_protocol=protocol,
                auto_offset_reset="earliest",
            ) as consumer:
                await asyncio.wait_for(consumer.getone(), 20)
                await consumer.commit()
        except Exception as error:  # noqa: BLE001 -- an old broker has no KIP-848
            print(f"{protocol}: {type(error).__name__}: {error}")


async def _log(bootstrap_servers: str, topic: str, most_bytes: int = 30_000) -> bytes:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=most_bytes)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=most_bytes,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
    )
    async with RawClient(bootstrap_servers) as client:
        answer: FetchResponse = await client.request(request, FETCH_BY_NAME)
    return bytes(answer.responses[0].partitions[0].records or b"")


def without_doubles(entries: Sequence[Entry]) -> list[Entry]:
    """Drop entries of the same bytes, and of the same request in the same shape and version."""
    seen: dict[object, int] = {}
    found = []
    for entry in entries:
        if entry.kind in (Kind.REQUEST, Kind.RESPONSE):
            shape: object = (entry.kind, entry.api_key, entry.version, len(entry.content))
        else:
            shape = hashlib.sha256(entry.content).digest()
        seen[shape] = seen.get(shape, 0) + 1
        if seen[shape] <= SAME_SHAPE:
            found.append(entry)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="*", default=KAFKAS)
    entries: list[Entry] = []
    for version in parser.parse_args().versions:
        with RealKafka(version=version, properties=PROPERTIES) as kafka:
            levels = scenario.LEVELS if version == COMPLETE else [scenario.LEVELS[-1]]
            recorded = asyncio.run(record(kafka.bootstrap_servers, version, levels))
        print(f"{version}: {len(recorded)} entries")
        entries += recorded
    kept = without_doubles(entries)
    corpus.FILE.write_bytes(corpus.packed(kept))
    print(f"{len(kept)} of {len(entries)} entries, {corpus.FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
