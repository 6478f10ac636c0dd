"""Files of pages: read once, and found by path in a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Final

from aiokafka_lite._pages.answers import Answer

KINDS: Final[Mapping[str, str]] = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}


def read_assets(package: str, names: Iterable[str]) -> dict[str, Answer]:
    """Read files of a package's folder `static`; return their responses by name."""
    folder = resources.files(package) / "static"
    return {
        name: Answer(
            (folder / name).read_bytes(), f"{KINDS[name.rpartition('.')[2]]}; charset=utf-8"
        )
        for name in names
    }


SHARED: Final[Mapping[str, Answer]] = read_assets(__package__, ("icon.svg", "page.css", "page.js"))
