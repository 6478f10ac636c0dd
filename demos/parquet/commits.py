"""Which batches are in the tables: one small file each, the last thing that a batch writes.

Whatever carries a higher batch id than the last commit is a leftover: readers do not look at it,
and the next run deletes it. Spark's own checkpoint says what is to be read next, and may be one
batch behind: a batch that is committed here is not done again.
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
    """A batch that is in the tables.

    Attributes:
        batch: Its id, counted by Spark from 0.
        offsets: Each partition's next offset.
        watermark: As the next batch meets it.
        metrics: What it did.
    """

    batch: int
    offsets: Offsets
    watermark: Watermark = field(default_factory=Watermark)
    metrics: BatchMetrics | None = None

    def to_json(self) -> str:
        """Write the commit as one JSON object."""
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
        """Read what `to_json` wrote."""
        fields = json.loads(text)
        return cls(
            batch=fields["batch"],
            offsets=from_spark(fields["offsets"]),
            watermark=Watermark(fields["watermark_ms"], from_spark(fields["latest_event_ms"])),
            metrics=fields["metrics"] and BatchMetrics(**fields["metrics"]),
        )


class CommitLog:
    """The commits of a pipeline's tables."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def batches(self) -> list[int]:
        """Return the ids of the batches whose commits are kept, in order."""
        names = self._storage.names(DIRECTORY)
        return sorted(int(name[:-5]) for name in names if name.endswith(".json"))

    def last(self) -> Commit | None:
        """Return the latest commit; None before the first."""
        batches = self.batches()
        return self.read(batches[-1]) if batches else None

    def read(self, batch: int) -> Commit:
        """Return one batch's commit."""
        return Commit.from_json(self._storage.read(f"{DIRECTORY}/{batch}.json"))

    def append(self, commit: Commit) -> None:
        """Make a batch part of the tables.

        Raises:
            PipelineError: It is already: two pipelines write to one directory.
        """
        self._storage.write(f"{DIRECTORY}/{commit.batch}.json", commit.to_json())
        if commit.batch >= RETAINED:
            outdated = f"{DIRECTORY}/{commit.batch - RETAINED}.json"
            self._storage.delete(self._storage.path(outdated))
