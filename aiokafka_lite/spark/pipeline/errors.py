"""What the pipeline can fail of, beyond Kafka and Spark."""

from __future__ import annotations

from aiokafka_lite.errors import KafkaError


class PipelineError(KafkaError):
    """The tables cannot be written as they are asked for; the message says what to do."""


class StoppedBetweenBatches(Exception):
    """A micro-batch was not begun, as the pipeline is stopping; nothing of it was written."""
