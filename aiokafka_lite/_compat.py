"""The only module that checks the Python version. It imports asyncio and zstd on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio

    if sys.version_info >= (3, 11):
        from asyncio import timeout, timeout_at
    else:
        from async_timeout import timeout, timeout_at

    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd

    def task_of(loop: asyncio.AbstractEventLoop) -> asyncio.Task[Any] | None: ...
else:

    def __getattr__(name):
        if name not in ("timeout", "timeout_at", "task_of", "zstd"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import asyncio

        if name == "zstd":
            if sys.version_info >= (3, 14):
                from compression import zstd as value
            else:
                from backports import zstd as value
        elif name == "task_of":
            if sys.version_info >= (3, 12):
                value = asyncio.current_task
            else:
                value = asyncio.tasks._current_tasks.get
        elif sys.version_info >= (3, 11):
            value = getattr(asyncio, name)
        else:
            import async_timeout

            value = getattr(async_timeout, name)
        globals()[name] = value
        return value


if sys.version_info >= (3, 11):
    from enum import StrEnum
    from typing import Never, Self, dataclass_transform
else:
    from enum import Enum

    if TYPE_CHECKING:
        from typing_extensions import Never, Self, dataclass_transform
    else:  # they only speak to type checkers: importing typing_extensions for them costs 2 ms
        Never = Self = object

        def dataclass_transform(**_):
            return lambda cls: cls

    class StrEnum(str, Enum):
        def __str__(self) -> str:
            return str(self.value)


if sys.version_info >= (3, 12):
    from collections.abc import Buffer
    from typing import override
elif TYPE_CHECKING:
    from typing_extensions import Buffer, override
else:  # these only speak to type checkers as well
    Buffer = object

    def override(method):
        return method


T = TypeVar("T")

if TYPE_CHECKING:  # a default is Python 3.13's, and only speaks to type checkers
    from typing_extensions import TypeVar as TypeVarWithDefault

    KT = TypeVarWithDefault("KT", covariant=True, default=bytes | None)
    VT = TypeVarWithDefault("VT", covariant=True, default=bytes | None)
    # Arguments of serialisers. Invariant: pyright gives a contravariant one its default at once.
    # Any: a lambda's argument has no type of its own.
    SentKT = TypeVarWithDefault("SentKT", default=Any)
    SentVT = TypeVarWithDefault("SentVT", default=Any)
else:
    KT = TypeVar("KT", covariant=True)
    VT = TypeVar("VT", covariant=True)
    SentKT = TypeVar("SentKT")
    SentVT = TypeVar("SentVT")


def is_being_cancelled(task: asyncio.Task[T]) -> bool:
    """Whether a task was cancelled and has not ended; unknown before Python 3.11."""
    cancelling: Callable[[], int] | None = getattr(task, "cancelling", None)
    return cancelling is not None and cancelling() > 0


def may_be_cancelled(task: asyncio.Task[T] | None) -> bool:
    """As `is_being_cancelled`, but True if unknown."""
    cancelling: Callable[[], int] | None = getattr(task, "cancelling", None)
    return cancelling is None or cancelling() > 0


__all__ = [
    "KT",
    "VT",
    "SentKT",
    "SentVT",
    "Buffer",
    "Never",
    "Self",
    "StrEnum",
    "dataclass_transform",
    "is_being_cancelled",
    "may_be_cancelled",
    "override",
    "task_of",
    "timeout",
    "timeout_at",
    "zstd",
]
