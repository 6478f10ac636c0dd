"""The data that is read: topics whose names say what is in them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

KEY_BYTES: Final = 8
DEFAULT_BATCH_BYTES: Final = 128 * 1024

# Short: it is a column of each row where Spark reads.
_PREFIX: Final = "lite-bench"
_WORDS: Final = (
    "amber", "basalt", "cedar", "delta", "ember", "fjord", "granite", "harbor", "island", "juniper",
    "kelp", "lagoon", "meadow", "north", "opal", "prairie", "quartz", "river", "summit", "tundra",
    "umber", "valley", "willow", "zephyr",
)  # fmt: skip
_TEMPLATE_COUNT: Final = 4096


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic.

    Attributes:
        codec: What its batches are compressed by.
        value_bytes: Length of each value.
        records: How many there are; 0 if that does not matter, as they are written later.
        partition_count: Records go round all partitions, one after the other.
        batch_records: Records in each batch; None for batches of about `batch_bytes`.
        batch_bytes: How large a batch may be before compression.
        key_count: How many keys there are, which come in turn; None: each record has its own.
        use: Tells apart topics of the same shape.
    """

    codec: str = "none"
    value_bytes: int = 100
    records: int = 0
    partition_count: int = 4
    batch_records: int | None = None
    batch_bytes: int = DEFAULT_BATCH_BYTES
    key_count: int | None = None
    use: str = "read"

    @property
    def name(self) -> str:
        """The name says all there is to know, so a topic of this name can be used again."""
        prefix = _PREFIX if self.use == "read" else f"{_PREFIX}-{self.use}"
        if not self.records:
            return f"{prefix}-{self.partition_count}"
        batch = "" if self.batch_records is None else f"-by-{self.batch_records}"
        if self.batch_bytes != DEFAULT_BATCH_BYTES:
            batch += f"-{_short(self.batch_bytes)}"
        if self.key_count is not None:
            batch += f"-{_short(self.key_count)}-keys"
        shape = f"{self.codec}-{self.value_bytes}-{_short(self.records)}-{self.partition_count}"
        return f"{prefix}-{shape}{batch}"

    @property
    def touched_bytes(self) -> int:
        """Bytes of all keys and values."""
        return self.records * (KEY_BYTES + self.value_bytes)

    @property
    def title(self) -> str:
        """What is in it, in words."""
        codec = "uncompressed" if self.codec == "none" else self.codec
        return f"{self.records:,} records, {self.value_bytes:,}-byte values, {codec}"

    def values(self) -> Iterator[bytes]:
        """Yield the values that its records have in turn, each of `value_bytes`."""
        return _values(self.value_bytes)

    def rows(self) -> Iterator[tuple[bytes, bytes, int]]:
        """Yield key, value and partition of each record; the same ones every time."""
        values = list(islice(self.values(), self.records))
        for number in range(self.records):
            yield (
                b"%08d" % (number % (self.key_count or 100_000_000)),
                values[number % len(values)],
                number % self.partition_count,
            )


def _short(count: int) -> str:
    """Write a number in as few characters as it takes to tell it from others: 5M, 64K, 1234."""
    for unit, letter in ((1_000_000, "M"), (1024, "K"), (1000, "k")):
        if count and count % unit == 0:
            return f"{count // unit}{letter}"
    return str(count)


def _values(size: int) -> Iterator[bytes]:
    """Yield JSON objects cut or filled to `size` bytes, which compress like real events do."""
    rng = random.Random(size)
    for _ in range(_TEMPLATE_COUNT):
        event = {
            "id": rng.getrandbits(48),
            "user": f"user-{rng.randrange(10_000)}",
            "amount": round(rng.uniform(1, 1000), 2),
        }
        text = bytearray(json.dumps(event).encode())
        while len(text) < size:
            text += b" " + rng.choice(_WORDS).encode()
        yield bytes(text[:size])
