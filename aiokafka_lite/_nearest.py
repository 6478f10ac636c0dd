"""Suggests a known name for a misspelled one."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def nearest(name: str, known: Iterable[str], spelled: Callable[[str], str] = str) -> str:
    """Return "; did you mean x?" with the most similar known name, or ""."""
    import difflib  # late: whoever makes no mistakes does without

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {spelled(close[0])}?" if close else ""
