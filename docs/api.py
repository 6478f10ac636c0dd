"""Writes the API reference, from the docstrings of what is public: `make docs`.

What the modules below have in ``__all__`` (or, without one, define) is public, and nothing else.

    python docs/api.py out/docs
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Final, get_type_hints

import pdoc
import pdoc.docstrings
import pdoc.render

from aiokafka_lite import AIOKafkaConsumer, __version__
from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.consumer.config import ConsumerConfig

MODULES: Final = (
    "aiokafka_lite",
    "aiokafka_lite.abc",
    "aiokafka_lite.as_aiokafka",
    "aiokafka_lite.bad_records",
    "aiokafka_lite.broker",
    "aiokafka_lite.broker.thread",
    "aiokafka_lite.events",
    "aiokafka_lite.extras.web",
    "aiokafka_lite.coordinator.assignors.abstract",
    "aiokafka_lite.coordinator.assignors.range",
    "aiokafka_lite.coordinator.assignors.roundrobin",
    "aiokafka_lite.coordinator.assignors.sticky.sticky_assignor",
    "aiokafka_lite.deserializers",
    "aiokafka_lite.errors",
    "aiokafka_lite.helpers",
    "aiokafka_lite.pytest_plugin",
    "aiokafka_lite.spark",
    "aiokafka_lite.spark.pipeline",
    "aiokafka_lite.structs",
)
# In which file a method is written is the code's affair: readers look for it where they call it.
WHOLE: Final[tuple[type, ...]] = (AIOKafkaConsumer, Broker, BrokerThread)
# "::" announces code in plain text; to Markdown the indent says enough.
ANNOUNCED_CODE: Final = re.compile(r"(?m)(?:^([ ]*)::|(?<=[^:\s])::)[ ]*\n\n(?=[ ]*[ ]{4})")


def main(target: Path) -> None:
    """Write the pages into a folder.

    Raises:
        Warning: Something cannot be shown as it is meant, if run with ``-W error``.
    """
    for cls in WHOLE:
        take_in_inherited(cls)
    tell_of_arguments()
    for name in MODULES:
        resolve_fields(importlib.import_module(name))
    google = pdoc.docstrings.google
    pdoc.docstrings.google = lambda docstring: google(as_markdown(docstring))
    pdoc.render.configure(
        docformat="google",
        footer_text=f"aiokafka_lite {__version__}",
        show_source=False,
    )
    pdoc.pdoc(*MODULES, output_directory=target)


def resolve_fields(module: ModuleType) -> None:
    """Have the constructors of NamedTuples remember where their annotations were written."""
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
            value.__new__.__annotations__ = get_type_hints(value)


def take_in_inherited(cls: type) -> None:
    """Have a class own the public attributes that parents of this package give it."""
    for parent in cls.__mro__[1:-1]:
        if parent.__module__.startswith("aiokafka_lite"):
            for name, member in vars(parent).items():
                if not name.startswith("_") and name not in vars(cls):
                    setattr(cls, name, member)
    if "__orig_bases__" in vars(cls):  # pdoc would look there first
        del cls.__orig_bases__  # type: ignore[attr-defined]  # typeshed has it on no class


def tell_of_arguments() -> None:
    """Have the consumer's constructor say what is said of its settings."""
    # From Python 3.13 on docstrings lose their indentation when they are compiled.
    told = inspect.cleandoc(ConsumerConfig.__doc__ or "")
    arguments = told.split("Attributes:")[1].split("Raises:")[0]
    AIOKafkaConsumer.__init__.__doc__ = (
        "Take arguments and connect to nothing yet.\n\nArgs:\n"
        "    topics: Names of topics to subscribe to.\n"
        "    loop: Deprecated, without effect.\n"
        "    api_version: Deprecated, without effect."
        f"{arguments.rstrip()}\n"
    )


def as_markdown(docstring: str) -> str:
    """Return a docstring in which code is announced as in Markdown."""
    return ANNOUNCED_CODE.sub(lambda found: "" if found[1] is not None else ":\n\n", docstring)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
