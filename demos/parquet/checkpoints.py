"""Reads Spark's checkpoint of the query: the offsets of each batch, checked by the commits."""

from __future__ import annotations

import json
from typing import Final

from aiokafka_lite.client.offsets import Offsets
from aiokafka_lite.spark.ranges import from_spark
from demos.parquet.commits import Commit
from demos.parquet.errors import PipelineError
from demos.parquet.storage import Storage

DIRECTORY: Final = "_pipeline/checkpoint"


class Checkpoint:
    """Spark's checkpoint of the query, which only Spark writes."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.path: Final = storage.path(DIRECTORY)

    def offsets(self, batch: int) -> Offsets:
        """Return each partition's next offset after a batch."""
        lines = self._storage.read(f"{DIRECTORY}/offsets/{batch}").splitlines()
        return from_spark(json.loads(lines[-1]))  # the query has one source, and this is its line

    def require(self, last: Commit | None) -> None:
        """Check that the checkpoint continues at the end of the tables.

        Raises:
            PipelineError: Records would be missing or duplicated.
        """
        begun = [
            int(name) for name in self._storage.names(f"{DIRECTORY}/offsets") if name.isdigit()
        ]
        committed = -1 if last is None else last.batch
        fits = max(begun, default=-1) in (committed, committed + 1)
        if fits and last is not None:
            fits = committed in begun and self.offsets(committed) == last.offsets
        if not fits:
            raise PipelineError(
                f"the checkpoint {self.path} does not match the last batch that was written to the "
                f"tables ({committed}). The checkpoint was deleted, or belongs to other tables. "
                "Restore the checkpoint, or write to another directory"
            )
