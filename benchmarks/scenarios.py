"""The data that is read: one topic per scenario."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

PARTITION_COUNT: Final = 4
KEY_BYTES: Final = 8
BATCH_BYTES: Final = 128 * 1024

_WORDS: Final = (
    "amber", "basalt", "cedar", "delta", "ember", "fjord", "granite", "harbor", "island", "juniper",
    "kelp", "lagoon", "meadow", "north", "opal", "prairie", "quartz", "river", "summit", "tundra",
    "umber", "valley", "willow", "zephyr",
)  # fmt: skip
_TEMPLATE_COUNT: Final = 4096


@dataclass(frozen=True, slots=True)
class Scenario:
    """One topic: how many records, how big, and compressed by what."""

    name: str
    codec: str
    value_bytes: int
    records: int

    @property
    def topic(self) -> str:
        """The topic's name says all there is to know, so a topic of this name can be used again."""
        return f"aiokafka-lite-bench-{self.codec}-{self.value_bytes}-{self.records}"

    @property
    def touched_bytes(self) -> int:
        """Bytes of all keys and values."""
        return self.records * (KEY_BYTES + self.value_bytes)

    @property
    def title(self) -> str:
        codec = "uncompressed" if self.codec == "none" else self.codec
        return f"{self.records:,} records, {self.value_bytes:,}-byte values, {codec}"

    def rows(self) -> Iterator[tuple[bytes, bytes, int]]:
        """Yield key, value and partition of each record; the same ones every time."""
        values = list(_values(self.value_bytes))
        for number in range(self.records):
            yield (
                b"%08d" % (number % 100_000_000),
                values[number % len(values)],
                number % PARTITION_COUNT,
            )


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


def scenarios(records: int) -> tuple[Scenario, ...]:
    """Return all scenarios; ones with big values have fewer records, so that all take alike."""
    return (
        Scenario("plain", "none", 100, records),
        Scenario("lz4", "lz4", 100, records),
        Scenario("zstd", "zstd", 100, records),
        Scenario("big", "none", 1000, records // 4),
    )
