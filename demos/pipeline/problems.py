"""What can go wrong with the pipeline command, apart from Kafka's own errors."""

from __future__ import annotations

import re
from typing import Final

from aiokafka_lite.cli.problems import CommandError

_PYTHON_ERROR: Final = re.compile(r"^((?:[A-Za-z_]+\.)*[A-Za-z_]*(?:Error|Exception)): (.+)$")


class QueryError(CommandError):
    """The query failed. The message has Spark's innermost reason."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"the query failed: {innermost_reason(error)}")


def innermost_reason(error: BaseException) -> str:
    """Return the line of Spark's long message that has the reason.

    An error of our reader is a traceback in the message. Its last line is the error.
    """
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - Spark's own errors cannot always be shown
        text = str(getattr(error, "_desc", "")) or type(error).__name__
    found = [match for line in text.splitlines() if (match := _PYTHON_ERROR.match(line.strip()))]
    ours = [match for match in found if "aiokafka_lite" in match[1]]
    for match in (*reversed(ours), *reversed(found)):
        if not match[1].startswith(("pyspark.", "py4j.", "org.", "java.")):
            name = match[1].rpartition(".")[2]
            return match[2].removeprefix(f"{name}: ")
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)


class TablesElsewhereError(CommandError):
    """The flights' tables are not in a local directory, so they cannot be checked."""
