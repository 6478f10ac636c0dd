"""Whom pages refuse.

What a page that tells of somebody's service has to expect: other web pages in the same browser. So
it answers only to its own names (a foreign one in `Host` is DNS rebinding), only GET and HEAD, and
runs and shows nothing that is not its own (CSP; the scripts write text, never markup).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from aiokafka_lite._pages.answers import Answer, problem

METHODS: Final = ("GET", "HEAD")


def refusal(
    method: str, hosts: Sequence[str], is_own_name: Callable[[str], bool], remedy: str
) -> Answer | None:
    """Return the answer to a request that is refused whatever it asks for, None to others.

    Args:
        method: The request's.
        hosts: Its headers `Host`, of which there has to be one.
        is_own_name: Says of a `Host` in lower case, with the port if it has one, whether this
            place goes by it.
        remedy: What makes it answer to a name that is not its own; `{}` stands for the name.
    """
    if len(hosts) != 1:
        return problem(400, f"a request must have exactly one Host header, not {len(hosts)}")
    if not is_own_name(hosts[0].lower()):
        text = f"this page does not accept the Host header {hosts[0]!r}: {remedy}"
        return problem(400, text.replace("{}", hosts[0].rpartition(":")[0] or hosts[0]))
    if method not in METHODS:
        return problem(405, "only GET and HEAD are supported", Allow=", ".join(METHODS))
    return None
