r"""The syntax of regular expressions that RE2, which Kafka uses, and Python's `re` interpret alike.

Topic names consist of ASCII letters, digits and ``._-``, so `.`, `\d`, `\w` and `$` are included.
"""

from __future__ import annotations

import re
from typing import Final

IGNORE_CASE: Final = "(?i)"
_TOKEN: Final = re.compile(
    r"""
      [A-Za-z0-9_.,:;/@%&~<>=!"'`\#\ -]         # a literal, or any character
    | [|^$]                                     # alternatives, and the ends of a name
    | \\[.\-_^$*+?(){}\[\]|\\/]                 # an escaped character
    | \\[dDwWsSbBA]                             # character classes, and anchors
    # One of these characters. A later Python interprets "--" as a difference of sets.
    | \[\^?(?:(?!--)[A-Za-z0-9_.,:;/@%\ -]|\\[.\-_dws])+\]
    | \((?!\?)                                  # a group
    | \(\?:                                     # a group without a number
    | \)
    | [*+?](?![+])\??                           # a quantifier that is not possessive
    # RE2 interprets a number with leading zeros as text.
    | \{(?:0|[1-9][0-9]{0,2})(?:,(?:0|[1-9][0-9]{0,2})?)?\}(?![+])\??
    """,
    re.VERBOSE,
)


def tokens_of(regex: str) -> tuple[list[str], str]:
    """Split a regular expression into tokens with the same meaning in both, and the rest."""
    tokens: list[str] = []
    place = 0
    while token := _TOKEN.match(regex, place):
        tokens.append(token.group())
        place = token.end()
    return tokens, regex[place:]
