r"""A pattern of Python's `re` in the words of RE2, which the coordinator matches topics with.

A pattern is matched at the beginning of a name (as in aiokafka), the coordinator's expression with
all of it. What both read alike is passed on; whatever is not known to be so is not: then the
consumer matches the topics itself. Names of topics are ASCII letters, digits and ``._-``, so that
`.`, `\d`, `\w` and `$` are the same to both.
"""

from __future__ import annotations

import re
from typing import Final

# Each alternative is read alike by both.
_TOKEN: Final = re.compile(
    r"""
      [A-Za-z0-9_.,:;/@%&~<>=!"'`\#\ -]         # a literal, or any character
    | [|^$]                                     # alternatives, and the ends of a name
    | \\[.\-_^$*+?(){}\[\]|\\/]                 # an escaped character
    | \\[dDwWsSbBA]                             # character classes, and anchors
    # One of these characters. A later Python takes "--" for a difference of sets.
    | \[\^?(?:(?!--)[A-Za-z0-9_.,:;/@%\ -]|\\[.\-_dws])+\]
    | \((?!\?)                                  # a group
    | \(\?:                                     # a group without a number
    | \)
    | [*+?](?![+])\??                           # a quantifier that is not possessive
    # RE2 takes a number with zeros in front for text.
    | \{(?:0|[1-9][0-9]{0,2})(?:,(?:0|[1-9][0-9]{0,2})?)?\}(?![+])\??
    """,
    re.VERBOSE,
)
_FLAG: Final = "(?i)"
# The topics that brokers keep for themselves.
INTERNAL_TOPICS: Final = ("__consumer_offsets", "__transaction_state", "__share_group_state")


def as_re2(pattern: re.Pattern[str], *, exclude_internal_topics: bool) -> str | None:
    """Return what the coordinator is to match whole names with; None: it must not do that.

    Args:
        pattern: Matched at the beginning of names.
        exclude_internal_topics: Brokers' own topics are not wanted; the coordinator would take
            them.
    """
    text, flags = pattern.pattern, pattern.flags & ~re.UNICODE
    if exclude_internal_topics and any(map(pattern.match, INTERNAL_TOPICS)):
        return None
    body = text.removeprefix(_FLAG)
    ignores_case = flags == re.IGNORECASE
    if flags and not ignores_case:
        return None
    place = 0
    while place < len(body):
        token = _TOKEN.match(body, place)
        if token is None:
            return None
        place = token.end()
    return f"{_FLAG if ignores_case else ''}(?:{body}).*"
