"""Who takes part: one module per client, imported only in the process that runs it."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to read records with one client.

    Attributes:
        name: Short and unique; what `--only` and the goals name.
        client: The client's name, for the plot's colours.
        function: `module:function` below this package.
        loop: The event loop it runs on; None for a client without one.
        requires: A package, or a program, without which it cannot run.
    """

    name: str
    client: str
    function: str
    loop: str | None = None
    requires: str | None = None

    def missing(self) -> str | None:
        """Say what has to be installed before it can run, or None."""
        if self.loop == "uvloop" and importlib.util.find_spec("uvloop") is None:
            return "uvloop is not installed: pip install uvloop"
        if self.requires == "java":
            return None if shutil.which("java") else "java is not installed"
        if self.requires is not None and importlib.util.find_spec(self.requires) is None:
            return f"{self.requires} is not installed: pip install 'aiokafka-lite[dev]'"
        return None


OUR_POLL: Final = "lite poll"
OURS: Final = "aiokafka_lite"
AIOKAFKA: Final = "aiokafka"
CONFLUENT: Final = "confluent-kafka"
JAVA: Final = "Java"

CONTESTANTS: Final = (
    Contestant(OUR_POLL, OURS, "ours:poll", "asyncio"),
    Contestant("lite poll, uvloop", OURS, "ours:poll", "uvloop"),
    Contestant("lite getmany", OURS, "ours:getmany", "asyncio"),
    Contestant("lite getmany, uvloop", OURS, "ours:getmany", "uvloop"),
    Contestant("lite async for", OURS, "ours:async_for", "asyncio"),
    Contestant("lite async for, uvloop", OURS, "ours:async_for", "uvloop"),
    Contestant("aiokafka getmany", AIOKAFKA, "aiokafka_peer:getmany", "asyncio", "aiokafka"),
    Contestant("aiokafka getmany, uvloop", AIOKAFKA, "aiokafka_peer:getmany", "uvloop", "aiokafka"),
    Contestant("aiokafka async for", AIOKAFKA, "aiokafka_peer:async_for", "asyncio", "aiokafka"),
    Contestant(
        "aiokafka async for, uvloop", AIOKAFKA, "aiokafka_peer:async_for", "uvloop", "aiokafka"
    ),
    Contestant("confluent consume", CONFLUENT, "confluent:consume", None, "confluent_kafka"),
    Contestant(
        "confluent consume, least CPU",
        CONFLUENT,
        "confluent:consume_least_cpu",
        None,
        "confluent_kafka",
    ),
    Contestant(
        "confluent consume, least wall",
        CONFLUENT,
        "confluent:consume_least_wall",
        None,
        "confluent_kafka",
    ),
    Contestant("Java ConsumerPerformance", JAVA, "java:consumer_performance", None, "java"),
)
