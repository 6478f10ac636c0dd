"""The committed batches: one small file each, written at the end of a batch.

Files with a higher batch id than the last commit are leftovers, which readers ignore and the next
run deletes. Spark's checkpoint may be one batch behind: a committed batch is not repeated.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final

from aiokafka_lite.client.offsets import Offsets
from aiokafka_lite.spark.ranges import from_spark, to_spark
from demos.parquet.metrics import BatchMetrics
from demos.parquet.storage import Storage
from demos.parquet.watermark import Watermark

DIRECTORY: Final = "_pipeline/commits"
RETAINED: Final = 100
"""As many as Spark keeps batches in its checkpoint."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A committed batch: its id from Spark, each partition's next offset, and the watermark."""

    batch: int
    offsets: Offsets
    watermark: Watermark = field(default_factory=Watermark)
    metrics: BatchMetrics | None = None

    def to_json(self) -> str:
        return json.dumps(
            {
                "version": 1,
                "batch": self.batch,
                "offsets": to_spark(self.offsets),
                "watermark_ms": self.watermark.time_ms,
                "latest_event_ms": to_spark(self.watermark.latest_ms),
                "metrics": self.metrics and self.metrics.to_dict(),
            },
            indent=1,
        )

    @classmethod
    def from_json(cls, text: str) -> Commit:
        fields = json.loads(text)
        return cls(
            batch=fields["batch"],
            offsets=from_spark(fields["offsets"]),
            watermark=Watermark(fields["watermark_ms"], from_spark(fields["latest_event_ms"])),
            metrics=fields["metrics"] and BatchMetrics(**fields["metrics"]),
        )


class CommitLog:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def batches(self) -> list[int]:
        """Return the ids of the kept commits, in order."""
        names = self._storage.names(DIRECTORY)
        return sorted(int(name[:-5]) for name in names if name.endswith(".json"))

    def last(self) -> Commit | None:
        batches = self.batches()
        return self.read(batches[-1]) if batches else None

    def read(self, batch: int) -> Commit:
        return Commit.from_json(self._storage.read(f"{DIRECTORY}/{batch}.json"))

    def append(self, commit: Commit) -> None:
        """Commit a batch.

        Raises:
            PipelineError: It is already committed: two pipelines write to one directory.
        """
        self._storage.write(f"{DIRECTORY}/{commit.batch}.json", commit.to_json())
        if commit.batch >= RETAINED:
            outdated = f"{DIRECTORY}/{commit.batch - RETAINED}.json"
            self._storage.delete(self._storage.path(outdated))
