"""The errors of the pipeline, in addition to those of Kafka and Spark."""

from __future__ import annotations

from aiokafka_lite.errors import KafkaError


class PipelineError(KafkaError):
    """The options and the existing tables do not fit. The message explains the fix."""


class StoppedBetweenBatches(Exception):
    """The pipeline stops, so a micro-batch did not start and wrote no files."""
