"""The command `run`: a consumer's handlers as a program, in one process or several."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

from aiokafka_lite._chance import UNSEEDED
from aiokafka_lite._settings import nearest
from aiokafka_lite.cli import loops
from aiokafka_lite.cli.arguments import Declaration, host_and_port
from aiokafka_lite.cli.connecting import connecting
from aiokafka_lite.cli.problems import CommandError, Interrupted, MissingExtraError, UsageError
from aiokafka_lite.errors import KafkaError, UnknownTopicOrPartitionError

if TYPE_CHECKING:
    from aiokafka_lite import AIOKafkaConsumer
    from aiokafka_lite.processing import RunSummary
    from aiokafka_lite.structs import OffsetAndMetadata, TopicPartition

log = logging.getLogger(__name__)

LEVELS: Final = ("debug", "info", "warning", "error")
FORMAT: Final = "%(levelname)s %(name)s: %(message)s"

_RUN: Final = """
Call a handler for every record of topics, with retries and dead letters, until SIGTERM or Ctrl-C.
Then no further records are processed, running handlers may finish, and offsets are committed. A
second signal cancels the handlers.

arguments:
MODULE:HANDLER
  the handler: an async function of a record, a dict of them by topic, or a Router. The module is
  searched in the current directory, too
[TOPIC ...]  topics (default: those of a dict or Router)
-g, --group GROUP  the group that commits the offsets of finished records
--start WHERE
  where the group starts without committed offsets: earliest or latest (default: =earliest)
--isolation-level LEVEL
  read_committed omits the records of open and aborted transactions (default: =read_uncommitted)
--concurrency N  the most concurrent calls of the handler in a process (default: =100)
--order ORDER
  what is processed one after the other: the records of a key, of a partition, or none (default:
  =key)
--batch-size N  call the handler with lists of up to N records
--handler-timeout SECONDS  cancel handler calls that take longer, which counts as a failure
--retry N  the attempts per record (default: =1)
--dead-letter TOPIC
  write records without attempts left to this topic (default: stop with the handler's error)
--until WHERE  end: process the records that there are now, print a summary, and exit
--processes N  how many processes share the group's partitions (default: =1)
--name NAME
  a name under which the program restarts: its processes have the group instance ids NAME-0 and so
  on, and keep their partitions while it restarts (default with several processes: a new name for
  each start, and they leave the group at the end)
--web HOST:PORT  serve /health, /metrics and /scale, and for a single process the consumer's page
--progress  show the progress, if the standard error is a terminal (only with one process)
--log-level LEVEL  debug, info, warning or error (default: =info)
--loop NAME  the event loop to run on: asyncio or uvloop (default: =asyncio)

examples:
  aiokafka-lite run billing:handle orders --group billing
  aiokafka-lite run billing:handle orders -g billing --processes 4 --retry 5 --dead-letter dlq
  aiokafka-lite run billing:router -g backfill --until end
"""


def run(options: argparse.Namespace) -> int:
    if options.group is None:
        raise UsageError("give the group that commits offsets: --group GROUP")
    if options.progress and options.processes > 1:
        raise UsageError("--progress shows a single process: leave out --processes")
    logging.getLogger().setLevel(options.log_level.upper())
    connecting(options)  # checks them, and asks for a password, once for all processes
    options.instance = options.name
    if options.processes > 1:
        from aiokafka_lite.cli.processes import Supervisor

        # Of this start: other programs of this machine have other members.
        token = UNSEEDED.unguessable_bytes(4).hex()
        options.instance = options.instance or f"{socket.gethostname()}-{token}"
        return loops.run(Supervisor(options).run(), options.loop, handles_signals=False)
    handler = load(options.handler)
    summary = loops.run(_work_alone(options, handler), options.loop, handles_signals=False)
    if summary is None:
        return 0
    print(summary)
    # Only SIGTERM ends `run` before the end of the backfill, and without an error.
    return 0 if summary.is_complete else Interrupted(signal.SIGTERM).exit_code


def load(text: str) -> object:
    """Import a handler, `module:name`.

    Raises:
        UsageError: The text has another form.
        CommandError: There is no such module or name, or its import has failed.
    """
    module_name, colon, name = text.partition(":")
    if not (module_name and colon and name):
        raise UsageError(f"{text!r} is not a handler: write MODULE:HANDLER, such as billing:handle")
    sys.path.insert(0, os.getcwd())
    try:
        found: object = importlib.import_module(module_name)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f" ({last.filename}, line {last.lineno})"
        if isinstance(error, SyntaxError):
            place = f" ({error.filename}, line {error.lineno})"
        elif last.filename.startswith("<"):  # it is not found
            place = ""
        text = f"cannot import {module_name}: {type(error).__name__}: {error}{place}"
        raise CommandError(text) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise CommandError(f"{module_name} has no {name}{nearest(part, dir(found))}")
        found = getattr(found, part)
    return found


# --- A process ------------------------------------------------------------------------------
def is_temporary(error: object) -> bool:
    """Whether a process that ends by an error starts again, if there are several."""
    # It has waited for a missing topic already.
    is_missing = isinstance(error, UnknownTopicOrPartitionError)
    return isinstance(error, KafkaError) and error.retriable and not is_missing


def consumer_of(options: argparse.Namespace, number: int, handler: object) -> AIOKafkaConsumer:
    """Create the consumer of a process. Processes of a named program stay in the group."""
    from aiokafka_lite import AIOKafkaConsumer
    from aiokafka_lite.processing import Router

    class LeavingConsumer(AIOKafkaConsumer[Any, Any]):
        """A static member that leaves the group, unless its process starts again."""

        async def stop(
            self, timeout: float = 10.0, *, leave: bool | None = True
        ) -> dict[TopicPartition, OffsetAndMetadata]:
            return await super().stop(timeout, leave=leave)

        async def __aexit__(self, *failure: Any) -> None:
            await (super().__aexit__(*failure) if is_temporary(failure[1]) else self.stop())

    try:
        router = Router(handler) if isinstance(handler, Mapping) else handler
        names = router.names if isinstance(router, Router) else None
        return connecting(options).member(
            AIOKafkaConsumer if options.name == options.instance else LeavingConsumer,
            *(options.topics or names or ()),  # now, because its start fails if one is missing
            group_id=options.group,
            group_instance_id=options.instance and f"{options.instance}-{number}",
            auto_offset_reset=options.start,
            isolation_level=options.isolation_level,
        )
    except (TypeError, ValueError) as error:
        raise CommandError(f"{options.handler}: {error}") from error


async def serve(stack: AsyncExitStack, options: argparse.Namespace, shown: Any) -> None:
    """Serve the page of a consumer, or of a list of workers."""
    if options.web is None:
        return
    host, port = options.web
    # By name: extras are above the commands.
    web = importlib.import_module("aiokafka_lite.extras.web.app")
    try:
        pages = web.ProcessPages(shown) if isinstance(shown, list) else shown
        url: str = await stack.enter_async_context(web.serve(pages, host=host, port=port))
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "aiohttp", extra="web") from error
    print(f"page: {url}", file=sys.stderr)


async def handle_all(
    consumer: AIOKafkaConsumer, handler: Any, options: argparse.Namespace, **more: Any
) -> RunSummary | None:
    run: Any = consumer.run  # overloads cannot tell what the handler is
    async with consumer:
        try:
            summary: RunSummary | None = await run(
                handler,
                concurrency=options.concurrency,
                order=None if options.order == "none" else options.order,
                batch_size=options.batch_size,
                timeout_s=options.handler_timeout,
                retry=options.retry,
                dead_letter=options.dead_letter,
                until=options.until,
                **more,
            )
        except KafkaError:
            raise
        except Exception as error:
            has_handled = consumer.metrics()["processing_failed_total"] != 0
            is_wrong_use = isinstance(error, (TypeError, ValueError)) and not has_handled
            if not is_wrong_use:
                log.exception("the command ends, because run() has failed")
            name = "" if is_wrong_use else f"{type(error).__name__}: "
            raise CommandError(f"{options.handler}: {name}{error}") from error
    return summary


async def _work_alone(options: argparse.Namespace, handler: object) -> RunSummary | None:
    consumer = consumer_of(options, 0, handler)
    async with AsyncExitStack() as stack:
        await serve(stack, options, consumer)
        return await handle_all(consumer, handler, options, progress=options.progress)


COMMANDS: Final = {
    "run": Declaration(
        run,
        _RUN,
        {
            "start": ("earliest", "latest"),
            "isolation_level": ("read_uncommitted", "read_committed"),
            "order": ("key", "partition", "none"),
            "until": ("end",),
            "web": host_and_port,
            "log_level": LEVELS,
            "loop": loops.LoopKind,
        },
    )
}
