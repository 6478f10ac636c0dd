"""The output of `python -m aiokafka_lite` without a command."""

from __future__ import annotations

import platform

from aiokafka_lite import __version__
from aiokafka_lite.cli.loops import LoopKind, available_loops
from aiokafka_lite.cli.main import listing
from aiokafka_lite.records.decoders import COMPILED, PLAIN_DECODER_NOTE


def decoder_note() -> str | None:
    return None if COMPILED else f"Note: {PLAIN_DECODER_NOTE}"


def overview() -> str:
    loops = ", ".join(available_loops())
    if LoopKind.UVLOOP not in available_loops():
        loops += " (faster with uvloop: pip install 'aiokafka-lite[uvloop]')"
    lines = [
        f"aiokafka_lite {__version__}: the asyncio consumer for Apache Kafka",
        "",
        f"  decoder  {'compiled' if COMPILED else 'plain Python'}",
        f"  Python   {platform.python_version()} ({platform.python_implementation()})",
        f"  loops    {loops}",
        "",
        listing(),
        "",
        "Each has --help.",
    ]
    note = decoder_note()
    if note is not None:
        lines += ["", note]
    return "\n".join(lines)
