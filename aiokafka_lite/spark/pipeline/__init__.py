"""Kafka to Parquet, exactly once: the records, aggregates per window, and the unreadable records.

options, durations (the settings) → schemas (the columns of the values) → parsing (good rows, and
the reasons of bad ones) → windows, watermark (the aggregate) → tables, commits, storage (the files)
→ batches (one micro-batch, in repeatable steps) → running (the query).
"""

from __future__ import annotations

from aiokafka_lite.spark.pipeline.errors import PipelineError
from aiokafka_lite.spark.pipeline.metrics import BatchMetrics
from aiokafka_lite.spark.pipeline.options import PipelineOptions
from aiokafka_lite.spark.pipeline.running import Pipeline
from aiokafka_lite.spark.pipeline.tables import Tables, open_tables

__all__ = ["BatchMetrics", "Pipeline", "PipelineError", "PipelineOptions", "Tables", "open_tables"]
