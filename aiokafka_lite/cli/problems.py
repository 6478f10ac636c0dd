"""Errors that a command shows to its user as one line, without a traceback."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from typing import Final

from aiokafka_lite.errors import KafkaError, OffsetOutOfRangeError


class CommandError(Exception):
    """A command failed. The message has the reason and the remedy."""


class UsageError(CommandError):
    """The arguments of a command are wrong: exit code 2."""


def raise_if_any(problems: Sequence[str]) -> None:
    if problems:
        raise CommandError("; ".join(problems))


class LineProblem(Exception):
    """A line of the input is no record."""


class MissingExtraError(CommandError):
    """A package of one of the project's extras is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        self.package = package
        self.extra = extra
        super().__init__(
            f"{package} is not installed, but this command needs it: pip install "
            f"'aiokafka-lite[{extra}]'"
        )


class Interrupted(Exception):
    """The user or the system ended the program by a signal."""

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number
        super().__init__(f"ended by {signal.Signals(signal_number).name}")

    @property
    def exit_code(self) -> int:
        return 128 + self.signal_number


# Advice in errors for programs, and for Spark, whose options have a prefix, and that for commands.
_OPTIONS: Final = (
    (r"call create_ssl_context\(cafile=\.\.\.\) with", "set --ca-file to"),
    (r"certfile= and keyfile= to create_ssl_context\(\)", "--cert-file and --key-file"),
    (r"certfile= of create_ssl_context\(\)", "--cert-file"),
    (r"\bsecurity_protocol\b", "--security-protocol"),
    (r"\b(delivery|request)_timeout_ms(=[0-9]+(\.[0-9]+)?)?", "--timeout"),
    (r"\boption(s?) kafka\.", r"setting\1 "),
    (r"\bkafka\.(?=(?:ssl|sasl|security|bootstrap)\.)", ""),
    (r"\. The file must exist at this path on the driver and .*$", ""),
    (r"\bset allowPlaintextCredentials=true", "give --allow-plaintext-credentials"),
)


def plain_text(error: BaseException) -> str:
    """Return the text of an error, without the class and the code."""
    if isinstance(error, OffsetOutOfRangeError) and error.tp is not None:
        tp, offset = error.tp, error.offset
        return (
            f"offset {offset} of partition {tp.partition} of topic {tp.topic} was deleted during "
            "the command, for example because of retention.ms: run the command again"
        )
    text = str(error)
    if isinstance(error, KafkaError):
        text = re.sub(rf"^(\[Error -?[0-9]+\] )?{type(error).__name__}: ", "", text)
    for of_programs, option in _OPTIONS:
        text = re.sub(of_programs, option, text)
    return text
