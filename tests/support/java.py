"""Kafka's own command-line tools, run from its jars."""

from __future__ import annotations

import asyncio
import subprocess
from dataclasses import dataclass

from tests.support.real_kafka import java_command, kafka_libs

TOOL_JVM_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


@dataclass(frozen=True)
class ToolResult:
    """How a tool ended."""

    returncode: int
    stdout: str
    stderr: str


class JavaTools:
    """Runs a main class of Kafka's jars.

    Raises:
        KafkaUnavailableError: There is no Java, or the jars cannot be had.
    """

    def __init__(self) -> None:
        self._java = java_command()
        self.libs = kafka_libs()

    def command(self, main_class: str, *arguments: str) -> list[str]:
        """The command line that runs a tool."""
        return [self._java, *TOOL_JVM_OPTIONS, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                "-cp", f"{self.libs}/*", main_class, *arguments]  # fmt: skip

    async def run(
        self, main_class: str, *arguments: str, stdin: bytes = b"", timeout_s: float = 60
    ) -> ToolResult:
        """Run a tool to its end without holding the loop.

        Raises:
            TimeoutError: It did not end in time, and was killed.
        """
        process = await asyncio.create_subprocess_exec(
            *self.command(main_class, *arguments),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            stdout, stderr = await asyncio.wait_for(process.communicate(stdin), timeout_s)
        except BaseException:
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise
        assert process.returncode is not None
        return ToolResult(process.returncode, stdout.decode(), stderr.decode())
