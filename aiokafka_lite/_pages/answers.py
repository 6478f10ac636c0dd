"""Answers of pages, whatever server the request came by."""

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
    """What a page answers.

    Attributes:
        body: Also to HEAD, where the server leaves it out.
        kind: The content type.
        status: HTTP's.
        more_headers: Those that other answers have not.
    """

    body: bytes
    kind: str = JSON
    status: int = 200
    more_headers: tuple[tuple[str, str], ...] = ()

    @property
    def headers(self) -> dict[str, str]:
        """All headers but the length."""
        return {**HEADERS, "Content-Type": self.kind, **dict(self.more_headers)}


def problem(status: int, text: str, **more_headers: str) -> Answer:
    """Return an answer that says in a line what is wrong; `_` stands for `-` in headers' names."""
    headers = ((name.replace("_", "-"), value) for name, value in more_headers.items())
    return Answer(f"{text}\n".encode(), TEXT, status, tuple(headers))
