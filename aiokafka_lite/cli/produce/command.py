"""`aiokafka-lite produce TOPIC`: records from the standard input."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, Final

from aiokafka_lite.cli.arguments import name_and_value, new_parser
from aiokafka_lite.cli.asking import ask_for_topic
from aiokafka_lite.cli.connecting import add_options, connecting
from aiokafka_lite.cli.output import counted
from aiokafka_lite.cli.problems import CommandError, LineProblem, UsageError
from aiokafka_lite.cli.produce.lines import lines_of, record_of_json, record_of_text
from aiokafka_lite.cli.produce.sending import ProducerRecord, Sender
from aiokafka_lite.cli.text import unescaped
from aiokafka_lite.records.codec import Codec

if TYPE_CHECKING:
    from aiokafka_lite.cli.commands import Subparsers

_DESCRIPTION: Final = """\
Produce records from the standard input, one a line. Each is there once and in order, also when
brokers fail meanwhile. A key decides on the partition as with Java's producer; records without one
go to one partition after the other, a batch at a time."""
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
    parser.add_argument("topic", metavar="TOPIC", help="the topic, which has to be there")
    parser.add_argument(
        "-K", "--key-separator", metavar="TEXT", help="what stands between key and value in a line"
    )
    parser.add_argument("--key", metavar="TEXT", help="the key of every record")
    parser.add_argument(
        "-H",
        "--header",
        type=name_and_value,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a header of every record; may be repeated",
    )
    parser.add_argument(
        "-p", "--partition", type=int, metavar="N", help="the partition of every record"
    )
    parser.add_argument(
        "-j",
        "--json",
        action="store_true",
        help="lines are objects as `cat --json` prints: "
        '{"key": "42", "value": {"amount": 3}, "headers": {}, "partition": 0, "timestamp": …}; '
        '{"base64": "…"} stands for bytes',
    )
    parser.add_argument("--null", metavar="TEXT", help="what stands for null, as key or value")
    parser.add_argument(
        "-d",
        "--delimiter",
        default="\\n",
        metavar="TEXT",
        help=r"what stands between records, as in '\0' (default: '\n')",
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
        raise UsageError("--json says itself what is key and what is null")
    if options.key is not None and options.key_separator is not None:
        raise UsageError("--key and --key-separator both say what the key is: leave one out")
    if not unescaped(options.delimiter) or options.key_separator == "":
        raise UsageError("a delimiter or separator has at least one character")
    with connecting(options).cluster() as cluster:
        topic = ask_for_topic(cluster, options.topic)
        sender = Sender(
            cluster,
            options.topic,
            codec=Codec.of(options.compression),
            partition_count=len(topic.partitions),
        )
        _produce(sender, options, sys.stdin.buffer)
    if sys.stderr.isatty():
        print(f"{counted(sender.count, 'record')} to {options.topic}", file=sys.stderr)
    return 0


def _produce(sender: Sender, options: argparse.Namespace, stream: BinaryIO) -> None:
    """Produce all lines; those ahead of one that is wrong are produced, too."""
    to_record = _parser(options)
    number = 0
    for line in lines_of(stream, unescaped(options.delimiter)):
        if line is None:
            sender.flush()
            continue
        number += 1
        if options.json and not line.strip():
            continue
        try:
            sender.add(to_record(line))
        except LineProblem as problem:
            sender.flush()
            raise CommandError(
                f"line {number}: {problem} (ahead of it {counted(sender.count, 'record')} "
                f"{'was' if sender.count == 1 else 'were'} produced)"
            ) from problem
    sender.flush()


def _parser(options: argparse.Namespace) -> Callable[[bytes], ProducerRecord]:
    """Return what makes a record of a line, with what the options say of every record."""
    separator = None if options.key_separator is None else unescaped(options.key_separator)
    null = None if options.null is None else options.null.encode()
    key = None if options.key is None else options.key.encode()
    headers = [(name, value.encode()) for name, value in options.header]

    def parse(line: bytes) -> ProducerRecord:
        if options.json:
            record = record_of_json(line)
        else:
            record = record_of_text(line, key_separator=separator, null=null)
        if key is not None:
            record = record._replace(key=key)
        if options.partition is not None:
            record = record._replace(partition=options.partition)
        return record._replace(headers=[*record.headers, *headers]) if headers else record

    return parse
