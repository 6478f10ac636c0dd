"""Small files that must be whole or old, never half."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from aiokafka_lite._compat import Buffer

FILE_MODE: Final = 0o644


def replace_file(path: Path, contents: Buffer, mode: int = FILE_MODE) -> None:
    """Write a file so that after a crash it has either its old or its new contents."""
    temporary = path.with_name(path.name + ".new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with open(fd, "wb") as file:
        file.write(contents)
        file.flush()
        os.fsync(fd)
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: files made, renamed and removed."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
