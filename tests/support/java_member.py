"""A member of a group that is Java's own client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess

from tests.support.java import JavaTools


class JavaMember:
    """Java's VerifiableConsumer, which prints what it has and what it is handed."""

    def __init__(
        self, tools: JavaTools, bootstrap_servers: str, topic: str, group: str, *settings: str
    ) -> None:
        self._command = tools.command(
            "org.apache.kafka.tools.VerifiableConsumer",
            "--bootstrap-server", bootstrap_servers, "--topic", topic,
            "--group-id", group, "--reset-policy", "earliest",
            "--enable-autocommit", "--verbose", *settings,
        )  # fmt: skip
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Future[None] | None = None
        self.owned: set[int] = set()
        # Partitions and offsets, in order.
        self.seen: list[tuple[int, int]] = []

    async def start(self) -> None:
        """Begin; it has nothing yet."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._task = asyncio.ensure_future(self._listen(self._process.stdout))

    async def _listen(self, lines: asyncio.StreamReader | None) -> None:
        assert lines is not None
        async for line in lines:
            with contextlib.suppress(ValueError):
                self._note(json.loads(line))

    def _note(self, said: dict[str, object]) -> None:
        name, partitions = said.get("name"), said.get("partitions")
        if name == "record_data":
            place = said["partition"], said["offset"]
            self.seen.append(place)  # type: ignore[arg-type]
        elif isinstance(partitions, list):
            numbers = {each["partition"] for each in partitions}
            if name == "partitions_assigned":
                self.owned |= numbers
            elif name == "partitions_revoked":
                self.owned -= numbers

    async def stop(self) -> None:
        """Leave the group; idempotent."""
        if self._process is None or self._task is None:
            return
        if self._process.returncode is None:
            self._process.terminate()
        await self._process.wait()
        await self._task
