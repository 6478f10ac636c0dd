"""Who takes part: one module per client, imported only in the process that runs it."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass, replace
from typing import Final

from benchmarks.servers import DIRECTORY, KAFKA, MEMORY, Server


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to do a task with one client.

    Attributes:
        name: Short, and unique in its scenario; what `--only` and the goals name.
        client: The client's name, for the plot's colours.
        subject: What the task is told: for tasks that read, `module:function` below this package.
        loop: A module whose `new_event_loop` it runs on.
        requires: A package, or a program, without which it cannot run.
        task: Runs instead of the scenario's task, for a client that Python cannot call.
        server: What it is served by.
    """

    name: str
    client: str
    subject: str
    loop: str = "asyncio"
    requires: str | None = None
    task: str | None = None
    server: Server = KAFKA

    def missing(self) -> str | None:
        """Say what has to be installed before it can run, or None."""
        if self.loop == "uvloop" and importlib.util.find_spec("uvloop") is None:
            return "uvloop is not installed: pip install uvloop"
        if self.requires == "java":
            return None if shutil.which("java") else "java is not installed"
        if self.requires is not None and importlib.util.find_spec(self.requires) is None:
            if self.requires.startswith(OURS):
                return f"this checkout has no {self.requires}"
            return f"{self.requires} is not installed: pip install 'aiokafka-lite[dev]'"
        return None

    def on_uvloop(self) -> Contestant:
        """Return the same on uvloop."""
        return replace(self, name=f"{self.name}, uvloop", loop="uvloop")

    def on(self, server: Server) -> Contestant:
        """Return the same, served by another server."""
        return replace(self, name=f"{self.name}, {server.name}", server=server)


OURS: Final = "aiokafka_lite"
AIOKAFKA: Final = "aiokafka"
CONFLUENT: Final = "confluent-kafka"
JAVA: Final = "Java"
SPARK: Final = "Spark"
FASTSTREAM: Final = "FastStream"
BARE: Final = "Python"


def _ours(name: str, function: str) -> Contestant:
    return Contestant(f"lite {name}", OURS, f"ours:{function}")


def _aiokafka(name: str, function: str) -> Contestant:
    return Contestant(f"aiokafka {name}", AIOKAFKA, f"aiokafka_peer:{function}", requires=AIOKAFKA)


def _confluent(name: str, function: str) -> Contestant:
    subject = f"confluent:{function}"
    return Contestant(f"confluent {name}", CONFLUENT, subject, requires="confluent_kafka")


FLOOR: Final = Contestant("floor", BARE, "floor:floor")
"""Where it takes part, figures of the others are shown "beyond the floor" too."""
LITE_POLL: Final = _ours("poll", "poll")
LITE_GETMANY: Final = _ours("getmany", "getmany")
LITE_ASYNC_FOR: Final = _ours("async for", "async_for")
LITE_BATCHES: Final = replace(_ours("batches", "batches"), requires="pyarrow")
AIOKAFKA_GETMANY: Final = _aiokafka("getmany", "getmany")
AIOKAFKA_ASYNC_FOR: Final = _aiokafka("async for", "async_for")
CONFLUENT_CONSUME: Final = _confluent("consume", "consume")
CONFLUENT_LEAST_CPU: Final = _confluent("consume, least CPU", "consume_least_cpu")
CONFLUENT_LEAST_WALL: Final = _confluent("consume, least wall", "consume_least_wall")
CONFLUENT_POLL: Final = _confluent("poll", "poll")
CONFLUENT_AIO: Final = _confluent("AIOConsumer", "aio")
IMPORT_LITE: Final = Contestant("import aiokafka_lite.consumer", OURS, "aiokafka_lite.consumer")
IMPORT_AIOKAFKA: Final = Contestant("import aiokafka", AIOKAFKA, "aiokafka", requires=AIOKAFKA)
IMPORT_CONFLUENT: Final = Contestant(
    "import confluent_kafka", CONFLUENT, "confluent_kafka", requires="confluent_kafka"
)
START_LITE: Final = Contestant("lite", OURS, "lite")
START_AIOKAFKA: Final = Contestant("aiokafka", AIOKAFKA, "aiokafka", requires=AIOKAFKA)
START_CONFLUENT: Final = Contestant("confluent", CONFLUENT, "confluent", requires="confluent_kafka")
# The module `moves` knows them by the same names.
MOVE_LITE: Final = START_LITE
MOVE_AIOKAFKA: Final = START_AIOKAFKA
MOVE_CONFLUENT: Final = START_CONFLUENT


def _member(name: str, client: str, protocol: str, requires: str | None = None) -> Contestant:
    subject = f"{'ours' if client == OURS else name}:{protocol}"
    return Contestant(f"{name} {protocol}", client, subject, requires=requires)


MEMBER_LITE_RANGE: Final = _member("lite", OURS, "range")
MEMBER_LITE_STICKY: Final = _member("lite", OURS, "cooperative-sticky")
MEMBER_LITE_CONSUMER: Final = _member("lite", OURS, "consumer")
MEMBER_AIOKAFKA: Final = _member("aiokafka", AIOKAFKA, "range", AIOKAFKA)
MEMBERS_CONFLUENT: Final = tuple(
    _member("confluent", CONFLUENT, protocol, "confluent_kafka")
    for protocol in ("range", "cooperative-sticky", "consumer")
)
# The module `producers` knows them by their subjects.
PRODUCE_LITE: Final = Contestant("lite send", OURS, "lite", requires="aiokafka_lite.producing")
PRODUCE_AIOKAFKA: Final = Contestant("aiokafka send", AIOKAFKA, "aiokafka", requires=AIOKAFKA)
PRODUCE_CONFLUENT: Final = Contestant(
    "confluent produce", CONFLUENT, "confluent", requires="confluent_kafka"
)
# The module `handlers` knows them by their subjects.
HANDLING_LITE: Final = Contestant("lite run", OURS, "run")
HANDLING_AIOKAFKA: Final = Contestant(
    "aiokafka + Semaphore", AIOKAFKA, "semaphore", requires=AIOKAFKA
)
HANDLING_FASTSTREAM: Final = Contestant(
    "FastStream workers", FASTSTREAM, "faststream", requires="faststream"
)
# The module `sharing` knows them by their subjects.
SHARE_LITE: Final = Contestant(
    "lite share", OURS, "lite", requires="aiokafka_lite.consumer.sharing"
)
SHARE_CONFLUENT: Final = Contestant(
    "confluent ShareConsumer", CONFLUENT, "confluent", requires="confluent_kafka"
)
SHARE_JAVA: Final = Contestant("Java KafkaShareConsumer", JAVA, "java", requires="java")
JAVA_PERFORMANCE: Final = Contestant(
    "Java ConsumerPerformance", JAVA, "ConsumerPerformance", requires="java", task="java"
)
# Those of which the broker is measured.
JAVA_CONSUMER: Final = Contestant(
    "Java consumer", JAVA, "ConsumerPerformance", requires="java", task="java_tools"
)
JAVA_PRODUCER: Final = Contestant(
    "Java producer", JAVA, "ProducerPerformance", requires="java", task="java_tools"
)
CONFLUENT_CONSUMER: Final = Contestant(
    "confluent consumer",
    CONFLUENT,
    "confluent:consume_without_pauses",
    requires="confluent_kafka",
    task="served_bulk",
)
CONFLUENT_PRODUCER: Final = Contestant(
    "confluent producer", CONFLUENT, "produce", requires="confluent_kafka", task="confluent_produce"
)
RAW_DRAIN: Final = Contestant("raw client", OURS, "drain")
FOOTPRINT_MEMORY: Final = Contestant("embedded broker, memory", OURS, MEMORY.name)
FOOTPRINT_DIRECTORY: Final = Contestant("embedded broker, directory", OURS, DIRECTORY.name)
