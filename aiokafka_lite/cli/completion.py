"""`aiokafka-lite completion SHELL`, and the answers when a user presses Tab.

argcomplete runs this program for names of topics and groups in the cluster of the command line.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from aiokafka_lite.cli.arguments import Subparsers, new_parser
from aiokafka_lite.cli.problems import CommandError, MissingExtraError
from aiokafka_lite.errors import KafkaError

if TYPE_CHECKING:
    from aiokafka_lite.client.blocking_cluster import BlockingCluster

PROGRAM: Final = "aiokafka-lite"
SHELLS: Final = ("bash", "zsh", "fish", "tcsh", "powershell")
# The longest wait for a completion.
TIMEOUT_S: Final = 2.0
# The shell sets it for a completion.
ASKED: Final = "_ARGCOMPLETE"


def add_parser(subparsers: Subparsers) -> None:
    parser = new_parser(
        subparsers,
        "completion",
        "Print a shell script that completes commands, options, and names of topics and "
        "groups.\nThe script reads the names from the cluster given on the command line, in the "
        "environment or in a properties file.",
        "examples:\n"
        '  eval "$(aiokafka-lite completion bash)"      in ~/.bashrc\n'
        '  eval "$(aiokafka-lite completion zsh)"       in ~/.zshrc, after compinit\n'
        "  aiokafka-lite completion fish | source       in config.fish\n",
    )
    parser.add_argument("shell", choices=SHELLS, help="which shell")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
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
    names: dict[str, Callable[[BlockingCluster], list[str]]] = {
        "topic": _topics,
        "topics": _topics,
        "group": _groups,
    }
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
    from aiokafka_lite.cli.groups.requests import list_groups

    return [each.group_id for each in list_groups(cluster)]


def words_to_complete() -> list[str]:
    return os.environ.get("COMP_LINE", "").split()[1:]
