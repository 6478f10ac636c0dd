"""Every command that docs and help show is one that there is."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from aiokafka_lite.cli.main import LISTED, build_parser
from tests.docs.shown_commands import commands_in, understood
from tests.support.for_each import for_each

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "terminal.md").read_text(encoding="utf-8")
FIVE_MINUTES = (ROOT / "docs" / "five-minutes.md").read_text(encoding="utf-8")
SHARE_GROUPS = (ROOT / "docs" / "share-groups.md").read_text(encoding="utf-8")


def test_commands_of_the_pages_are_understood() -> None:
    blocks = [
        block
        for page in (FIVE_MINUTES, PAGE, SHARE_GROUPS)
        for block in re.findall(r"```console\n(.*?)```", page, re.S)
    ]
    lines = [line for block in blocks for line in commands_in(block)]
    assert len(lines) >= 8
    for line in lines:
        understood(line)


def test_commands_for_share_groups_are_understood() -> None:
    found = re.findall(r"`aiokafka-lite ([^`]+)`", SHARE_GROUPS)
    assert len(found) >= 5
    for command in found:
        understood(command)


def test_eight_answers_are_understood() -> None:
    rows = re.findall(r"^\|.*\| (`[a-z].*) \|$", PAGE.split("## Eight questions")[1], re.M)
    assert len(rows) == 8
    for row in rows:
        for answer in re.findall(r"`([a-z][^`]*)`", row):
            understood(answer)


@for_each(
    [
        *[[name] for name in LISTED],
        *[[name, action] for name, command in LISTED.items() for action in command.actions],
    ]
)
def test_examples_of_help_are_understood(words: Sequence[str]) -> None:
    parser = build_parser(*words)
    for word in words:
        actions = parser._actions
        (subparsers,) = [each for each in actions if isinstance(each, argparse._SubParsersAction)]
        parser = subparsers.choices[word]
    for line in commands_in(parser.epilog or ""):
        line = re.sub(r" {2,}\S.*$", "", line)  # what an example is of
        understood(re.sub(r'\)"$', "", line))
