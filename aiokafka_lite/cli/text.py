"""Text as options have it."""

from __future__ import annotations

import re
from typing import Final

_ESCAPES: Final = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "\\": "\\"}
_ESCAPE: Final = re.compile(r"\\([0nrt\\])")


def unescaped(text: str) -> bytes:
    r"""Return the bytes of a text in which \\0, \\n, \\r, \\t and \\\\ are written as in Python."""
    plain = _ESCAPE.sub(lambda found: _ESCAPES[found[1]], text)
    return plain.encode("utf-8", "surrogateescape")
