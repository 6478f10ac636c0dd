"""Kafka to Parquet, exactly once: records, delays per window, and what could not be read.

options, durations (what is wanted) → schemas (how values are read) → parsing (good rows, and why
others are bad) → windows, watermark (the aggregate) → tables, commits, storage (what is on disk)
→ batches (one micro-batch, in steps that can be repeated) → running (the query).
"""

from __future__ import annotations

from aiokafka_lite.spark.pipeline.errors import PipelineError
from aiokafka_lite.spark.pipeline.metrics import BatchMetrics
from aiokafka_lite.spark.pipeline.options import PipelineOptions
from aiokafka_lite.spark.pipeline.running import Pipeline
from aiokafka_lite.spark.pipeline.tables import Tables, open_tables

__all__ = ["BatchMetrics", "Pipeline", "PipelineError", "PipelineOptions", "Tables", "open_tables"]
