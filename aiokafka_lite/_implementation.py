"""The setting AIOKAFKA_LITE_IMPL: whether a process uses compiled modules or plain Python.

    compiled    an error if a module that the package compiles is not built
    python      no compiled module, although they may be built

Without it, each compiled module is used that is built.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Final

SETTING: Final = "AIOKAFKA_LITE_IMPL"
_PACKAGE: Final = f"{__package__}."
# What setup.py compiles.
COMPILED: Final = (
    "_record",
    "client.backoff",
    "client.channel",
    "client.frames",
    "client.wire",
    "consumer.assignment.cursor",
    "consumer.assignment.progress",
    "consumer.assignment.reads",
    "consumer.assignment.works",
    "consumer.buffer.budget",
    "consumer.buffer.chunk",
    "consumer.buffer.chunk_queue",
    "consumer.buffer.time_slice",
    "consumer.buffer.waiter",
    "consumer.delivery._iteration",
    "consumer.delivery.next_record",
    "consumer.delivery.ready",
    "consumer.delivery.record_cursor",
    "consumer.delivery.steady",
    "consumer.fetching._small",
    "consumer.fetching.choice",
    "consumer.fetching.counts",
    "consumer.fetching.in_flight",
    "consumer.fetching.session",
    "consumer.fetching.small",
    "consumer.gate",
    "consumer.processing._calls",
    "consumer.processing.job",
    "consumer.processing.lanes",
    "consumer.processing.steps",
    "records._build",
    "records._columns",
    "records._decode",
    "records._partitioner",
)


class _PlainPython(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(_PACKAGE) or path is None:
            return None
        loader = importlib.machinery.SourceFileLoader, importlib.machinery.SOURCE_SUFFIXES
        for folder in filter(os.path.isdir, path):
            spec = importlib.machinery.FileFinder(folder, loader).find_spec(name)
            if spec is not None:
                return spec
        if importlib.machinery.PathFinder.find_spec(name, path) is None:
            return None  # there is no such module at all
        raise ModuleNotFoundError(f"No module named {name!r} in plain Python", name=name)


def choose(wanted: str) -> None:
    """Use an implementation's modules from now on; "": those that are built."""
    if wanted == "python":
        sys.meta_path.insert(0, _PlainPython())
    elif wanted == "compiled":
        if missing := not_built(os.path.dirname(__file__)):
            raise ImportError(
                f"{SETTING}=compiled, but aiokafka_lite was installed without its compiled "
                f"modules {', '.join(missing)}. Install a C compiler and reinstall aiokafka-lite, "
                "or unset the variable"
            )
    elif wanted:
        raise ImportError(f"{SETTING} must be compiled or python, not {wanted!r}")


def not_built(package: str) -> list[str]:
    """Return the compiled modules that the package's folder does not have."""
    return [
        name
        for name in COMPILED
        for path in [os.path.join(package, *name.split("."))]
        if not any(os.path.exists(path + end) for end in importlib.machinery.EXTENSION_SUFFIXES)
    ]
