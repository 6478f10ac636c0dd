"""What can go wrong with the flights job, apart from Kafka's own errors."""

from __future__ import annotations

from aiokafka_lite.cli.problems import CommandError


class FlightsError(CommandError):
    """Base of the job's own errors."""


class DatasetError(FlightsError):
    """The data set is not the one this program knows."""


class ForeignTopicError(FlightsError):
    """The topic holds records that this program may not have written."""

    def __init__(self, topic: str, reason: str) -> None:
        self.topic = topic
        super().__init__(
            f"topic {topic!r} is left unchanged because it has records that this command may not "
            f"have written ({reason}): choose another topic with --topic, or delete topic {topic!r}"
        )


class LoadError(FlightsError):
    """The topic could not be brought to hold exactly the data set."""


class StalledError(FlightsError):
    """No record came for too long."""


class LostRecordError(FlightsError):
    """The consumer skipped an offset: records were lost on the way."""
