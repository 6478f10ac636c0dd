"""The table of commands. The module of a command is imported only to run it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, cast

from aiokafka_lite.cli.arguments import Subparsers


class Command(NamedTuple):
    """A command: its name, its summary, and the function that adds its parser.

    `actions` are following words with a parser of their own.
    """

    name: str
    summary: str
    module: str
    function: str = "add_parser"
    actions: Mapping[str, tuple[str, str]] = MappingProxyType({})

    def add_to(self, subparsers: Subparsers, next_word: str = "") -> None:
        name, function = self.actions.get(next_word, (self.module, self.function))
        module = importlib.import_module(f"aiokafka_lite.cli.{name}")
        cast("Callable[[Subparsers], None]", getattr(module, function))(subparsers)


_CHANGES: Final = dict.fromkeys(("create", "delete", "config"), ("topic_changes", "add_parsers"))


SECTIONS: Final[dict[str, Sequence[Command]]] = {
    "inspect a cluster": (
        Command(
            "topics",
            "list topics (or change topics: topics create, delete, config)",
            "topics",
            actions=_CHANGES,
        ),
        Command(
            "describe",
            "show partitions, offsets and settings of topics",
            "topics",
            "add_describe_parser",
        ),
        Command("cat", "print the records of a topic", "cat.command"),
        Command(
            "tail",
            "print the last records of a topic, then new records",
            "cat.command",
            "add_tail_parser",
        ),
        Command("groups", "list consumer groups", "groups.listing"),
        Command("lag", "show the lag of a consumer group per partition", "groups.lag"),
        Command("reset", "change the committed offsets of a consumer group", "groups.reset"),
        Command("produce", "produce records, one per line", "produce"),
        Command("replay", "write dead letters back to their original topics", "replay"),
    ),
    "for the shell": (Command("completion", "print a shell's completion script", "completion"),),
    "a broker for tests": (Command("broker", "run the embedded broker until Ctrl-C", "broker"),),
}
"""The commands by the heading under which help lists them."""

COMMANDS: Final = {each.name: each for section in SECTIONS.values() for each in section}


def listing() -> str:
    width = max(map(len, COMMANDS))
    lines: list[str] = []
    for heading, commands in SECTIONS.items():
        lines += ["", f"{heading}:"]
        lines += [f"  {each.name:<{width}}  {each.summary}" for each in commands]
    return "\n".join(lines[1:])
