"""Files of pages: read once, found by path in a table, never opened by what somebody asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Final, NamedTuple

from aiohttp import web

KINDS: Final[Mapping[str, str]] = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}


class Asset(NamedTuple):
    """A file as it is served."""

    body: bytes
    kind: str

    def answer(self) -> web.Response:
        """Return it as an answer."""
        return web.Response(body=self.body, content_type=self.kind, charset="utf-8")


def read_assets(package: str, names: Iterable[str]) -> dict[str, Asset]:
    """Read files of a package's folder `static`; returns them by name."""
    folder = resources.files(package) / "static"
    return {
        name: Asset((folder / name).read_bytes(), KINDS[name.rpartition(".")[2]]) for name in names
    }


SHARED: Final[Mapping[str, Asset]] = read_assets(__package__, ("icon.svg", "page.css", "page.js"))
