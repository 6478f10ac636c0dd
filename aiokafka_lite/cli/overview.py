"""What `python -m aiokafka_lite` prints when it is given nothing to do."""

from __future__ import annotations

import platform
from collections.abc import Mapping

from aiokafka_lite import __version__
from aiokafka_lite.cli.loops import LoopKind, available_loops
from aiokafka_lite.records import COMPILED

PLAIN_DECODER_NOTE = (
    "records are decoded by plain Python, which is many times slower: install a C compiler "
    "(Debian: apt install gcc python3-dev; macOS: xcode-select --install) and reinstall "
    "aiokafka-lite"
)


def decoder_note() -> str | None:
    """Return one line on the plain Python decoder and what to install; None when compiled."""
    return None if COMPILED else f"Note: {PLAIN_DECODER_NOTE}"


def overview(commands: Mapping[str, str]) -> str:
    """Describe this installation and its commands (name → one line)."""
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
        "Commands (each has --help):",
    ]
    width = max(map(len, commands), default=0)
    lines += [f"  {name:<{width}}  {summary}" for name, summary in commands.items()]
    note = decoder_note()
    if note is not None:
        lines += ["", note]
    return "\n".join(lines)
