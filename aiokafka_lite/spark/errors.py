"""The errors of reading and planning for Spark, in addition to those of every client."""

from __future__ import annotations

from aiokafka_lite.errors import KafkaError, KafkaTimeoutError


class DataLossError(KafkaError):
    """Offsets of a query do not exist any more.

    Raised if the option failOnDataLoss is true, its default. `tp` and `offset` are the partition
    and the first missing offset, if known.
    """


class ReadTimeoutError(KafkaTimeoutError):
    """A partition returned no records within kafkaConsumer.pollTimeoutMs."""
