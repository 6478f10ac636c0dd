"""Shared by this package's web pages: responses, access checks, styles, scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from typing import Final, NamedTuple, TypeAlias

# --- Responses --------------------------------------------------------------------------------

JSON: Final = "application/json"
TEXT: Final = "text/plain; charset=utf-8"
# Of every response: they protect the page like `refusal` does.
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
    body: bytes
    kind: str = JSON
    status: int = 200
    more_headers: tuple[tuple[str, str], ...] = ()

    @property
    def headers(self) -> dict[str, str]:
        return {**HEADERS, "Content-Type": self.kind, **dict(self.more_headers)}


def problem(status: int, text: str, **more_headers: str) -> Answer:
    """Return a response of one line of text. `_` replaces `-` in headers' names."""
    headers = ((name.replace("_", "-"), value) for name, value in more_headers.items())
    return Answer(f"{text}\n".encode(), TEXT, status, tuple(headers))


# --- Access -----------------------------------------------------------------------------------
# A page accepts only its own names (a foreign `Host` is DNS rebinding). It runs and shows only its
# own content (CSP; the scripts write text, never markup).
METHODS: Final = ("GET", "HEAD")


def refusal(
    method: str, hosts: Sequence[str], is_own_name: Callable[[str], bool], remedy: str
) -> Answer | None:
    """Return the response to a request that is refused. In `remedy`, "{}" is the refused name."""
    if len(hosts) != 1:
        return problem(400, f"a request must have exactly one Host header, not {len(hosts)}")
    if not is_own_name(hosts[0].lower()):
        text = f"this page does not accept the Host header {hosts[0]!r}: {remedy}"
        return problem(400, text.replace("{}", hosts[0].rpartition(":")[0] or hosts[0]))
    if method not in METHODS:
        return problem(405, "only GET and HEAD are supported", Allow=", ".join(METHODS))
    return None


# --- Values -----------------------------------------------------------------------------------
Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"

ROWS: Final = 200
LONGEST: Final = 256


def clip(text: str, longest: int = LONGEST) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


class PageQuery(NamedTuple):
    """The parameters of a request: a thing, a kind of rows, a part of names, and a page from 1."""

    name: str = ""
    show: str = ""
    find: str = ""
    page: int = 1

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> PageQuery:
        """Return the page 1 if its number is invalid."""
        name, show, find = (parameters.get(each, "") for each in ("name", "show", "find"))
        page = parameters.get("page", "")
        is_number = page.isascii() and page.isdecimal() and len(page) < 10
        return cls(name, show, find[:LONGEST], max(int(page), 1) if is_number else 1)


# --- Files ------------------------------------------------------------------------------------
KINDS: Final[Mapping[str, str]] = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}


def read_assets(package: str, names: Iterable[str]) -> dict[str, Answer]:
    folder = resources.files(package) / "static"
    return {
        name: Answer(
            (folder / name).read_bytes(), f"{KINDS[name.rpartition('.')[2]]}; charset=utf-8"
        )
        for name in names
    }


SHARED: Final[Mapping[str, Answer]] = read_assets(__package__, ("icon.svg", "page.css", "page.js"))
