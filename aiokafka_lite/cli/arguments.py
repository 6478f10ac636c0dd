"""Declares the arguments of commands, and parses values that several commands use."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from enum import EnumMeta
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

DEFAULT_PORT = 9092

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Kind: TypeAlias = "Callable[[str], object] | tuple[str, ...]"


class Declaration(NamedTuple):
    """A command, declared by the text of its `--help`: a description, arguments and examples.

    Arguments follow the heading `arguments:` or that of their group. `kinds` has, by the name in
    the namespace, how to parse a value, or the choices, unless `_KINDS` has it for the metavar.
    """

    run: Callable[[argparse.Namespace], int]
    text: str
    kinds: Mapping[str, Kind] = MappingProxyType({})
    #: Whether it has the options of a connection.
    connects: bool = True

    def add_to(self, subparsers: Subparsers, name: str) -> argparse.ArgumentParser:
        description, *sections = re.split(r"\n\n(?=[\w ]+:\n)", self.text.strip("\n"))
        parser = subparsers.add_parser(
            name,
            help=re.split(r"(?<=\.)\s", description)[0],
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.set_defaults(run=self.run)
        kinds = dict(self.kinds)
        for section in sections:
            heading, _, entries = section.partition(":\n")
            if heading == "examples":
                parser.epilog = section
            else:
                is_plain = heading == "arguments"
                group = parser if is_plain else parser.add_argument_group(heading)
                add_arguments(group, entries, kinds)
        if kinds:
            raise TypeError(f"there are no arguments {', '.join(kinds)}")
        return parser


def add_arguments(
    container: argparse._ActionsContainer, text: str, kinds: dict[str, Kind] | None = None
) -> None:
    """Add arguments as `--help` shows them, each on a line, with its help after two spaces.

    `-k, --keys` is a flag, `--key REGEX` has a value, `--header NAME=REGEX ...` is repeatable, and
    `--watch [SECONDS=2]` has 2 without a value. `TOPIC` is positional, and so are `TOPIC ...` for
    one or more `topics`, and `[TOPIC ...]` for any number. The last name is that in the namespace.
    Indented lines continue the help, and "(default: =2)" in it is the default. A line after `| `
    excludes the one before, and after `|| ` one of them is required.
    """
    for alternatives in re.split(r"\n(?![ |])", text.strip("\n")):
        target, (first, *others) = container, re.split(r"\n\|+ ", alternatives)
        if others:
            target = container.add_mutually_exclusive_group(required="\n|| " in alternatives)
        for entry in (first, *others):
            _add_argument(target, entry, {} if kinds is None else kinds)


def _add_argument(
    container: argparse._ActionsContainer, entry: str, kinds: dict[str, Kind]
) -> None:
    head, help_text = re.split(r"\n? {2,}", entry, maxsplit=1)
    help_text = " ".join(help_text.split())
    is_optional = re.search(r"(^| )\[\w+( \.\.\.|=\w+)\]$", head) is not None
    words = (re.sub(r"[][]", "", head) if is_optional else head).replace(", ", " ").split()
    is_list = words[-1] == "..."
    flags = [word for word in words if word.startswith("-")]
    metavar = next((word for word in words if word[0] not in "-."), None)
    settings: dict[str, Any] = {"help": help_text.replace("(default: =", "(default: ")}
    if found := re.search(r"\(default: =(.*?)\)", help_text):
        settings["default"] = found[1]
    if is_optional and not is_list and metavar is not None:
        metavar, _, settings["const"] = metavar.partition("=")
        settings["nargs"] = "?"
    if flags:
        name = flags[-1].lstrip("-").replace("-", "_")
        settings["dest"] = name = "start" if name == "from" else name  # not Python's keyword
    elif metavar is not None:
        name = metavar.lower().rpartition(":")[2] + "s" * is_list
    kind = kinds.pop(name, _KINDS.get(metavar or ""))
    if isinstance(kind, (tuple, EnumMeta)):
        choices = tuple(kind)
        settings |= {"choices": choices, "type": partial(_choice, choices), "metavar": metavar}
    elif metavar is None:
        settings["action"] = "store_true"
    else:
        settings |= {"type": kind, "metavar": metavar}
    if is_list and flags:
        settings |= {"action": "append", "default": []}
    elif is_list:
        settings["nargs"] = "*" if is_optional else "+"
        if is_optional:
            container.set_defaults(later=name)
    container.add_argument(*(flags or [name]), **settings)


def _choice(choices: Sequence[str], text: str) -> str:
    """Return the choice of this name, in any case."""
    for each in choices:
        if each.lower() == text.lower():
            return each
    raise argparse.ArgumentTypeError(f"invalid choice: {text!r} (choose from {', '.join(choices)})")


NAMES_ONLY: Final = "-q, --names  print names alone"
AS_JSON: Final = "-j, --json  print one JSON object per line"
YES: Final = "-y, --yes  delete without confirmation"


def positive_int(text: str, limit: int | None = None) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    if limit is not None and number > limit:
        raise argparse.ArgumentTypeError(f"{text!r} is too large: the limit is {limit:,}")
    return number


positive_int16: Final = partial(positive_int, limit=2**15 - 1)
positive_int32: Final = partial(positive_int, limit=2**31 - 1)


def positive_seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number


def host_and_port(text: str) -> tuple[str, int]:
    """Parse `host:port`, `[ipv6]:port` or `host` (with Kafka's port 9092)."""
    address = text.strip()
    host, colon, port_text = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port_text = address, str(DEFAULT_PORT)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or "/" in host or not port_text.isdecimal() or int(port_text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not an address: write host:port")
    return host, int(port_text)


def name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        problem = f"{name!r} has no value" if name.strip() else "the name is missing"
        raise argparse.ArgumentTypeError(f"{problem}: write NAME=VALUE")
    return name.strip(), value


def partition_numbers(text: str) -> tuple[int, ...]:
    """Parse numbers of partitions: "3", "0,2" or "0,4-7"."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        ends = (first, last if dash else first)
        if not all(each.isdecimal() and each.isascii() and len(each) < 10 for each in ends):
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a list of partitions, such as 3 or 0,4-7"
            )
        low, high = map(int, ends)
        if high < low:
            raise argparse.ArgumentTypeError(
                f"{text!r} contains a range that ends before it begins: write {high}-{low}"
            )
        if high - low > 100_000:
            raise argparse.ArgumentTypeError(
                f"{text!r} contains a range that is too large: the limit is 100,000 partitions"
            )
        numbers += range(low, high + 1)
    return tuple(numbers)


_ESCAPES: Final = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "\\": "\\"}
_ESCAPE: Final = re.compile(r"\\([0nrt\\])")


def unescaped(text: str) -> bytes:
    r"""Return the bytes of a text in which \\0, \\n, \\r, \\t and \\\\ are escapes as in Python."""
    plain = _ESCAPE.sub(lambda found: _ESCAPES[found[1]], text)
    return plain.encode("utf-8", "surrogateescape")


_UNIT_MS: Final = {
    "ms": 1, "millisecond": 1,
    "s": 1000, "sec": 1000, "second": 1000,
    "m": 60_000, "min": 60_000, "minute": 60_000,
    "h": 3_600_000, "hour": 3_600_000,
    "d": 86_400_000, "day": 86_400_000,
    "w": 604_800_000, "week": 604_800_000,
}  # fmt: skip
_PART: Final = re.compile(r"\s*(\d+)\s*([a-z]+)", re.IGNORECASE)


def parse_duration_ms(text: str) -> int:
    """Return a duration in milliseconds, or raise ValueError: "10s", "1 hour", "1 day 12 hours"."""
    total, end = 0, 0
    while end < len(text.rstrip()):
        part = _PART.match(text, end)
        unit = part[2].lower() if part else ""
        unit_ms = _UNIT_MS.get(unit) or _UNIT_MS.get(unit.removesuffix("s"))
        if part is None or unit_ms is None:
            break
        total += int(part[1]) * unit_ms
        end = part.end()
    else:
        if end:
            return total
    raise ValueError(f"{text!r} is not a duration: write '30s', '1 hour' or '1 day 12 hours'")


_KINDS: Final[Mapping[str, Kind]] = {
    "DIR": Path,
    "FILE": Path,
    "FILE.jsonl": Path,
    "FILE.pem": Path,
    "N": positive_int,
    "N[,N-N…]": partition_numbers,
    "NAME=PATTERN": name_and_value,
    "NAME=REGEX": name_and_value,
    "NAME=VALUE": name_and_value,
    "SECONDS": positive_seconds,
}
"""The kinds of arguments by their metavars."""
