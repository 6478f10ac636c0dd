"""Which aiokafka_lite a process runs, and whether it is the one of the process before.

A query runs in several processes: the driver's, those that plan, the workers. Each finds the
package by itself, and a checkout in the directory in which Spark was started hides the installed
one from all but the driver. So what is pickled says which package it comes from, and whoever
unpickles it compares.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import NamedTuple

import aiokafka_lite
from aiokafka_lite.records.decoders import COMPILED, PLAIN_DECODER_NOTE

log = logging.getLogger(__name__)


class Build(NamedTuple):
    """One installation of the package."""

    version: str
    is_compiled: bool
    home: str

    def __str__(self) -> str:
        decoder = "the compiled" if self.is_compiled else "the plain Python"
        return f"version {self.version} with {decoder} decoder, in {self.home}"


@cache
def own_build() -> Build:
    """Return what this process runs."""
    home = str(Path(aiokafka_lite.__file__).parent)
    return Build(aiokafka_lite.__version__, COMPILED, home)


@cache
def compare(sender: Build) -> None:
    """Log once what differs from the process that a pickle comes from.

    Where both are the same, log that records are decoded in plain Python, if so.
    """
    own = own_build()
    if own[:2] != sender[:2]:
        log.warning(
            "this Spark process uses another build of aiokafka_lite (%s) than the process that "
            "sent the data source (%s). Install the same wheel for the Python of the driver and of "
            "every executor, and start Spark in a directory without a package aiokafka_lite",
            own,
            sender,
        )
    elif not own.is_compiled:
        log.warning("%s", PLAIN_DECODER_NOTE)
