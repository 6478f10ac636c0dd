"""Record sets of all formats and codecs, changed where their layout says that something stands.

References: org.apache.kafka.common.record.DefaultRecordBatch and DefaultRecord (magic 2),
LegacyRecord (magic 0 and 1); snappy-java's SnappyOutputStream ("xerial").
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

import cramjam

from aiokafka_lite import records
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.records.batch import HEADER_BYTES, reseal
from aiokafka_lite.records.codec import Codec
from aiokafka_lite.records.compression import compress, inflate
from tests.fuzz import mutations
from tests.support import crafted

FIXTURES: Final = Path(__file__).parents[1] / "records" / "fixtures"
OVERHEAD: Final = 12  # offset and length
MAGIC_AT: Final = 16
CAP: Final = 1 << 20

# Position and size of the fields of a batch of magic 2, without its checksum.
FIELDS: Final = (
    *((0, 8), (8, 4), (12, 4), (16, 1), (21, 2), (23, 4), (27, 8), (35, 8)),
    *((43, 8), (51, 2), (53, 4), (57, 4)),
)
# Of a message of magic 0 and 1: offset, length, magic, attributes, and what follows.
LEGACY_FIELDS: Final = ((0, 8), (8, 4), (16, 1), (17, 1), (18, 4), (18, 8), (22, 4), (26, 4))


@cache
def seeds() -> Sequence[bytes]:
    """Record sets that Kafka's clients wrote, and some of ours: control batches, odd framings."""
    plain = [
        (1000 + number, b"k" * number or None, b"v" * (number * 9), (("h", None), ("é", b"1")))
        for number in range(4)
    ]
    found = [path.read_bytes() for path in sorted(FIXTURES.glob("*.bin"))]
    found += [records.build_batch(plain, codec=codec, base_offset=3) for codec in Codec]
    found += [
        crafted.interleaved(),
        crafted.raw_batch(crafted.record(0), count=1, attributes=0x30, producer_id=11),
        crafted.raw_batch(b"", count=0, last_offset_delta=9),
        b"".join(crafted.message(n, b"value", key=b"k", magic=n % 2) for n in range(4)),
        crafted.batch(2) + crafted.batch(2, base_offset=2)[:40],
    ]
    payload = b"".join(crafted.record(number) for number in range(3))
    for codec, packed in odd_framings(payload):
        found.append(crafted.raw_batch(packed, count=3, attributes=codec))
    return found


def odd_framings(payload: bytes) -> list[tuple[Codec, bytes]]:
    """Compress in ways that other producers have: raw snappy, linked blocks, several frames."""
    half = len(payload) // 2
    return [
        (Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(payload))),
        (Codec.SNAPPY, xerial((payload[:half], b"", payload[half:]))),
        (Codec.LZ4, bytes(cramjam.lz4.compress(payload))),
        (Codec.GZIP, compress(Codec.GZIP, payload[:half]) + compress(Codec.GZIP, payload[half:])),
        (Codec.ZSTD, compress(Codec.ZSTD, payload[:half]) + compress(Codec.ZSTD, payload[half:])),
    ]


def xerial(blocks: Sequence[bytes]) -> bytes:
    """Frame snappy blocks as snappy-java does."""
    packed = [bytes(cramjam.snappy.compress_raw(block)) for block in blocks]
    head = struct.pack(">8sii", b"\x82SNAPPY\x00", 1, 1)
    return head + b"".join(struct.pack(">i", len(block)) + block for block in packed)


# --- Mutations ---------------------------------------------------------------------------------
def mutate(rng: random.Random, content: bytes, pool: Sequence[bytes]) -> bytes:
    """Return another record set."""
    if rng.random() < 0.15:
        return mutations.changed(rng, content, pool)
    batches = split(content)
    if not batches:
        batches = [rng.choice(seeds())]
    at = rng.randrange(len(batches))
    batch = batches[at]
    is_sealed = rng.random() < 0.85
    match rng.randrange(8):
        case 0 | 1:
            batch = _with_other_fields(rng, batch)
        case 2 | 3 | 4:
            batch = _with_other_records(rng, batch, pool)
        case 5:
            batch = _with_other_payload(rng, batch, pool)
        case 6:
            batch = mutations.changed(rng, batch, pool)
        case _:
            other = split(rng.choice(pool)) if pool else []
            batches[at:at] = other[: rng.randint(1, 3)]
            rng.shuffle(batches)
            return b"".join(batches)[: 1 << 17]
    batches[at] = sealed(batch) if is_sealed else batch
    return b"".join(batches[:12])


def split(content: bytes) -> list[bytes]:
    """Split a record set where the lengths say so, with the incomplete rest at the end."""
    found = []
    while len(content) > MAGIC_AT:
        size = OVERHEAD + struct.unpack_from(">i", content, 8)[0]
        if not MAGIC_AT < size <= len(content):
            break
        found.append(content[:size])
        content = content[size:]
    return [*found, content] if content else found


def sealed(batch: bytes) -> bytes:
    """Correct length and checksum."""
    changed = bytearray(batch)
    if len(changed) < 22:
        return batch
    struct.pack_into(">i", changed, 8, len(changed) - OVERHEAD)
    if changed[MAGIC_AT] == 2:
        reseal(memoryview(changed))
    else:
        struct.pack_into(">I", changed, 12, zlib.crc32(memoryview(changed)[16:]))
    return bytes(changed)


def _with_other_fields(rng: random.Random, batch: bytes) -> bytes:
    changed = bytearray(batch)
    fields = FIELDS if len(batch) >= HEADER_BYTES and batch[MAGIC_AT] == 2 else LEGACY_FIELDS
    for _ in range(rng.randint(1, 3)):
        at, size = rng.choice(fields)
        if at + size > len(changed):
            continue
        if rng.random() < 0.3:  # a flag, a codec
            changed[at + size - 1] ^= 1 << rng.randrange(8)
        else:
            near = int.from_bytes(changed[at : at + size], "big")
            changed[at : at + size] = mutations.packed(mutations.number(rng, near), size)
    return bytes(changed)


def _codec(batch: bytes) -> Codec | None:
    attributes = batch[22] if batch[MAGIC_AT] == 2 else batch[17]
    number = attributes & 7
    return Codec(number) if number < len(Codec) else None


def _inflated(batch: bytes, packed: bytes) -> bytes | None:
    codec = _codec(batch)
    if codec in (None, Codec.NONE):
        return packed if codec is Codec.NONE else None
    try:
        return bytes(inflate(codec, memoryview(packed), CAP, magic=batch[MAGIC_AT]))
    except KafkaError:
        return None


def _parts(batch: bytes) -> tuple[bytes, bytes] | None:
    """Return all in front of the records, and the records, which may be compressed."""
    if batch[MAGIC_AT] == 2:
        return (batch[:HEADER_BYTES], batch[HEADER_BYTES:]) if len(batch) > HEADER_BYTES else None
    at = 18 if batch[MAGIC_AT] == 0 else 26
    if len(batch) < at + 8 or struct.unpack_from(">i", batch, at)[0] != -1:
        return None
    return batch[: at + 4], batch[at + 8 :]  # without a key, as wrappers are


def _joined(head: bytes, packed: bytes) -> bytes:
    if head[MAGIC_AT] == 2:
        return head + packed
    return head + struct.pack(">i", len(packed)) + packed


def _with_other_records(rng: random.Random, batch: bytes, pool: Sequence[bytes]) -> bytes:
    """Change the records inside, and compress them again, perhaps with another codec."""
    if len(batch) < 26 or (parts := _parts(batch)) is None:
        return mutations.changed(rng, batch, pool)
    head, packed = parts
    content = _inflated(batch, packed)
    if content is None:
        return _with_other_payload(rng, batch, pool)
    if batch[MAGIC_AT] == 2:
        content = _other_records(rng, content, pool)
    elif _codec(batch) is Codec.NONE:
        content = mutations.changed(rng, content, pool)
    else:
        content = mutate(rng, content, pool)
    changed = bytearray(head)
    codec = _codec(batch) or Codec.NONE
    if rng.random() < 0.3:
        codec = rng.choice(tuple(Codec))
        attributes_at = 22 if batch[MAGIC_AT] == 2 else 17
        changed[attributes_at] = changed[attributes_at] & 0xF8 | codec
    if rng.random() < 0.1:
        codec, content = rng.choice(odd_framings(content))
        return _joined(bytes(changed), content)
    return _joined(bytes(changed), compress(codec, content))


def _with_other_payload(rng: random.Random, batch: bytes, pool: Sequence[bytes]) -> bytes:
    """Change the compressed bytes."""
    if len(batch) < 26 or (parts := _parts(batch)) is None:
        return mutations.changed(rng, batch, pool)
    head, packed = parts
    return _joined(head, mutations.changed(rng, packed, ()))


# --- Records of magic 2 ------------------------------------------------------------------------
Item = int | bytes  # a varint, or bytes as they are


def _other_records(rng: random.Random, payload: bytes, pool: Sequence[bytes]) -> bytes:
    found = [record_items(record) for record in split_records(payload)]
    if not found or rng.random() < 0.1:
        found = [[0, 0, 0, -1, 1, b"v", 0]]
    for _ in range(rng.choice((1, 1, 2, 4))):
        items = found[rng.randrange(len(found))]
        if not items:
            continue
        at = rng.randrange(len(items))
        item = items[at]
        if isinstance(item, int):
            items[at] = mutations.number(rng, item)
        else:
            items[at] = changed = mutations.changed(rng, item, pool)[:4096]
            before = items[at - 1] if at else None
            if isinstance(before, int) and rng.random() < 0.8:
                items[at - 1] = len(changed)
    if rng.random() < 0.1:
        found *= rng.choice((2, 10, 50))
    padding = rng.choice((0,) * 12 + (1, 4, 9))
    parts = []
    for items in found:
        record = b"\0" + b"".join(
            item if isinstance(item, bytes) else mutations.varint(_int64(item), padding)
            for item in items
        )
        size = len(record) if rng.random() < 0.95 else mutations.number(rng, len(record))
        parts.append(mutations.varint(_int64(size)) + record)
    return b"".join(parts)


def _int64(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def split_records(payload: bytes) -> list[bytes]:
    """Return the records without their lengths, as far as the lengths make sense."""
    found, pos = [], 0
    while pos < len(payload):
        size, pos = read_varint(payload, pos)
        if size <= 0 or size > len(payload) - pos:
            break
        found.append(payload[pos : pos + size])
        pos += size
    return found


def record_items(record: bytes) -> list[Item]:
    """Split what follows the attributes: timestamp, offset, key, value, headers."""
    items: list[Item] = []
    pos = 1
    for _ in range(2):
        number, pos = read_varint(record, pos)
        items.append(number)
    for _ in range(2):
        pos = _add_content(record, pos, items)
    count, pos = read_varint(record, pos)
    items.append(count)
    for _ in range(min(max(count, 0), 8)):
        pos = _add_content(record, pos, items)
        pos = _add_content(record, pos, items)
    if pos < len(record):
        items.append(record[pos:])
    return items


def _add_content(record: bytes, pos: int, items: list[Item]) -> int:
    size, pos = read_varint(record, pos)
    items.append(size)
    if size > 0:
        items.append(record[pos : pos + size])
        pos += size
    return pos


def read_varint(content: bytes, pos: int) -> tuple[int, int]:
    """Return a signed varint, 0 behind the end, and the position after it."""
    value = shift = 0
    while pos < len(content) and shift < 64:
        byte = content[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return (value >> 1) ^ -(value & 1), pos
