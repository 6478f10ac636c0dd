"""Fixtures of the commands' tests."""

from __future__ import annotations

from tests.cli.running import cli

__all__ = ["cli"]
