"""Runs seeds: `python -m tests.simulation --help`."""

from __future__ import annotations

from tests.simulation.campaign import main

if __name__ == "__main__":
    raise SystemExit(main())
