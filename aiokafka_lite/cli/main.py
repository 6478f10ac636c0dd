"""Parses the command line, runs the command, and turns errors into a message and an exit code.

Exit codes: 0 done, 1 failed, 2 wrong usage, 128 + N ended by signal N (141 if the output is
closed).
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokafka_lite import __version__
from aiokafka_lite._settings import nearest
from aiokafka_lite.cli.arguments import Declaration, Subparsers
from aiokafka_lite.cli.problems import (
    CommandError,
    Interrupted,
    MissingExtraError,
    UsageError,
    plain_text,
)
from aiokafka_lite.errors import KafkaError

if TYPE_CHECKING:
    from aiokafka_lite.client.blocking_cluster import BlockingCluster


class Command(NamedTuple):
    """A command. `COMMANDS` of its module, imported only to run it, declares it by its name.

    `actions` are following words, which the module declares as "NAME ACTION".
    """

    name: str
    summary: str
    module: str
    actions: tuple[str, ...] = ()

    def add_to(self, subparsers: Subparsers, next_word: str = "") -> None:
        module = importlib.import_module(f"aiokafka_lite.cli.{self.module}")
        declared: Mapping[str, Declaration] = module.COMMANDS
        prefix, names = "", [self.name]
        if next_word in self.actions or self.name not in declared:
            parser = subparsers.add_parser(self.name)
            subparsers = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
            prefix, names = f"{self.name} ", [*self.actions]
        for name in names:
            declaration = declared[prefix + name]
            parser = declaration.add_to(subparsers, name)
            if declaration.connects:
                # Imported here, because it takes a while.
                from aiokafka_lite.cli.connecting import add_options

                add_options(parser, has_config="\n--config " not in declaration.text)


SECTIONS: Final[dict[str, Sequence[Command]]] = {
    "inspect a cluster": (
        Command(
            "topics",
            "list topics (or change topics: topics create, delete, config)",
            "topics",
            actions=("create", "delete", "config"),
        ),
        Command("describe", "show partitions, offsets and settings of topics", "topics"),
        Command("cat", "print the records of a topic", "cat"),
        Command("tail", "print the last records of a topic, then new records", "cat"),
        Command("groups", "list consumer groups and share groups", "groups"),
        Command("lag", "show the lag of a group per partition", "groups"),
        Command("reset", "change the committed offsets of a consumer group", "groups"),
        Command(
            "share",
            "change share groups: share reset, delete, config",
            "share",
            actions=("reset", "delete", "config"),
        ),
        Command("produce", "produce records, one per line", "produce"),
        Command(
            "dlq",
            "dead letters: dlq list, show, replay, purge",
            "dlq",
            actions=("list", "show", "replay", "purge"),
        ),
        Command("replay", "write dead letters back to their original topics: dlq replay", "dlq"),
    ),
    "process records": (
        Command("run", "call a Python function for every record, in several processes", "run"),
    ),
    "for the shell": (Command("completion", "print a shell's completion script", "main"),),
    "a broker for tests": (Command("broker", "run the embedded broker until Ctrl-C", "broker"),),
}
"""The commands by the heading under which help lists them."""

LISTED: Final = {each.name: each for section in SECTIONS.values() for each in section}


def listing() -> str:
    width = max(map(len, LISTED))
    lines: list[str] = []
    for heading, commands in SECTIONS.items():
        lines += ["", f"{heading}:"]
        lines += [f"  {each.name:<{width}}  {each.summary}" for each in commands]
    return "\n".join(lines[1:])


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
    for name, command in LISTED.items():
        if name in words[:1]:
            command.add_to(subparsers, *words[1:])
        else:
            subparsers.add_parser(name, add_help=False)
    return parser


def decoder_note() -> str | None:
    from aiokafka_lite.records.decoders import COMPILED, PLAIN_DECODER_NOTE

    return None if COMPILED else f"Note: {PLAIN_DECODER_NOTE}"


def overview() -> str:
    """Return the output without a command."""
    # Imported here, because this searches for packages.
    from aiokafka_lite.cli.loops import LoopKind, available_loops

    loops, note = ", ".join(available_loops()), decoder_note()
    if LoopKind.UVLOOP not in available_loops():
        loops += " (faster with uvloop: pip install 'aiokafka-lite[uvloop]')"
    text = f"""\
aiokafka_lite {__version__}: the asyncio consumer for Apache Kafka

  decoder  {"compiled" if note is None else "plain Python"}
  Python   {platform.python_version()} ({platform.python_implementation()})
  loops    {loops}

{listing()}

Each has --help."""
    return text if note is None else f"{text}\n\n{note}"


def main(arguments: Sequence[str] | None = None) -> int:
    if ASKED in os.environ:
        offer(build_parser(*_command(os.environ.get("COMP_LINE", "").split()[1:])))
    _open_closed_streams()
    arguments = sys.argv[1:] if arguments is None else arguments
    words = _command(arguments)
    if words and words[0] not in LISTED:
        return _fail(
            f"there is no command {words[0]}{nearest(words[0], LISTED)}\n"
            f"(usage: {program_name()} --help)",
            2,
        )

    def run() -> int:
        options, rest = build_parser(*words).parse_known_args(arguments)
        # argparse finds no `[TOPIC ...]` after options if an argument precedes these.
        if "later" in options and not any(each.startswith("-") for each in rest):
            getattr(options, options.later).extend(rest)
        elif rest:
            raise UsageError(f"unrecognized arguments: {' '.join(rest)}")
        if options.command is None:
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


# --- Completion, by argcomplete ---------------------------------------------------------------
PROGRAM: Final = "aiokafka-lite"
SHELLS: Final = ("bash", "zsh", "fish", "tcsh", "powershell")
# The longest wait for a completion.
TIMEOUT_S: Final = 2.0
# The shell sets it for a completion.
ASKED: Final = "_ARGCOMPLETE"


_COMPLETION: Final = f"""
Print a shell script that completes commands, options, and names of topics and groups. The script
reads the names from the cluster given on the command line, in the environment or in a properties
file.

arguments:
SHELL  which shell: {", ".join(SHELLS)}

examples:
  eval "$(aiokafka-lite completion bash)"      in ~/.bashrc
  eval "$(aiokafka-lite completion zsh)"       in ~/.zshrc, after compinit
  aiokafka-lite completion fish | source       in config.fish
"""


def print_script(options: argparse.Namespace) -> int:
    try:
        from argcomplete.shell_integration import shellcode
    except ModuleNotFoundError:
        raise MissingExtraError("argcomplete", extra="cli") from None
    print(shellcode([PROGRAM], shell=options.shell))
    return 0


def offer(parser: argparse.ArgumentParser) -> None:
    """Print the completions for the shell and exit. Has no effect without argcomplete."""
    try:
        import argcomplete
    except ModuleNotFoundError:
        return
    _set_completers(parser)
    argcomplete.autocomplete(parser)


def _set_completers(parser: argparse.ArgumentParser) -> None:
    names = {"topic": _topics, "topics": _topics, "group": _groups, "groups": _groups}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                _set_completers(subparser)
        elif action.dest in names:
            action.completer = _of_cluster(names[action.dest])  # type: ignore[attr-defined]


def _of_cluster(
    ask: Callable[[BlockingCluster], list[str]],
) -> Callable[..., list[str]]:
    """Return a completer of names. It returns no names if the cluster does not respond in time."""

    def complete(*, parsed_args: argparse.Namespace, **_: object) -> list[str]:
        from aiokafka_lite.cli.connecting import connecting

        parsed_args.timeout = TIMEOUT_S
        try:
            with connecting(parsed_args).cluster() as cluster:
                return ask(cluster)
        except (AttributeError, CommandError, KafkaError):  # or a command without a cluster
            return []

    return complete


def _topics(cluster: BlockingCluster) -> list[str]:
    topics = cluster.look(None).topics.values()
    return [topic.name for topic in topics if not topic.is_internal]


def _groups(cluster: BlockingCluster) -> list[str]:
    from aiokafka_lite.cli.groups import list_groups

    return [each.group_id for each in list_groups(cluster)]


COMMANDS: Final = {
    "completion": Declaration(print_script, _COMPLETION, {"shell": SHELLS}, connects=False)
}
