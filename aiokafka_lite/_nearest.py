"""Finds the name that somebody meant."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def nearest(name: str, known: Iterable[str], spelled: Callable[[str], str] = str) -> str:
    """Say which known name is most like one that is not known: "; did you mean x?", or nothing."""
    import difflib  # late: whoever makes no mistakes does without

    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {spelled(close[0])}?" if close else ""
