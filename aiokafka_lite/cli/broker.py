"""`python -m aiokafka_lite broker`: run the embedded broker alone, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import importlib.util
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from aiokafka_lite.broker import Broker
from aiokafka_lite.broker.config import BrokerConfig
from aiokafka_lite.cli import broker_security, loops
from aiokafka_lite.cli.arguments import Subparsers, positive_int
from aiokafka_lite.cli.load import Loaded, file_size, load_file
from aiokafka_lite.cli.output import counted, file_progress
from aiokafka_lite.cli.problems import CommandError, MissingExtraError
from aiokafka_lite.cli.signals import Interrupted

# The numeric settings without an option of their own.
_SETTINGS: Final = tuple(
    field.name
    for field in dataclasses.fields(BrokerConfig)
    if field.type in ("int", "PositiveInt", "float")
    and field.name not in ("nodes", "port", "num_partitions")
)


class TopicOption(NamedTuple):
    """A topic to create."""

    name: str
    partitions: int | None = None
    configs: Mapping[str, str] = MappingProxyType({})


def topic_option(text: str) -> TopicOption:
    """Parse `name`, `name:partitions` or `name:partitions:config=value,…`.

    Values may contain commas (cleanup.policy=compact,delete): only a comma before `config=`
    separates.
    """
    name, _, rest = text.partition(":")
    partitions, _, config_text = rest.partition(":")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} has no topic name: write name:partitions")
    configs: dict[str, str] = {}
    for each in re.split(r",(?=[a-z.]+=)", config_text) if config_text else ():
        config, equals, value = each.partition("=")
        if not (config and equals):
            raise argparse.ArgumentTypeError(
                f"{each!r} in {text!r} is not a topic setting: write "
                "name:partitions:retention.ms=-1,cleanup.policy=compact"
            )
        configs[config] = value
    return TopicOption(name, positive_int(partitions) if partitions else None, configs)


def port_number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: write a number from 0 to 65535")
    return int(text)


def setting_option(text: str) -> tuple[str, int | float]:
    name, _, value = text.partition("=")
    if name not in _SETTINGS:
        raise argparse.ArgumentTypeError(
            f"there is no setting {name!r}. The settings are {_SETTINGS}"
        )
    try:
        return name, int(value) if value.isdecimal() else float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is not a number: write {name}=1") from None


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "broker",
        description=(
            "Run a Kafka broker for tests and local development, until Ctrl-C. The broker accepts "
            "clients without a password unless security options are given, and its nodes share "
            "one process: do not use it in production."
        ),
    )
    broker_security.add_options(parser)
    parser.add_argument(
        "--nodes",
        type=positive_int,
        default=1,
        metavar="N",
        help="the number of nodes in the cluster, each with its own port (default: %(default)s)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="keep topics, records and committed offsets in this directory (default: keep them in "
        "memory)",
    )
    parser.add_argument(
        "--topic",
        type=topic_option,
        action="append",
        default=[],
        metavar="NAME:PARTITIONS[:CONFIG=VALUE,…]",
        help="create a topic unless it exists (repeatable)",
    )
    parser.add_argument(
        "--load",
        type=Path,
        metavar="FILE.jsonl",
        help="load the records of this file into empty topics. Its lines are like "
        '{"topic": "orders", "key": "42", "value": {"amount": 3}, "headers": {}, "partition": 0, '
        '"timestamp": 1767225600000}, with {"base64": "…"} for binary data',
    )
    parser.add_argument(
        "--num-partitions",
        type=positive_int,
        default=1,
        metavar="N",
        help=(
            "the number of partitions of a new topic, unless the request sets it (default: "
            "%(default)s)"
        ),
    )
    parser.add_argument(
        "--no-auto-create",
        action="store_true",
        help=("do not create a missing topic when a client first uses it"),
    )
    status = parser.add_mutually_exclusive_group()
    status.add_argument(
        "--status-port",
        type=port_number,
        metavar="PORT",
        help="the port of the status page on 127.0.0.1 (default: a free port)",
    )
    status.add_argument("--no-status", action="store_true", help="serve no status page")
    parser.add_argument(
        "--loop",
        type=loops.loop_kind,
        choices=list(loops.LoopKind),
        default=loops.LoopKind.ASYNCIO,
        help="the event loop to run on (default: %(default)s)",
    )
    parser.add_argument(
        "--set",
        type=setting_option,
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help="any other numeric setting of the broker, such as log_cleaner_backoff_ms (repeatable)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    try:
        loops.run(_serve(options), options.loop)
    except Interrupted:
        print("\nbroker stopped", flush=True)
    return 0


async def _serve(options: argparse.Namespace) -> None:
    security = broker_security.security_of(options)
    async with _broker(options, security) as broker:
        for topic in options.topic:
            if not broker.has_topic(topic.name):
                broker.create_topic(topic.name, topic.partitions, topic.configs)
        loaded = None
        if options.load is not None:
            title = f"Loading {options.load.name}"
            with file_progress(title, file_size(options.load)) as on_progress:
                loaded = await load_file(broker, options.load, on_progress)
        credentials = broker_security.write_credentials(broker, security)
        # Clients may produce after the lines below, and must not lose records with the topic.
        await broker.disk.settled()
        async with serve_status(
            broker, is_wanted=not options.no_status, port=options.status_port
        ) as status:
            where = broker_security.endpoints_text(broker, security)
            place = f"data in {options.data}" if options.data else "data in memory"
            _say(
                f"TEST ONLY broker listening on {where}, {place}, not for production. Ctrl-C "
                "stops it."
            )
            for line in credentials:
                _say(line)
            if loaded is not None:
                _report(loaded, options.load)
            if status is not None:
                _say(f"status: {status}")
            await asyncio.Event().wait()


def _broker(options: argparse.Namespace, security: broker_security.BrokerSecurity) -> Broker:
    try:
        return Broker(
            nodes=options.nodes,
            listeners=security.listeners,
            users=security.users,
            ssl_client_auth=security.client_auth,
            oauth_allow_unsecured_tokens=options.oauth_allow_unsecured_tokens,
            allow_cleartext_credentials=options.allow_cleartext_credentials,
            data_dir=options.data,
            num_partitions=options.num_partitions,
            auto_create_topics=not options.no_auto_create,
            allow_remote=options.allow_remote,
            **dict(options.set),
        )
    except ValueError as error:
        raise CommandError(str(error)) from None


def _report(loaded: Loaded, path: Path) -> None:
    for topic, count in loaded.counts.items():
        _say(f"loaded {counted(count, 'record')} from {path} into {topic}")
    for topic in loaded.left_alone:
        _say(f"loaded no records into {topic}, because this topic already has records")


@asynccontextmanager
async def serve_status(
    broker: Broker, *, is_wanted: bool, port: int | None
) -> AsyncIterator[str | None]:
    """Serve the status page, and yield a text about it, or None if it is not wanted.

    `port` None is a free port. Then a missing aiohttp is no error.
    """
    if not is_wanted:
        yield None
        return
    if importlib.util.find_spec("aiohttp") is None:
        if port is not None:
            raise MissingExtraError("aiohttp", extra="http")
        yield "off, because aiohttp is not installed: pip install 'aiokafka-lite[http]'"
        return
    # Imported here, because it imports aiohttp.
    from aiokafka_lite.cli.status.page import StatusPage

    async with StatusPage(broker, port=port or 0) as page:
        yield page.url


def _say(line: str) -> None:
    print(line, flush=True)
