"""The commands that a text shows, and what the command line makes of them."""

from __future__ import annotations

import argparse
import re
import shlex

import pytest

from aiokafka_lite.cli.main import build_parser


def understood(line: str) -> argparse.Namespace:
    """What the parser makes of a line, up to its pipe, file or comment."""
    words = shlex.split(line, comments=True)
    end = next((n for n, word in enumerate(words) if word in ("|", "<", ">")), len(words))
    words = words[:end]
    try:
        return build_parser(*words[:2]).parse_args(words)
    except SystemExit:
        pytest.fail(f"not understood: {line}")


def commands_in(text: str) -> list[str]:
    """Every `aiokafka-lite …` of a block of text."""
    return re.findall(r"\baiokafka-lite ([a-z]+ .*)$", text, re.M)
