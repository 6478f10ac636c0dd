"""Parse the command line, run the command, and turn errors into a message and an exit code.

Exit codes: 0 done; 1 failed, the message says why; 2 wrong usage; 130 (SIGINT) and 143 (SIGTERM)
ended by a signal.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from aiokafka_lite import __version__
from aiokafka_lite.cli import broker
from aiokafka_lite.cli.flights import command as flights
from aiokafka_lite.cli.overview import overview
from aiokafka_lite.cli.pipeline import command as pipeline
from aiokafka_lite.cli.problems import CommandError, plain_text
from aiokafka_lite.cli.signals import Interrupted
from aiokafka_lite.errors import KafkaError


def build_parser() -> tuple[argparse.ArgumentParser, dict[str, str]]:
    """Build the parser; also returns each command's one-line summary by its name."""
    parser = argparse.ArgumentParser(
        prog="python -m aiokafka_lite",
        description="The asyncio consumer for Apache Kafka. Without a command: what is installed.",
    )
    parser.add_argument("--version", action="version", version=f"aiokafka_lite {__version__}")
    subparsers = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    for module in (flights, pipeline, broker):
        module.add_parser(subparsers)
    # argparse keeps the summaries only in this list of pseudo-actions, which `--help` prints too.
    summaries = {each.dest: each.help or "" for each in subparsers._get_subactions()}
    return parser, summaries


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code of the process."""
    parser, summaries = build_parser()
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    try:
        code: int = 0
        if options.command is None:
            print(overview(summaries))
        else:
            code = options.run(options)
        sys.stdout.flush()
        return code
    except (CommandError, KafkaError) as error:
        return _fail(plain_text(error))
    except Interrupted as interruption:
        print(f"\n{interruption}", file=sys.stderr)
        return interruption.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output went away (`| head`): nothing is left to say, nor to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 1
