"""Responses of pages, independent of the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
# With every answer: they guard it, see guard.py.
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Server": "aiokafka_lite",
    "X-Content-Type-Options": "nosniff",
}


class Answer(NamedTuple):
    """A response.

    Attributes:
        kind: The content type.
        more_headers: In addition to `HEADERS`.
    """

    body: bytes
    kind: str = JSON
    status: int = 200
    more_headers: tuple[tuple[str, str], ...] = ()

    @property
    def headers(self) -> dict[str, str]:
        """All headers except the length."""
        return {**HEADERS, "Content-Type": self.kind, **dict(self.more_headers)}


def problem(status: int, text: str, **more_headers: str) -> Answer:
    """Return a response of one line of text; `_` replaces `-` in headers' names."""
    headers = ((name.replace("_", "-"), value) for name, value in more_headers.items())
    return Answer(f"{text}\n".encode(), TEXT, status, tuple(headers))
