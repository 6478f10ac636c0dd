"""Where files are kept that this package makes for Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the user's folder, which need not exist yet; XDG_CACHE_HOME says where it is."""
    base = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "~"), ".cache")
    return Path(base).expanduser() / "aiokafka-lite"
