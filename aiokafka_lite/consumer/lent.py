"""Objects of the application, which often refer to the consumer, for background tasks.

Only the consumer keeps them alive: a consumer without other references can be collected.
"""

from __future__ import annotations

import weakref
from typing import TypeVar, cast

T = TypeVar("T")


class _Lent:
    def __init__(self, lent: object, otherwise: object) -> None:
        self._lent = weakref.ref(lent)
        self._otherwise = otherwise

    def __getattribute__(self, name: str) -> object:
        # Not __getattr__, before which a lookup fails, and creates an error.
        own = object.__getattribute__
        lent = own(self, "_lent")()
        return getattr(own(self, "_otherwise") if lent is None else lent, name)


def lend(lent: T, otherwise: T) -> T:
    """Return a stand-in with the attributes of `lent`, or of `otherwise` once that is collected."""
    return cast("T", _Lent(lent, otherwise))
