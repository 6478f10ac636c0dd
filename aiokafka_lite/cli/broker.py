"""`python -m aiokafka_lite broker`: run the embedded broker alone, until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from aiokafka_lite.broker import Broker
from aiokafka_lite.cli import loops
from aiokafka_lite.cli.arguments import host_and_port, positive_int

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

DEFAULT_LISTEN: Final = "127.0.0.1:9092"


class TopicOption(NamedTuple):
    """A topic to create: `name` or `name:partitions`."""

    name: str
    partitions: int | None


def topic_option(text: str) -> TopicOption:
    """Parse `name` or `name:partitions`."""
    name, colon, partitions = text.partition(":")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} names no topic: write name:partitions")
    return TopicOption(name, positive_int(partitions) if colon else None)


def add_parser(subparsers: Subparsers) -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "broker",
        help="run the embedded broker until Ctrl-C",
        description=(
            "Runs a one-node Kafka broker for tests and laptops, until Ctrl-C. It asks nobody for "
            "a password and replicates nothing: it is not for production."
        ),
    )
    parser.add_argument(
        "--listen",
        type=host_and_port,
        default=DEFAULT_LISTEN,
        metavar="HOST:PORT",
        help="where to listen; port 0 takes a free one (default: %(default)s)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="keep topics, records and committed offsets here (default: in memory)",
    )
    parser.add_argument(
        "--topic",
        type=topic_option,
        action="append",
        default=[],
        metavar="NAME:PARTITIONS",
        help="create a topic, unless it is there; may be repeated",
    )
    parser.add_argument(
        "--num-partitions",
        type=positive_int,
        default=1,
        metavar="N",
        help="of topics created without saying how many (default: %(default)s)",
    )
    parser.add_argument(
        "--no-auto-create", action="store_true", help="create no topic just because it is asked for"
    )
    parser.add_argument(
        "--allow-remote",
        action="store_true",
        help="listen on an address that other machines can reach; anyone who can may read, write "
        "and delete everything",
    )
    parser.add_argument(
        "--loop",
        type=loops.LoopKind,
        choices=list(loops.LoopKind),
        default=loops.LoopKind.ASYNCIO,
        help="the event loop to run on (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the broker until SIGINT or SIGTERM, which is how it is meant to end.

    Raises:
        KafkaError: It cannot start; the message says what to do.
    """
    try:
        loops.run(_serve(options), options.loop)
    except loops.Interrupted:
        print("\nbroker stopped", flush=True)
    return 0


async def _serve(options: argparse.Namespace) -> None:
    host, port = options.listen
    async with Broker(
        host=host,
        port=port,
        data_dir=options.data,
        num_partitions=options.num_partitions,
        auto_create_topics=not options.no_auto_create,
        allow_remote=options.allow_remote,
    ) as broker:
        for topic in options.topic:
            if not broker.has_topic(topic.name):
                broker.create_topic(topic.name, topic.partitions)
        # Whoever reads the line below may produce at once, and must not lose it with the topic.
        await broker.disk.settled()
        place = f"data in {options.data}" if options.data else "data in memory"
        print(
            f"broker listening on {broker.bootstrap_servers}, {place}; "
            f"for tests only, not for production. Ctrl-C stops it.",
            flush=True,
        )
        await asyncio.Event().wait()
