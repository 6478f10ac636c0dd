"""The errors of reading and planning for Spark, in addition to those of every client."""

from __future__ import annotations

import logging

from aiokafka_lite.errors import KafkaError, KafkaTimeoutError
from aiokafka_lite.structs import TopicPartition

log = logging.getLogger("aiokafka_lite.spark")


class DataLossError(KafkaError):
    """Offsets of a query do not exist any more.

    Raised if the option failOnDataLoss is true, its default. `tp` and `offset` are the partition
    and the first missing offset, if known.
    """


class ReadTimeoutError(KafkaTimeoutError):
    """A partition returned no records within kafkaConsumer.pollTimeoutMs."""


class DataLossPolicy:
    """Raises or warns about lost records, by the option failOnDataLoss."""

    def __init__(self, *, are_fatal: bool) -> None:
        self.are_fatal = are_fatal

    def report(
        self,
        loss: str,
        tp: TopicPartition | None = None,
        offset: int | None = None,
        next_offset: int | None = None,
    ) -> None:
        """Report records that may be lost. Returns only if reading continues without them."""
        if not self.are_fatal:
            log.warning(
                "records may be lost: %s. Reading continues, because failOnDataLoss is false", loss
            )
            return
        error = DataLossError(
            f"records may be lost: {loss}. Either retention deleted the records, or their topic "
            "was deleted or recreated. To continue, start the query at offsets that still exist, "
            "raise the topic's retention.ms, or set the option failOnDataLoss to false to skip "
            "lost records with a warning"
        )
        raise error if tp is None else error.at(tp, offset, next_offset)
