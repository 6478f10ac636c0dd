r"""The syntax of regular expressions that RE2 and Python's `re` interpret in the same way.

Kafka matches topics with RE2. Topic names consist of ASCII letters, digits and ``._-``, so `.`,
`\d`, `\w` and `$` mean the same to both.
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


def tokens_of(regex: str) -> tuple[list[str], str]:
    """Split a regular expression into tokens with the same meaning in both, and the rest."""
    tokens: list[str] = []
    place = 0
    while token := _TOKEN.match(regex, place):
        tokens.append(token.group())
        place = token.end()
    return tokens, regex[place:]
