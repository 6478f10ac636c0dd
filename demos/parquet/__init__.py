"""Kafka to Parquet, exactly once: the records, aggregates per window, and the unreadable records.

options, durations (the settings) → schemas (the columns of the values) → parsing (good rows, and
the reasons of bad ones) → windows, watermark (the aggregate) → tables, commits, storage (the files)
→ batches (one micro-batch, in repeatable steps) → running (the query).
"""

from __future__ import annotations

from demos.parquet.errors import PipelineError
from demos.parquet.metrics import BatchMetrics
from demos.parquet.options import PipelineOptions
from demos.parquet.running import Pipeline
from demos.parquet.tables import Tables, open_tables

__all__ = ["BatchMetrics", "Pipeline", "PipelineError", "PipelineOptions", "Tables", "open_tables"]
