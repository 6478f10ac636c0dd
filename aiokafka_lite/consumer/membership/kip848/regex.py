"""Translates a pattern of Python's `re` into a regular expression for the group coordinator.

The consumer matches patterns at the beginning of names, as aiokafka, the coordinator whole names.
"""

from __future__ import annotations

import re
from typing import Final

from aiokafka_lite.protocol.regex import IGNORE_CASE, tokens_of

# The topics that brokers keep for themselves.
INTERNAL_TOPICS: Final = ("__consumer_offsets", "__transaction_state", "__share_group_state")


def as_re2(pattern: re.Pattern[str], *, exclude_internal_topics: bool) -> str | None:
    """Return the coordinator's regular expression. None: the consumer must match topics itself."""
    text, flags = pattern.pattern, pattern.flags & ~re.UNICODE
    if exclude_internal_topics and any(map(pattern.match, INTERNAL_TOPICS)):
        return None
    body = text.removeprefix(IGNORE_CASE)
    ignores_case = flags == re.IGNORECASE
    if flags and not ignores_case:
        return None
    _, unlike = tokens_of(body)
    if unlike:
        return None
    return f"{IGNORE_CASE if ignores_case else ''}(?:{body}).*"
