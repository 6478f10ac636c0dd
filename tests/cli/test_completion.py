"""What a shell is told when somebody presses Tab."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.cli.running import Running
from tests.support.cluster import KafkaHandle, unique
from tests.support.programs import started

needs_argcomplete = pytest.mark.skipif(
    importlib.util.find_spec("argcomplete") is None, reason="argcomplete is not installed"
)

Complete = Callable[[str], Awaitable[list[str]]]


@pytest.fixture
def complete(tmp_path: Path) -> Complete:
    """What may come next in a line, as argcomplete's shell functions ask for it."""
    answer = tmp_path / "answer"

    async def ask(line: str) -> list[str]:
        environment = {
            **os.environ,
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_IFS": "\n",
            "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
        }
        async with started(sys.executable, "-m", "aiokafka_lite", env=environment) as process:
            assert await process.wait() == 0
        return [each.strip() for each in answer.read_text().split("\n")]

    return ask


@needs_argcomplete
async def test_commands_options_and_choices_are_completed(complete: Complete) -> None:
    assert set(await complete("aiokafka-lite t")) == {"tail", "topics"}
    assert set(await complete("aiokafka-lite cat t --fo")) == {"--follow", "--format"}
    assert set(await complete("aiokafka-lite cat t --format ")) == {"text", "json", "hex", "raw"}


@needs_argcomplete
@pytest.mark.real_if_long
async def test_topics_of_the_cluster_are_completed(kafka: KafkaHandle, complete: Complete) -> None:
    topic = await kafka.create_topic(unique("orders"))
    line = f"aiokafka-lite tail --bootstrap {kafka.bootstrap_servers} {topic[:-1]}"
    assert topic in await complete(line)
    line = f"aiokafka-lite topics delete --bootstrap {kafka.bootstrap_servers} {topic[:-1]}"
    assert topic in await complete(line)


@needs_argcomplete
async def test_no_cluster_completes_nothing_and_says_nothing(complete: Complete) -> None:
    assert await complete("aiokafka-lite tail --bootstrap 127.0.0.1:1 or") == [""]


@needs_argcomplete
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "tcsh", "powershell"])
async def test_script_of_each_shell_is_printed(shell: str, cli: Running) -> None:
    ended = await cli("completion", shell)
    assert (ended.code, ended.errors) == (0, "")
    assert b"aiokafka-lite" in ended.out


async def test_missing_extra_is_named(cli: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "argcomplete.shell_integration", None)
    ended = await cli("completion", "bash")
    assert ended.code == 1
    assert "pip install 'aiokafka-lite[cli]'" in ended.errors
