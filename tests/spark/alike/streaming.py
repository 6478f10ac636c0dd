"""Runs streaming queries into Parquet, and says what they read and what their checkpoints hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from aiokafka_lite.spark.ranges import SparkOffsets
from tests.spark.alike.comparing import FAILURES, Row, Source

QUERY_TIMEOUT_S = 100


@dataclass
class Stream:
    """A table that a streaming query writes, and the query's checkpoint.

    Args:
        spark: The session.
        folder: Where both are.
        options: Of the source, whichever it is.
    """

    spark: SparkSession
    folder: Path
    options: Mapping[str, str] = field(repr=False)

    @property
    def table(self) -> Path:
        """Where the sink writes."""
        return self.folder / "table"

    @property
    def checkpoint(self) -> Path:
        """Where the query keeps its state."""
        return self.folder / "checkpoint"

    def start(self, source: Source, *, is_continuous: bool = False) -> StreamingQuery:
        """Begin or go on, with what is there now or with all that comes."""
        frame = self.spark.readStream.format(source).options(**self.options).load()
        writer = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(self.checkpoint))
            .option("path", str(self.table))
        )
        if not is_continuous:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    def read_available(self, source: Source) -> str | None:
        """Read what is there now; returns the error that the query ended by, or None."""
        query = self.start(source)
        try:
            assert query.awaitTermination(QUERY_TIMEOUT_S), "the query does not end"
        except StreamingQueryException as error:
            return str(error)
        finally:
            query.stop()
        return None

    def failure(self, source: Source) -> str | None:
        """Return why a query cannot begin or go on, or None if it can."""
        try:
            return self.read_available(source)
        except FAILURES as error:
            return str(error)

    def frame(self) -> DataFrame:
        """Return what the sink's own log says is in the table."""
        return self.spark.read.parquet(str(self.table))

    def rows(self) -> dict[tuple[str, int], list[Row]]:
        """Return the table's rows of each topic and partition, by offset."""
        rows: dict[tuple[str, int], list[Row]] = {}
        if self.table.exists():
            for row in self.frame().orderBy("topic", "partition", "offset").collect():
                rows.setdefault((row["topic"], row["partition"]), []).append(tuple(row))
        return rows

    def planned(self) -> dict[int, SparkOffsets]:
        """Return the ends of each batch that the checkpoint logged.

        The order of topics means nothing: in the connector's it is that of a hash table of Scala's.
        """
        return {batch: json.loads(text) for batch, text in self.logged("offsets").items()}

    def committed(self) -> list[int]:
        """Return the batches that are done."""
        return sorted(self.logged("commits"))

    def logged(self, log: str) -> dict[int, str]:
        """Return the last line of each file of one of the checkpoint's logs, by batch, in order."""
        # The directory has an order of its own.
        files = (self.checkpoint / log).glob("[0-9]*")
        return {
            int(file.name): file.read_text().splitlines()[-1]
            for file in sorted(files, key=lambda file: int(file.name))
        }
