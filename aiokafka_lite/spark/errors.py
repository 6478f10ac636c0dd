"""What reading and planning for Spark can fail of, beyond what every client can."""

from __future__ import annotations

from aiokafka_lite.errors import KafkaError, KafkaTimeoutError


class DataLossError(KafkaError):
    """Offsets that a query was to read are not there any more.

    Raised where the option failOnDataLoss is true, its default. `tp` and `offset` name the
    partition and the first offset that is missing, as far as there is one.
    """


class ReadTimeoutError(KafkaTimeoutError):
    """A partition brought nothing for as long as kafkaConsumer.pollTimeoutMs allows."""
