"""Kafka's command-line tools, one after the other in one JVM: one for each takes too long."""

from __future__ import annotations

import base64
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Final

from aiokafka_lite._compat import Self
from tests.support.java import TOOL_JVM_OPTIONS, ToolResult
from tests.support.real_kafka import KafkaUnavailableError, java_command, kafka_libs

SOURCE: Final = Path(__file__).parent / "java" / "ToolRunner.java"
COMMAND_TIME_S: Final = 60.0

TOOLS: Final = "org.apache.kafka.tools"
CLASSES: Final = {
    "api-versions": f"{TOOLS}.BrokerApiVersionsCommand",
    "cluster": f"{TOOLS}.ClusterTool",
    "configs": "kafka.admin.ConfigCommand",
    "console-consumer": f"{TOOLS}.consumer.ConsoleConsumer",
    "console-producer": f"{TOOLS}.ConsoleProducer",
    "console-share-consumer": f"{TOOLS}.consumer.ConsoleShareConsumer",
    "consumer-groups": f"{TOOLS}.consumer.group.ConsumerGroupCommand",
    "consumer-perf": f"{TOOLS}.ConsumerPerformance",
    "delete-records": f"{TOOLS}.DeleteRecordsCommand",
    "get-offsets": f"{TOOLS}.GetOffsetShell",
    "groups": f"{TOOLS}.GroupsCommand",
    "producer-perf": f"{TOOLS}.ProducerPerformance",
    "share-groups": f"{TOOLS}.consumer.group.ShareGroupCommand",
    "topics": f"{TOOLS}.TopicCommand",
    "transactional-message-copier": f"{TOOLS}.TransactionalMessageCopier",
    "transactions": f"{TOOLS}.TransactionsCommand",
    "verifiable-consumer": f"{TOOLS}.VerifiableConsumer",
    "verifiable-producer": f"{TOOLS}.VerifiableProducer",
}
"""Main classes by the names of the scripts that run them."""


class JavaRunner:
    """One JVM for many commands, which run one after the other. Close it, or use it in a `with`.

    Raises:
        KafkaUnavailableError: There is no JDK, or the jars cannot be had.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [java_command(), *TOOL_JVM_OPTIONS, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
             "-cp", f"{kafka_libs()}/*", str(SOURCE)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, tool: str, *arguments: str, stdin: bytes = b"") -> ToolResult:
        """Run a tool, named by its script without "kafka-", and return what it printed.

        Raises:
            KafkaUnavailableError: The JVM ended, or the tool did not in `COMMAND_TIME_S`, whereupon
                the JVM was killed.
        """
        words = [base64.b64encode(stdin).decode(), CLASSES[tool], *arguments]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(COMMAND_TIME_S, self._process.kill)
        watchdog.start()
        try:
            self._process.stdin.write("\t".join(words).encode() + b"\n")
            self._process.stdin.flush()
            head = self._process.stdout.readline()
            if not head:
                raise KafkaUnavailableError(f"the JVM ended: {self._last_words()}")
            code, printed, complained = map(int, head.split())
            stdout = self._process.stdout.read(printed).decode()
            return ToolResult(code, stdout, self._process.stdout.read(complained).decode())
        except BrokenPipeError:
            raise KafkaUnavailableError(f"the JVM ended: {self._last_words()}") from None
        finally:
            watchdog.cancel()

    def _last_words(self) -> str:
        assert self._process.stderr is not None
        return self._process.stderr.read().decode()[-500:]

    def close(self) -> None:
        """End the JVM."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
