"""Refuses requests from other web pages in the same browser.

A page accepts only its own names (a foreign `Host` is DNS rebinding) and only GET and HEAD. It runs
and shows only its own content (CSP; the scripts write text, never markup).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from aiokafka_lite._pages.answers import Answer, problem

METHODS: Final = ("GET", "HEAD")


def refusal(
    method: str, hosts: Sequence[str], is_own_name: Callable[[str], bool], remedy: str
) -> Answer | None:
    """Return the response to a request that is refused, None to others.

    Args:
        hosts: Its headers `Host`, of which there has to be one.
        is_own_name: Decides about a `Host` in lower case, with its port.
        remedy: How to allow another name; `{}` is replaced by that.
    """
    if len(hosts) != 1:
        return problem(400, f"a request must have exactly one Host header, not {len(hosts)}")
    if not is_own_name(hosts[0].lower()):
        text = f"this page does not accept the Host header {hosts[0]!r}: {remedy}"
        return problem(400, text.replace("{}", hosts[0].rpartition(":")[0] or hosts[0]))
    if method not in METHODS:
        return problem(405, "only GET and HEAD are supported", Allow=", ".join(METHODS))
    return None
