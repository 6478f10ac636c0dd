"""The settings' tables of docs/confluent-kafka.md: `python -m tests.docs.confluent_tables`."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Final

from aiokafka_lite.confluent import SETTINGS, Refused, Setting, Translated

PAGE: Final = Path(__file__).parents[2] / "docs" / "confluent-kafka.md"
MARKED: Final = re.compile(r"(?<=<!-- settings -->\n).*?(?=<!-- /settings -->)", re.DOTALL)
HEADS: Final[dict[type[Setting], tuple[str, str]]] = {
    Translated: ("Translated", "| setting | argument | |\n|---|---|---|"),
    Refused: ("Refused", "| setting | because, or instead |\n|---|---|"),
}


def tables() -> str:
    """Return the tables, one for each way in which a setting is treated."""
    rows: defaultdict[type, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    notes: defaultdict[str, str] = defaultdict(str)
    for name, setting in SETTINGS.items():
        shown = f"`{name}`"
        if isinstance(setting, Translated):
            key = setting.argument
            notes[key] = setting.note or notes[key]
        else:
            key = setting.note
            if setting.unless:
                shown += f" other than {setting.unless[0]}"
        rows[type(setting)][key].append(shown)
    texts = []
    for kind, (title, head) in HEADS.items():
        lines = [
            f"| {', '.join(names)} | "
            + (f"`{key.split('.')[0]}` | {notes[key]} |" if kind is Translated else f"{key} |")
            for key, names in rows[kind].items()
        ]
        texts.append("\n".join([f"\n### {title}\n", head, *lines, ""]))
    return "".join(texts) + "\n"


def main() -> None:
    """Write the tables into the page."""
    text = tables()
    PAGE.write_text(MARKED.sub(lambda _: text, PAGE.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
