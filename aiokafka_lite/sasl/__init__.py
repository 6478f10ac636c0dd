"""SASL without I/O: the functions of mechanisms that client and broker share."""

from __future__ import annotations

import hmac
from typing import Final, NoReturn

__all__ = ["Secret"]

HIDDEN: Final = "***"


class Secret:
    """A password that no repr, log, exception or pickle shows. Comparisons take constant time."""

    __slots__ = ("_value",)

    def __init__(self, value: str | bytes) -> None:
        self._value: Final = value.encode() if isinstance(value, str) else bytes(value)

    @classmethod
    def of(cls, value: Secret | str | bytes) -> Secret:
        return value if isinstance(value, Secret) else cls(value)

    def reveal(self) -> bytes:
        """Return the value. Text is encoded in UTF-8."""
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value, other._value)

    __hash__ = None  # type: ignore[assignment] # a hash would tell equal ones apart in no time

    def __repr__(self) -> str:
        return HIDDEN

    def __format__(self, spec: str) -> str:
        return HIDDEN

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "passwords and tokens cannot be pickled, because a pickle is not encrypted: transfer "
            "them in another way"
        )
