"""The command line of the demos, with the exit codes of `aiokafka-lite`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from aiokafka_lite.cli.main import exit_code_of
from demos.flights import command as flights
from demos.pipeline import command as pipeline

PROGRAM: Final = "python -m demos"


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Demos of aiokafka_lite.")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    flights.add_parser(subparsers)
    pipeline.add_parser(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one demo. Returns the exit code of the process."""
    words = sys.argv[1:] if arguments is None else arguments

    def run() -> int:
        options = build_parser().parse_args(words)
        code: int = options.run(options)
        return code

    return exit_code_of(run, " ".join([PROGRAM, *words[:1], "--help"]))
