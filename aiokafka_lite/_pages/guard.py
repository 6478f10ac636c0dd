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


def refusal(method: str, hosts: Sequence[str], is_own_name: Callable[[str], bool]) -> Answer | None:
    """Return the answer to a request that is refused whatever it asks for, None to others.

    Args:
        method: The request's.
        hosts: Its headers `Host`, of which there has to be one.
        is_own_name: Says of a `Host` in lower case, with the port if it has one, whether this
            place goes by it.
    """
    if len(hosts) != 1 or not is_own_name(hosts[0].lower()):
        return problem(400, "this place does not go by that name")
    if method not in METHODS:
        return problem(
            405, "there is nothing to change here: GET or HEAD", Allow=", ".join(METHODS)
        )
    return None
