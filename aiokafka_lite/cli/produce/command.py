"""`aiokafka-lite produce TOPIC`: records from the standard input."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from aiokafka_lite import producing
from aiokafka_lite.cli import loops
from aiokafka_lite.cli.arguments import name_and_value, new_parser
from aiokafka_lite.cli.asking import ask_for_topic
from aiokafka_lite.cli.connecting import Connecting, add_options, connecting
from aiokafka_lite.cli.output import counted
from aiokafka_lite.cli.problems import UsageError
from aiokafka_lite.cli.produce.lines import (
    LineReader,
    ProducerRecord,
    record_of_json,
    record_of_text,
)
from aiokafka_lite.cli.produce.sending import LineSender
from aiokafka_lite.cli.text import unescaped
from aiokafka_lite.records.codec import Codec

if TYPE_CHECKING:
    from aiokafka_lite.cli.commands import Subparsers

_DESCRIPTION: Final = """\
Produce records from the standard input, one per line. Each record is written once and in order,
even if brokers fail. A key selects the same partition as in Java's producer. For records without a
key, the partition changes after each batch."""
_EXAMPLES: Final = """\
examples:
  echo hello | aiokafka-lite produce greetings
  aiokafka-lite produce orders -K: < orders.txt       key:value in each line
  aiokafka-lite produce orders --key 42 --header trace=a1 < order.json -d '\\0'
  aiokafka-lite cat orders --json -b prod:9092 | aiokafka-lite produce orders --json
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command `produce`."""
    parser = new_parser(subparsers, "produce", _DESCRIPTION, _EXAMPLES)
    parser.add_argument("topic", metavar="TOPIC", help="the topic, which must exist")
    parser.add_argument(
        "-K", "--key-separator", metavar="TEXT", help="the text between key and value in a line"
    )
    parser.add_argument("--key", metavar="TEXT", help="the key of every record")
    parser.add_argument(
        "-H",
        "--header",
        type=name_and_value,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a header of every record (repeatable)",
    )
    parser.add_argument(
        "-p", "--partition", type=int, metavar="N", help="the partition of every record"
    )
    parser.add_argument(
        "-j",
        "--json",
        action="store_true",
        help='read lines of JSON objects, as `cat --json` prints them: {"key": "42", "value": '
        '{"amount": 3}, "headers": {}, "partition": 0, "timestamp": …}, with {"base64": '
        '"…"} for binary data',
    )
    parser.add_argument(
        "--null", metavar="TEXT", help="write null instead of a key or value that equals this text"
    )
    parser.add_argument(
        "-d",
        "--delimiter",
        default="\\n",
        metavar="TEXT",
        help=r"the text between records, such as '\0' (default: '\n')",
    )
    parser.add_argument(
        "-z",
        "--compression",
        choices=[codec.name.lower() for codec in Codec],
        default="none",
        help="compress batches (default: %(default)s)",
    )
    add_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run `produce`; returns 0."""
    if options.json and (options.key_separator is not None or options.null is not None):
        raise UsageError(
            "--json takes keys and nulls from the JSON objects: leave out --key-separator and "
            "--null"
        )
    if options.key is not None and options.key_separator is not None:
        raise UsageError("--key and --key-separator both set the key: leave one out")
    if not unescaped(options.delimiter) or options.key_separator == "":
        raise UsageError("a delimiter or separator must have at least one character")
    where = connecting(options)
    with where.cluster() as cluster:
        ask_for_topic(cluster, options.topic)
    with _without_warnings():
        count = loops.run(_produce(options, where))
    if sys.stderr.isatty():
        print(f"{counted(count, 'record')} to {options.topic}", file=sys.stderr)
    return 0


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Keep the producer's warnings to itself: of lines that are lost, the error says it."""
    log = logging.getLogger(producing.__name__)
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


async def _produce(options: argparse.Namespace, where: Connecting) -> int:
    """Produce all lines; returns how many there were."""
    reader = LineReader(sys.stdin.buffer, unescaped(options.delimiter))
    async with where.bulk_producer(options.compression, reader.interrupt) as producer:
        sender = LineSender(options.topic, reader, producer, _parser(options))
        await sender.run()
        return sender.written_count


def _parser(options: argparse.Namespace) -> Callable[[bytes], ProducerRecord | None]:
    """Return what makes a record of a line, with what the options say of every record.

    Of an empty line between objects it makes none.
    """
    separator = None if options.key_separator is None else unescaped(options.key_separator)
    null = None if options.null is None else options.null.encode()
    key = None if options.key is None else options.key.encode()
    headers = [(name, value.encode()) for name, value in options.header]

    def parse(line: bytes) -> ProducerRecord | None:
        if options.json:
            if not line.strip():
                return None
            record = record_of_json(line)
        else:
            record = record_of_text(line, key_separator=separator, null=null)
        if key is not None:
            record = record._replace(key=key)
        if options.partition is not None:
            record = record._replace(partition=options.partition)
        return record._replace(headers=[*record.headers, *headers]) if headers else record

    return parse
