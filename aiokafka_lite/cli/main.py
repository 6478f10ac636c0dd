"""Parses the command line, runs the command, and turns errors into a message and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage, 128 + N ended by signal N (141 if the output is
closed).
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Sequence

from aiokafka_lite import __version__
from aiokafka_lite._settings import nearest
from aiokafka_lite.cli import completion
from aiokafka_lite.cli.commands import COMMANDS, listing
from aiokafka_lite.cli.problems import CommandError, UsageError, plain_text
from aiokafka_lite.cli.signals import Interrupted
from aiokafka_lite.errors import KafkaError


def program_name() -> str:
    called = os.path.basename(sys.argv[0])
    return "aiokafka-lite" if called == "aiokafka-lite" else "python -m aiokafka_lite"


def build_parser(*words: str) -> argparse.ArgumentParser:
    """Build the parser for a command and its next word. Of other commands it has only the names."""
    parser = argparse.ArgumentParser(
        prog=program_name(),
        usage="%(prog)s [-h] [--version] [COMMAND …]",
        description="Commands of aiokafka_lite, the asyncio consumer for Apache Kafka. Without a "
        "command, print the installed versions.",
        epilog=f"{listing()}\n\nEach has --help.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"aiokafka_lite {__version__}")
    subparsers = parser.add_subparsers(
        prog=program_name(), dest="command", metavar="COMMAND", help=argparse.SUPPRESS
    )
    for name, command in COMMANDS.items():
        if name in words[:1]:
            command.add_to(subparsers, *words[1:])
        else:
            subparsers.add_parser(name, add_help=False)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    if completion.ASKED in os.environ:
        completion.offer(build_parser(*_command(completion.words_to_complete())))
    _open_closed_streams()
    arguments = sys.argv[1:] if arguments is None else arguments
    words = _command(arguments)
    if words and words[0] not in COMMANDS:
        return _fail(
            f"there is no command {words[0]}{nearest(words[0], COMMANDS)}\n"
            f"(usage: {program_name()} --help)",
            2,
        )

    def run() -> int:
        options, rest = build_parser(*words).parse_known_args(arguments)
        if rest:
            raise UsageError(f"unrecognized arguments: {' '.join(rest)}")
        if options.command is None:
            # Imported here, because it searches for packages.
            from aiokafka_lite.cli.overview import overview

            print(overview())
            return 0
        code: int = options.run(options)
        return code

    return exit_code_of(run, " ".join([program_name(), *words[:1], "--help"]))


def exit_code_of(run: Callable[[], int], help_command: str) -> int:
    """Return the exit code of the process, and print an error in one line."""
    try:
        logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
        code = run()
        sys.stdout.flush()
        return code
    except UsageError as error:
        return _fail(f"{error}\n(usage: {help_command})", 2)
    except (CommandError, KafkaError) as error:
        return _fail(plain_text(error))
    except Interrupted as interruption:
        print(f"\n{interruption}", file=sys.stderr)
        return interruption.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of the output is closed (`| head`), so the rest is dropped.
        _drop_output()
        return 141
    except OSError as error:  # as of a full disk
        _drop_output()
        return _fail(f"cannot write the output: {error.strerror or error}")


def _open_closed_streams() -> None:
    """Replace standard streams that the caller has closed (`<&-`) by empty ones."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _command(arguments: Sequence[str]) -> Sequence[str]:
    """Return the command and the next word, if any. Options before the command have no value."""
    names = [index for index, each in enumerate(arguments) if not each.startswith("-")]
    return arguments[names[0] : names[0] + 2] if names else ()


def _fail(message: str, code: int = 1) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code
