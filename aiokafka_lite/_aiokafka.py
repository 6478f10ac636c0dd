"""Names that only aiokafka has: its admin client, low-level client and record classes.

They have the same module paths here. They are aiokafka's own classes, imported on first use, if
aiokafka is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module


def lend(module: str, names: tuple[str, ...]) -> Callable[[str], object]:
    """Return a ``__getattr__`` for a module whose names are aiokafka's.

    The function raises ImportError if aiokafka is missing. The message has the command that
    installs it.

    Args:
        module: The module's name here; aiokafka's is the same below ``aiokafka``.
        names: The names that the module has in aiokafka.
    """
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
