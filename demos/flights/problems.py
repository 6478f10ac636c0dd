"""The errors of the flights job, in addition to Kafka's."""

from __future__ import annotations

from aiokafka_lite.cli.problems import CommandError


class FlightsError(CommandError):
    pass


class DatasetError(FlightsError):
    """The data set has another format or size than this program expects."""


class ForeignTopicError(FlightsError):
    """The topic has records of other programs."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        super().__init__(
            f"topic {topic!r} is left unchanged because it has records that this command may not "
            f"have written ({reason}): choose another topic with --topic, or delete topic {topic!r}"
        )


class LoadError(FlightsError):
    """The data set could not be loaded."""


class StalledError(FlightsError):
    """No record was received for too long."""


class LostRecordError(FlightsError):
    """The consumer skipped an offset."""
