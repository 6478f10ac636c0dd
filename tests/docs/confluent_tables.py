"""A table of docs/confluent-kafka.md: `python -m tests.docs.confluent_tables`."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Final

from aiokafka_lite.confluent import SETTINGS, Refused

PAGE: Final = Path(__file__).parents[2] / "docs" / "confluent-kafka.md"
MARKED: Final = re.compile(r"(?<=<!-- settings -->\n).*?(?=<!-- /settings -->)", re.DOTALL)


LIKE: Final = re.compile(r"(\w+\.\w+\.)|.*(_cb)$")
"""Settings that share a beginning of two words, or are callbacks, may be shown as one."""
MOST_SHOWN: Final = 3


def table() -> str:
    """Return the table of refused settings, with the reason of each."""
    rows: defaultdict[str, list[str]] = defaultdict(list)
    for name, setting in SETTINGS.items():
        if isinstance(setting, Refused):
            shown = pattern_of(name, setting.note) if not setting.unless else None
            other = f" other than {setting.unless[0]}" if setting.unless else ""
            cell = shown or f"`{name}`{other}"
            if cell not in rows[setting.note]:
                rows[setting.note].append(cell)
    lines = [f"| {', '.join(names)} | {note} |" for note, names in rows.items()]
    head = "\n### Refused\n\n| setting | because, or instead |\n|---|---|"
    return "\n".join([head, *lines, "", ""])


def pattern_of(name: str, note: str) -> str | None:
    """Return a pattern that replaces a name and more than three like it, of the same reason."""
    if not (found := LIKE.match(name)):
        return None
    like = [
        each
        for each in SETTINGS
        if (each.startswith(found[1]) if found[1] else each.endswith(found[2]))
    ]
    same = [each for each in like if getattr(SETTINGS[each], "note", None) == note]
    if len(same) <= MOST_SHOWN:
        return None
    pattern = f"{found[1]}*" if found[1] else f"*{found[2]}"
    return f"{'other ' if len(same) < len(like) else ''}`{pattern}`"


def main() -> None:
    """Write the table into the page."""
    text = table()
    PAGE.write_text(MARKED.sub(lambda _: text, PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
