"""Whom pages refuse.

What a page that tells of somebody's service has to expect: other web pages in the same browser. So
it answers only to its own names (a foreign one in `Host` is DNS rebinding), only GET and HEAD, and
runs and shows nothing that is not its own (CSP; the scripts write text, never markup).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from aiohttp import web

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
METHODS: Final = ("GET", "HEAD")


def refusal(request: web.Request, is_own_name: Callable[[str], bool]) -> web.Response | None:
    """Return the answer to a request that is refused whatever it asks for, None to others.

    Args:
        request: Any request.
        is_own_name: Says of a `Host` in lower case, with the port if it has one, whether this
            place goes by it.
    """
    hosts = request.headers.getall("Host", [])
    if len(hosts) != 1 or not is_own_name(hosts[0].lower()):
        return problem(400, "this place does not go by that name")
    if request.method not in METHODS:
        answer = problem(405, "there is nothing to change here: GET or HEAD")
        answer.headers["Allow"] = ", ".join(METHODS)
        return answer
    return None


def problem(status: int, text: str) -> web.Response:
    """Return an answer that says in a line what is wrong."""
    return web.Response(status=status, text=f"{text}\n")
