"""The output of commands: tables, lines for pipes, JSON objects, progress."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from aiokafka_lite.cli.problems import CommandError, UsageError, raise_if_any

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

Row: TypeAlias = Mapping[str, object]

NOTHING: Final = "-"
# In a terminal, names are wrapped to no less than this.
LEAST_NAME_WIDTH: Final = 16
BETWEEN_COLUMNS: Final = 3
# The steps in which progress is shown.
MOST_ADVANCES: Final = 200
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class Column(NamedTuple):
    """A column: the name of its values in a row, its heading, and the text of a value."""

    name: str
    heading: str
    is_number: bool
    show: Callable[[object], str]


def columns(text: str, **show: Callable[[object], str]) -> tuple[Column, ...]:
    """Return columns that are declared as `name`, or as `name: heading`. `#` is before numbers."""
    found = []
    for each in text.split(", "):
        name, _, heading = each.removeprefix("#").partition(": ")
        heading = heading or name.replace("_", " ")
        found.append(Column(name, heading, each.startswith("#"), show.get(name, str)))
    return tuple(found)


def print_rows(rows: Sequence[Row], columns: Sequence[Column], *, as_json: bool = False) -> None:
    """A table without rows is not printed."""
    if as_json:
        for row in rows:
            print_object(row)
    elif rows and is_rich_wanted():
        from rich.console import Console

        console = Console(highlight=False)
        console.print(rich_table(rows, columns, console.width))
    elif rows:
        print("\n".join(text_lines(rows, columns)))


def print_listing(
    things: str,
    rows: Sequence[Row],
    columns: Sequence[Column],
    options: argparse.Namespace,
    problems: Sequence[str],
) -> None:
    """Print rows, or with --names only their first column, and raise the problems."""
    if options.names:
        for row in rows:
            print(row[columns[0].name])
    else:
        print_rows(rows, columns, as_json=options.json)
        if not rows and not problems:
            print(f"no {things}", file=sys.stderr)
    raise_if_any(problems)


def print_object(row: Row) -> None:
    print(json.dumps(row, ensure_ascii=False, separators=(",", ":")))


def is_rich_wanted() -> bool:
    return sys.stdout.isatty() and importlib.util.find_spec("rich") is not None


@contextmanager
def screen() -> Iterator[Callable[[str, Sequence[Row], Sequence[Column]], None]]:
    """Yield a function that shows a title and a table, in a terminal in place of those before."""
    if not is_rich_wanted():

        def print_all(title: str, rows: Sequence[Row], columns: Sequence[Column]) -> None:
            print(title, *text_lines(rows, columns), sep="\n", end="\n\n", flush=True)

        yield print_all
        return
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False, screen=True) as live:

        def draw(title: str, rows: Sequence[Row], columns: Sequence[Column]) -> None:
            table = rich_table(rows, columns, live.console.width)
            live.update(Group(Text(title), table), refresh=True)

        yield draw


def rich_table(rows: Sequence[Row], columns: Sequence[Column], width: int) -> Table | Text:
    """Return a table for a terminal. If it is narrow, plain lines, because no text is cut."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    shown = [[_shown(row, column) for column in columns] for row in rows]
    needed = 0
    for number, column in enumerate(columns):
        longest = max(len(text) for text in (column.heading, *[row[number] for row in shown]))
        least = longest if column.is_number else min(longest, LEAST_NAME_WIDTH)
        needed += least + BETWEEN_COLUMNS
        table.add_column(
            column.heading,
            justify="right" if column.is_number else "left",
            overflow="fold",
            min_width=least,
        )
    if needed > width:
        return Text("\n".join(text_lines(rows, columns)))
    for texts in shown:
        table.add_row(*map(Text, texts))
    return table


def text_lines(rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    shown = [[column.heading.upper() for column in columns]]
    shown += [[_shown(row, column) for column in columns] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*shown, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if column.is_number else cell.ljust(width)
            for cell, width, column in zip(cells, widths, columns, strict=True)
        ).rstrip()
        for cells in shown
    ]


def _shown(row: Row, column: Column) -> str:
    value = row[column.name]
    if value is None or value == "":
        return NOTHING
    text = column.show(value)
    # Names may contain characters that control a terminal.
    return "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in text)


def count_text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def counted(number: int, noun: str) -> str:
    """Return "1 member" or "2 members"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size_text(value: object) -> str:
    if not isinstance(value, int):
        return str(value)
    size, unit = float(value), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{value} B"


def list_text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def check_confirmable(options: argparse.Namespace) -> None:
    if not options.yes and not sys.stdin.isatty():
        raise UsageError(
            "cannot ask for confirmation, because the standard input is not a terminal: add --yes"
        )


def confirm(options: argparse.Namespace, things: str) -> None:
    """Ask whether things are to be deleted, unless --yes is given. Raise if they are not."""
    if options.yes:
        return
    print(f"Delete {things}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("the deletion was not confirmed")


# --- Progress on stderr, if it is a terminal and `rich` is installed --------------------------
@contextmanager
def progress(title: str, total: int, is_wanted: bool = True) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows that a number of steps of a total were done."""
    has_rich = importlib.util.find_spec("rich") is not None
    if not (is_wanted and has_rich and sys.stderr.isatty()):
        yield lambda count: None
        return
    # Imported here, because it takes a while.
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    console = Console(stderr=True, highlight=False)
    with Progress(console=console, transient=True, redirect_stdout=False) as shown:
        task, waiting = shown.add_task(escape(title), total=total), 0

        def advance(count: int) -> None:
            nonlocal waiting
            waiting += count
            if waiting * MOST_ADVANCES >= total:  # each takes a while
                shown.advance(task, waiting)
                waiting = 0

        yield advance
