"""The setting AIOKAFKA_LITE_IMPL: whether a process uses compiled modules or plain Python.

    compiled    an error if the compiled modules are not built
    python      no compiled module, although they may be built

By default they are used if they are built. One file contains them all, so that they share the table
of Python's functions: fewer cache lines are cold. A finder loads them from it.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    # Programs that freeze applications, such as PyInstaller, look for imports.
    from aiokafka_lite import _compiled as _compiled

SETTING: Final = "AIOKAFKA_LITE_IMPL"
_PACKAGE: Final = f"{__package__}."
LIBRARY: Final = "_compiled"
# What setup.py compiles.
COMPILED: Final = frozenset(
    {
        "_compiled",
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
        "consumer.processing.allowance",
        "consumer.processing.job",
        "consumer.processing.lanes",
        "consumer.processing.steps",
        "records._build",
        "records._columns",
        "records._decode",
        "records._partitioner",
    }
)


class _Finder:
    """Loads compiled modules from their file, but for no other copy of the package."""

    def __init__(self, library: str) -> None:
        self._library = library
        self._package = sys.modules.get(str(__package__))

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith(_PACKAGE) or name.removeprefix(_PACKAGE) not in COMPILED:
            return None
        if sys.modules.get(str(__package__)) is not self._package:
            return None
        loader = importlib.machinery.ExtensionFileLoader(name, self._library)
        spec = importlib.machinery.ModuleSpec(name, loader, origin=self._library)
        spec.has_location = True
        return spec


def choose(wanted: str) -> None:
    """Use an implementation's modules from now on; "": compiled ones if they are built."""
    if wanted not in {"", "compiled", "python"}:
        raise ImportError(f"{SETTING} must be compiled or python, not {wanted!r}")
    if wanted == "python":
        return
    if (library := built_library(os.path.dirname(__file__))) is not None:
        sys.meta_path.insert(0, _Finder(library))
    elif wanted == "compiled":
        raise ImportError(
            f"{SETTING}=compiled, but aiokafka_lite was installed without its compiled modules. "
            "Install a C compiler and reinstall aiokafka-lite, or unset the variable"
        )


def built_library(package: str) -> str | None:
    """Return the file of the compiled modules in the package's folder; None: it is not built."""
    for end in importlib.machinery.EXTENSION_SUFFIXES:
        if os.path.exists(path := os.path.join(package, LIBRARY + end)):
            return path
    return None
