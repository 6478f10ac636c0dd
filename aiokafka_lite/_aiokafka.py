"""Lends aiokafka's own classes (admin client, low-level client, records) under their paths here."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module


def lend(module: str, names: tuple[str, ...]) -> Callable[[str], object]:
    """Return a ``__getattr__`` that imports aiokafka's `names` of the same module on first use."""
    theirs = module.replace("aiokafka_lite", "aiokafka", 1)

    def __getattr__(name: str) -> object:  # noqa: N807 -- that is what it is
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        try:
            import_module("aiokafka")
        except ModuleNotFoundError as error:
            if error.name != "aiokafka":
                raise
            raise ImportError(
                f"{name} is part of aiokafka, which is not installed: pip install "
                "aiokafka-lite[aiokafka], or install aiokafka itself",
                name=module,
            ) from None
        value: object = getattr(import_module(theirs), name)
        return value

    return __getattr__
