"""Errors as commands show them."""

from __future__ import annotations

from aiokafka_lite.cli.problems import CommandError, plain_text
from aiokafka_lite.errors import KafkaConnectionError, KafkaTimeoutError, NotLeaderForPartitionError
from tests.support.for_each import for_each


@for_each(
    [
        (CommandError("a CommandError: b"), "a CommandError: b"),
        (KafkaConnectionError("no answer"), "no answer"),
        (
            KafkaTimeoutError("3 records, because of KafkaTimeoutError: no answer"),
            "3 records, because of KafkaTimeoutError: no answer",
        ),
        (NotLeaderForPartitionError("t-0"), "t-0"),
        (KafkaConnectionError(), "KafkaConnectionError"),
        (
            KafkaTimeoutError("not within delivery_timeout_ms=500.5. Set request_timeout_ms."),
            "not within --timeout. Set --timeout.",
        ),
    ]
)
def test_the_class_is_left_out_and_options_have_the_names_of_the_command_line(
    error: Exception, text: str
) -> None:
    assert plain_text(error) == text
