"""A table of docs/confluent-kafka.md: `python -m tests.docs.confluent_tables`."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Final

from aiokafka_lite.confluent import SETTINGS, Refused

PAGE: Final = Path(__file__).parents[2] / "docs" / "confluent-kafka.md"
MARKED: Final = re.compile(r"(?<=<!-- settings -->\n).*?(?=<!-- /settings -->)", re.DOTALL)


def table() -> str:
    """Return the table of refused settings, with the reason of each."""
    rows: defaultdict[str, list[str]] = defaultdict(list)
    for name, setting in SETTINGS.items():
        if isinstance(setting, Refused):
            other = f" other than {setting.unless[0]}" if setting.unless else ""
            rows[setting.note].append(f"`{name}`{other}")
    lines = [f"| {', '.join(names)} | {note} |" for note, names in rows.items()]
    head = "\n### Refused\n\n| setting | because, or instead |\n|---|---|"
    return "\n".join([head, *lines, "", ""])


def main() -> None:
    """Write the table into the page."""
    text = table()
    PAGE.write_text(MARKED.sub(lambda _: text, PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
