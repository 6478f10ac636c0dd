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
from aiokafka_lite.errors import DecompressionLimitError, KafkaError
from aiokafka_lite.records.batch import HEADER_BYTES, reseal
from aiokafka_lite.records.codec import Codec
from aiokafka_lite.records.compression import compress, inflate
from tests.fuzz import mutations
from tests.support import crafted

FIXTURES: Final = Path(__file__).parents[1] / "records" / "fixtures"
OVERHEAD: Final = 12  # offset and length
MAGIC_AT: Final = 16
CAP: Final = 1 << 20
_CODECS: Final = tuple(Codec)
_LENGTH: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")

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


# --- Bombs -------------------------------------------------------------------------------------
@cache
def _bomb(kind: int, codec: Codec) -> tuple[bytes, int]:
    """Return a compressed payload that is valid and large, and the number of its records."""
    record, count = crafted.record, 1
    match kind:
        case 0 | 1:
            size = 3 * CAP if kind else 12 * CAP
            payload = record(0, value=mutations.varint(size) + bytes(size))
        case 2 | 3:
            headers = (1 << 18) + kind - 2
            payload = record(0, headers=mutations.varint(headers) + b"\0\1" * headers)
        case 4:
            count, headers = 60, 5_000
            each = mutations.varint(headers) + b"\0\1" * headers
            payload = b"".join(record(delta, headers=each) for delta in range(count))
        case _:
            count = 30_000
            payload = b"".join(record(delta, key=b"\x08\0\0\0\0") for delta in range(count))
    return compress(codec, payload), count


def bombs(rng: random.Random) -> bytes:
    """Return batches that are small only while they are compressed. Their offsets may overlap."""
    codec = rng.choice(_CODECS[1:])
    payload, count = _bomb(rng.randrange(6), codec)
    return b"".join(
        crafted.raw_batch(
            payload,
            count=count,
            last_offset_delta=count + 99 + number,
            attributes=codec | rng.choice((0, 0, crafted.TRANSACTIONAL, crafted.CONTROL)),
            producer_id=11,
        )
        for number in range(rng.choice((1, 1, 20)))
    )


# --- Mutations ---------------------------------------------------------------------------------
def mutate(rng: random.Random, content: bytes, pool: Sequence[bytes]) -> bytes:
    """Return another record set."""
    return Base(content).mutated(rng, pool)


class Base:
    """A record set that is split once for several mutations."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._batches: list[_Batch] | None = None

    def mutated(self, rng: random.Random, pool: Sequence[bytes]) -> bytes:
        """Return another record set."""
        if rng.random() < 0.15:
            return mutations.changed(rng, self._content, pool)
        if self._batches is None:
            found = split(self._content) or [rng.choice(seeds())]
            self._batches = [_Batch(batch) for batch in found]
        at = rng.randrange(len(self._batches))
        batches = [batch.content for batch in self._batches]
        kind = rng.randrange(8)
        if kind == 7:
            other = split(rng.choice(pool)) if pool else []
            batches[at:at] = other[: rng.randint(1, 3)]
            rng.shuffle(batches)
            return b"".join(batches)[: 1 << 17]
        changed = self._batches[at].mutated(rng, kind, pool)
        batches[at] = sealed(changed) if rng.random() < 0.85 else bytes(changed)
        return b"".join(batches[:12])


def split(content: bytes) -> list[bytes]:
    """Split a record set where the lengths say so, with the incomplete rest at the end."""
    found = []
    while len(content) > MAGIC_AT:
        size = OVERHEAD + _LENGTH.unpack_from(content, 8)[0]
        if not MAGIC_AT < size <= len(content):
            break
        found.append(content[:size])
        content = content[size:]
    return [*found, content] if content else found


def is_cut(batch: bytes) -> bool:
    """Whether a batch has fewer bytes than its length says."""
    return len(batch) <= MAGIC_AT or OVERHEAD + _LENGTH.unpack_from(batch, 8)[0] > len(batch)


def sealed(batch: bytes | bytearray) -> bytes:
    """Correct length and checksum."""
    if len(batch) < 22:
        return bytes(batch)
    changed = bytearray(batch)
    _LENGTH.pack_into(changed, 8, len(changed) - OVERHEAD)
    if changed[MAGIC_AT] == 2:
        reseal(memoryview(changed))
    else:
        _CRC.pack_into(changed, 12, zlib.crc32(memoryview(changed)[16:]))
    return bytes(changed)


def _with_other_fields(rng: random.Random, batch: bytes) -> bytearray:
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
    return changed


def _codec(batch: bytes) -> Codec | None:
    attributes = batch[22] if batch[MAGIC_AT] == 2 else batch[17]
    number = attributes & 7
    return Codec(number) if number < len(Codec) else None


def _inflated(batch: bytes, packed: bytes) -> bytes | None:
    try:
        return _inflate(batch, packed)
    except KafkaError:
        return None


def _inflate(batch: bytes, packed: bytes) -> bytes | None:
    codec = _codec(batch)
    if codec in (None, Codec.NONE):
        return packed if codec is Codec.NONE else None
    return bytes(inflate(codec, memoryview(packed), CAP, magic=batch[MAGIC_AT]))


def _parts(batch: bytes) -> tuple[bytes, bytes] | None:
    """Return all in front of the records, and the records, which may be compressed."""
    if batch[MAGIC_AT] == 2:
        return (batch[:HEADER_BYTES], batch[HEADER_BYTES:]) if len(batch) > HEADER_BYTES else None
    at = 18 if batch[MAGIC_AT] == 0 else 26
    if len(batch) < at + 8 or struct.unpack_from(">i", batch, at)[0] != -1:
        return None
    return batch[: at + 4], batch[at + 8 :]  # without a key, as wrappers are


def inflated_size(content: bytes) -> int:
    """Return the bytes of all batches, decompressed up to `CAP` each."""
    return sum(map(_inflated_size, split(content)))


def _inflated_size(batch: bytes) -> int:
    is_packed = len(batch) > HEADER_BYTES and _codec(batch) not in (None, Codec.NONE)
    parts = _parts(batch) if is_packed else None
    try:
        inflated = None if parts is None else _inflate(batch, parts[1])
    except DecompressionLimitError:
        return CAP
    except KafkaError:
        inflated = None
    return len(batch) if inflated is None else len(inflated)


def _joined(head: bytearray, packed: bytes) -> bytearray:
    if head[MAGIC_AT] != 2:
        head += _LENGTH.pack(len(packed))
    head += packed
    return head


class _Batch:
    """One batch of a record set. What its records are is found out when they are changed."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self._parts: tuple[bytes, bytes] | None = None
        self._inflated: bytes | None = None
        self._inner: Base | _Records | None = None
        self._is_split = False

    def mutated(self, rng: random.Random, kind: int, pool: Sequence[bytes]) -> bytes | bytearray:
        match kind:
            case 0 | 1:
                return _with_other_fields(rng, self.content)
            case 2 | 3 | 4:
                return self._with_other_records(rng, pool)
            case 5:
                return self._with_other_payload(rng, pool)
            case _:
                return mutations.changed(rng, self.content, pool)

    def _split(self) -> None:
        if self._is_split or len(self.content) < 26:
            return
        self._is_split = True
        self._parts = _parts(self.content)
        if self._parts is None:
            return
        self._inflated = inflated = _inflated(self.content, self._parts[1])
        if inflated is None:
            return
        if self.content[MAGIC_AT] == 2:
            self._inner = _Records(inflated)
        elif _codec(self.content) is not Codec.NONE:
            self._inner = Base(inflated)

    def _with_other_records(self, rng: random.Random, pool: Sequence[bytes]) -> bytes | bytearray:
        """Change the records inside, and compress them again, perhaps with another codec.

        Most are left uncompressed, because to compress takes longer than all else.
        """
        self._split()
        if self._parts is None:
            return mutations.changed(rng, self.content, pool)
        if self._inflated is None:
            return self._with_other_payload(rng, pool)
        if self._inner is not None:
            content = self._inner.mutated(rng, pool)
        else:
            content = mutations.changed(rng, self._inflated, pool)
        changed = bytearray(self._parts[0])
        codec = _codec(self.content) or Codec.NONE
        luck = rng.random()
        if luck < 0.05:
            codec, content = rng.choice(odd_framings(content))
            return _joined(changed, content)
        if luck < 0.3:
            codec = rng.choice(_CODECS)
        elif luck < 0.75:
            codec = Codec.NONE
        attributes_at = 22 if changed[MAGIC_AT] == 2 else 17
        changed[attributes_at] = changed[attributes_at] & 0xF8 | codec
        return _joined(changed, content if codec is Codec.NONE else compress(codec, content))

    def _with_other_payload(self, rng: random.Random, pool: Sequence[bytes]) -> bytes | bytearray:
        """Change the compressed bytes."""
        self._split()
        if self._parts is None:
            return mutations.changed(rng, self.content, pool)
        head, packed = self._parts
        return _joined(bytearray(head), mutations.changed(rng, packed, ()))


# --- Records of magic 2 ------------------------------------------------------------------------
Item = int | bytes  # a varint, or bytes as they are


class _Records:
    """The records of a batch of magic 2, of which a mutation renders those that it changes."""

    def __init__(self, payload: bytes) -> None:
        self._records = split_records(payload)
        self._rendered = [mutations.varint(len(record)) + record for record in self._records]
        self._items: dict[int, list[Item]] = {}

    def mutated(self, rng: random.Random, pool: Sequence[bytes]) -> bytes:
        rendered = [*self._rendered]
        padding = rng.choice(_PADDINGS)
        changed: dict[int, list[Item]] = {}
        if not rendered or rng.random() < 0.1:
            rendered, changed = [b""], {0: [0, 0, 0, -1, 1, b"v", 0]}
        for _ in range(rng.choice((1, 1, 2, 4))):
            number = rng.randrange(len(rendered))
            if number not in changed:
                changed[number] = self._items_of(number)
            _change_items(rng, changed[number], pool)
        for number, items in changed.items():
            rendered[number] = _rendered(rng, items, padding)
        if rng.random() < 0.03:
            rendered = rendered[:100] * rng.choice((2, 2, 10))
        return b"".join(rendered)

    def _items_of(self, number: int) -> list[Item]:
        if number not in self._items:
            self._items[number] = record_items(self._records[number])
        return [*self._items[number]]


def _change_items(rng: random.Random, items: list[Item], pool: Sequence[bytes]) -> None:
    at = rng.randrange(len(items))
    item = items[at]
    if isinstance(item, int):
        items[at] = mutations.number(rng, item)
        return
    items[at] = changed = mutations.changed(rng, item, pool)[:4096]
    before = items[at - 1] if at else None
    if isinstance(before, int) and rng.random() < 0.8:
        items[at - 1] = len(changed)


def _rendered(rng: random.Random, items: Sequence[Item], padding: int) -> bytes:
    record = b"\0" + b"".join(
        [
            item if isinstance(item, bytes) else mutations.varint(_int64(item), padding)
            for item in items
        ]
    )
    size = len(record) if rng.random() < 0.95 else mutations.number(rng, len(record))
    return mutations.varint(_int64(size)) + record


_PADDINGS: Final = (0,) * 12 + (1, 4, 9)


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
