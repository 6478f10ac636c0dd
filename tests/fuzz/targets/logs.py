"""What the embedded broker loads: its data directory, and the records of coordinators."""

from __future__ import annotations

import atexit
import json
import random
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final

from aiokafka_lite import records
from aiokafka_lite._compat import override
from aiokafka_lite.broker import Broker
from aiokafka_lite.errors import KafkaConnectionError, KafkaError
from aiokafka_lite.protocol import codec
from aiokafka_lite.protocol.messages.coordinator_records import (
    GROUP_KEY_CLASSES,
    VALUE_OF,
    TransactionLogKey,
    TransactionLogValue,
)
from aiokafka_lite.protocol.schema import Blob
from aiokafka_lite.records import RecordSet, iter_batches
from tests.fuzz import broker_in_process, mutations, record_sets, scenario
from tests.fuzz.broker_in_process import Loop, Transport
from tests.fuzz.corpus import Kind, recorded_of
from tests.fuzz.engine import MIB, Limits, Target
from tests.fuzz.packing import pack, unpack, unpack_bytes
from tests.fuzz.targets.messages import mutated_body
from tests.fuzz.targets.requests import TOPIC, Conversation, config, prepare
from tests.support.samples import filled, versions

GROUPS: Final = "__consumer_offsets"
TRANSACTIONS: Final = "__transaction_state"
IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108 -- only its speed matters
NEWEST: Final = 18
WORDS: Final = (
    *("null", "true", "[]", "{}", "[[0, 0]]", "-1", '"x"', "9223372036854775807", "1e400", "NaN"),
    *('"format": 1', '"topics": {}', "[[1, 0, [], -1, -1, -1, -1]]", "[[1, 2, 3, 4]]"),
)


@cache
def folder() -> Path:
    """Return a folder that is removed when this process ends, unless it crashes."""
    parent = IN_MEMORY if IN_MEMORY.exists() else None
    found = Path(tempfile.mkdtemp(prefix="aiokafka-lite-fuzz-", dir=parent))
    atexit.register(shutil.rmtree, found, ignore_errors=True)
    return found


def read_files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def write_files(root: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@cache
def stored_files() -> dict[str, bytes]:
    """Run each scene on a broker with a data directory, and return the files that it leaves."""
    root = Path(tempfile.mkdtemp(dir=folder()))

    async def converse(loop: Loop) -> None:
        async def use(broker: Broker) -> None:
            prepare(broker)
            for scene in scenario.SCENES:
                await scene(Conversation(Transport(loop), NEWEST).ask, TOPIC)
            await broker.clean_logs()

        await broker_in_process.with_broker(Broker(config=config(data_dir=root)), use)

    try:
        broker_in_process.run(converse)
        return read_files(root)
    finally:
        shutil.rmtree(root)


class Directories(Target):
    """A data directory: catalog, logs, indexes, states. A broker starts with it, and is used."""

    name = "data-directory"
    # It does not start, or a log cannot be read: `Broker` documents both.
    allowed = (KafkaError,)
    weight = 3
    limits: ClassVar = Limits(memory_bytes=96 * MIB)

    @override
    def seeds(self) -> Sequence[bytes]:
        files = stored_files()
        small = {name: content for name, content in files.items() if "__" not in name}
        return [_packed(files), _packed(small)]

    @override
    def mutate(self, rng: random.Random, content: bytes, pool: Sequence[bytes]) -> bytes:
        files = _unpacked(content)
        for _ in range(rng.choice((1, 1, 2, 3))):
            if not files:
                break
            name = rng.choice([*files])
            stored = files[name]
            if rng.random() < 0.04:
                del files[name]
            elif rng.random() < 0.03:
                files[_renamed(rng, name)] = stored
            elif name.endswith(".json") and rng.random() < 0.8:
                files[name] = _other_json(rng, stored)
            elif name.endswith(".log") and rng.random() < 0.8:
                files[name] = record_sets.mutate(rng, stored, record_sets.seeds())
            else:
                files[name] = mutations.changed(rng, stored, ())
        return _packed(files)

    @override
    def run(self, content: bytes) -> str:
        root = folder() / "data"  # its name is part of errors
        try:
            write_files(root, _unpacked(content))
            return broker_in_process.run(lambda loop: self._use(loop, root))[0]
        finally:
            shutil.rmtree(root, ignore_errors=True)

    async def _use(self, loop: Loop, root: Path) -> str:
        async def use(broker: Broker) -> str:
            found = []
            for scene in (scenario.look, scenario.write_and_read, scenario.transact):
                conversation = Conversation(Transport(loop), NEWEST)
                try:
                    await scene(conversation.ask, TOPIC)
                except Exception as error:  # noqa: BLE001 -- an answer is another than expected
                    found.append(type(error).__name__)
                found.append(str(len(conversation.sent)))
            await broker.clean_logs()
            return " ".join(found)

        return await broker_in_process.with_broker(Broker(config=config(data_dir=root)), use)


def _packed(files: dict[str, bytes]) -> bytes:
    return pack(part for name, content in files.items() for part in (name.encode(), content))


def _unpacked(content: bytes) -> dict[str, bytes]:
    parts = unpack_bytes(content)
    found = {}
    for name, stored in zip(parts[::2], parts[1::2], strict=False):
        text = name.decode(errors="replace")
        pieces = text.split("/")
        is_plain = all(piece and not piece.startswith(".") and len(piece) < 200 for piece in pieces)
        if is_plain and "\0" not in text and len(pieces) < 5:
            found[text] = stored
    # A path cannot be a file and a folder.
    return {
        name: stored
        for name, stored in found.items()
        if not any(other.startswith(f"{name}/") for other in found)
    }


def _renamed(rng: random.Random, name: str) -> str:
    parent, _, file = name.rpartition("/")
    stem, dot, suffix = file.rpartition(".")
    stem = rng.choice((f"{mutations.number(rng) % 10**20:020}", "x", stem, f"{stem}-{stem}"))
    suffix = rng.choice((suffix, "log", "index", "log.swap", "log.1.cleaned", "new"))
    return f"{parent}/{stem}{dot}{suffix}".lstrip("/")


def _other_json(rng: random.Random, stored: bytes) -> bytes:
    """Replace a value somewhere in JSON, or some of its text."""
    try:
        value = json.loads(stored)
    except (ValueError, RecursionError):
        value = None
    if value is None or rng.random() < 0.2:
        text = mutations.changed_text(rng, stored.decode(errors="replace"), WORDS)
        return text.encode(errors="surrogatepass")
    places: list[tuple[Any, Any]] = []
    _collect(value, places)
    if places:
        container, key = rng.choice(places)
        other: Any = rng.choice(
            (None, True, 0, -1, 1.5, "x", "", [], {}, [[1, 2]], 2**63, 2**64, "7", [1], "\ud800")
        )
        if isinstance(container[key], int) and rng.random() < 0.5:
            other = mutations.number(rng, container[key])
        if rng.random() < 0.15 and isinstance(container, dict):
            del container[key]
        else:
            container[key] = other
    return json.dumps(value).encode()


def _collect(value: Any, places: list[tuple[Any, Any]]) -> None:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        places.append((value, key))
        if isinstance(item, dict | list):
            _collect(item, places)


# --- The records of coordinators ---------------------------------------------------------------
VALUES: Final[dict[type[Blob], type[Blob]]] = {
    TransactionLogKey: TransactionLogValue,
    **dict(VALUE_OF.items()),
}
KEYS: Final = {**GROUP_KEY_CLASSES}


class CoordinatorRecords(Target):
    """Keys and values in the logs of both coordinators, which a second node loads and serves.

    The first byte chooses the log; the record sets are otherwise well-formed.
    """

    name = "coordinator-records"
    allowed = (KafkaError,)  # a log that cannot be loaded is a failure of the broker
    weight = 3

    @override
    def seeds(self) -> Sequence[bytes]:
        found = []
        for name, content in stored_files().items():
            if name.endswith(".log") and name.startswith("__") and content:
                kind = b"\1" if name.startswith(TRANSACTIONS) else b"\0"
                found.append(kind + pack(_pairs(content)))
        for kind, recorded in ((b"\0", Kind.GROUP_RECORDS), (b"\1", Kind.TRANSACTION_RECORDS)):
            found += [kind + pack(_pairs(entry.content)) for entry in recorded_of(recorded)]
        for key_cls, value_cls in VALUES.items():
            for version in versions(value_cls):
                key = codec.encode_key(filled(key_cls, 0))  # type: ignore[arg-type]
                value = codec.encode_versioned(filled(value_cls, version), version)
                kind = b"\1" if key_cls is TransactionLogKey else b"\0"
                found.append(kind + pack([key, value]))
        return [content for content in found if len(content) > 1]

    @override
    def mutate(self, rng: random.Random, content: bytes, pool: Sequence[bytes]) -> bytes:
        kind, parts = content[:1] or b"\0", unpack(content[1:])
        if len(parts) > 60:
            first = rng.randrange(len(parts) - 40) & ~1
            parts = parts[first : first + 40]
        others = unpack(rng.choice(pool)[1:])
        for _ in range(rng.choice((1, 1, 2, 4))):
            if len(parts) < 2:
                parts = [*others[:2], b"", b""]
            at = rng.randrange(len(parts) - 1) & ~1
            key, value = parts[at], parts[at + 1]
            match rng.randrange(9):
                case 0:
                    parts[at + 1] = None
                case 1:
                    parts[at:at] = others[: 2 * rng.randint(1, 4)]
                case 2:
                    parts[at : at + 2] = [key, value] * 2
                case 3:
                    parts[at] = None if rng.random() < 0.05 else _other_key(rng, key or b"", kind)
                case _:
                    parts[at + 1] = _other_value(rng, key or b"", value or b"", kind)
        return kind + pack(parts)

    @override
    def run(self, content: bytes) -> str:
        is_transactions = bool(content[:1]) and content[0] & 1 == 1
        parts = unpack(content[1:])
        pairs = list(zip(parts[::2], parts[1::2], strict=False))
        outcome, held_s = broker_in_process.run(
            lambda loop: self._load(loop, pairs, is_transactions=is_transactions),
            is_timed=self.is_alone,
        )
        self.held(held_s)
        return outcome

    async def _load(
        self,
        loop: Loop,
        pairs: Sequence[tuple[bytes | None, bytes | None]],
        *,
        is_transactions: bool,
    ) -> str:
        async def use(broker: Broker) -> str:
            prepare(broker)
            key_type = int(is_transactions)
            first = Conversation(Transport(loop), NEWEST)
            await scenario.find(first.ask, "ü1", key_type)
            topic = TRANSACTIONS if is_transactions else GROUPS
            for partition in broker.topics[topic].partitions:
                if pairs:
                    batch = records.build_batch((1_000, key, value, ()) for key, value in pairs)
                    ((header, view),) = iter_batches(memoryview(batch))
                    partition.log.append(header, view, leader_epoch=partition.leader_epoch)
                broker.move_leader(broker_in_process.tp_of(partition))
            loop.selector.longest_s = 0.0
            found = []
            for scene in (scenario.classic, scenario.consumer, scenario.transact, scenario.look):
                conversation = Conversation(Transport(loop), NEWEST)
                try:
                    await scene(conversation.ask, TOPIC)
                    await scenario.ask_about(conversation.ask, _names(pairs))
                except KafkaConnectionError as error:
                    found.append(type(error).__name__)
                found.append(str(len(conversation.sent)))
            await broker_in_process.pass_time(100)
            await broker.clean_logs()
            return " ".join(found)

        broker = Broker(config=config(nodes=2, default_replication_factor=2))
        return await broker_in_process.with_broker(broker, use)


def _names(pairs: Sequence[tuple[bytes | None, bytes | None]]) -> list[str]:
    """Return the groups or transactional ids of keys that can be read."""
    names = []
    for key, _ in pairs[:6]:
        size = int.from_bytes((key or b"")[2:4], "big")
        names.append((key or b"")[4 : 4 + size].decode(errors="replace"))
    return [*dict.fromkeys(names)]


def _pairs(content: bytes) -> list[bytes | None]:
    read = RecordSet("t", 0, memoryview(content), fetch_offset=0)
    found: list[bytes | None] = []
    while taken := read.take(1000):
        for record in taken:
            found += [record.key, record.value]
    return found


def _key_class(key: bytes, kind: bytes) -> type[Blob] | None:
    if kind[0] & 1:
        return TransactionLogKey
    return KEYS.get(int.from_bytes(key[:2], "big"))


def _other_key(rng: random.Random, key: bytes, kind: bytes) -> bytes:
    cls = _key_class(key, kind)
    if cls is None or rng.random() < 0.1:
        return mutations.changed(rng, key, ())
    if rng.random() < 0.3:
        key = rng.choice([*KEYS]).to_bytes(2, "big") + key[2:]
    return key[:2] + mutated_body(rng, cls, 0, key[2:], ())


def _other_value(rng: random.Random, key: bytes, value: bytes, kind: bytes) -> bytes:
    key_cls = _key_class(key, kind)
    cls = None if key_cls is None else VALUES.get(key_cls)
    version = int.from_bytes(value[:2], "big")
    if cls is None or not cls.versions.covers(version) or rng.random() < 0.1:
        return mutations.changed(rng, value, ())
    return value[:2] + mutated_body(rng, cls, version, value[2:], ())
