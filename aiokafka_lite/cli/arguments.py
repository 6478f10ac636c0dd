"""Argument types that the commands share; each says what is wrong with a bad value."""

from __future__ import annotations

import argparse

DEFAULT_PORT = 9092


def positive_int(text: str) -> int:
    """Parse a whole number of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return number


def positive_int32(text: str) -> int:
    """Parse a whole number of at least 1 that fits into 4 bytes, as numbers of partitions do."""
    number = positive_int(text)
    if number >= 1 << 31:
        raise argparse.ArgumentTypeError(f"{text!r} is too large: the limit is {(1 << 31) - 1:,}")
    return number


def positive_int16(text: str) -> int:
    """Parse a whole number of at least 1 that fits into 2 bytes, as numbers of replicas do."""
    number = positive_int(text)
    if number >= 1 << 15:
        raise argparse.ArgumentTypeError(f"{text!r} is too large: the limit is {(1 << 15) - 1:,}")
    return number


def positive_seconds(text: str) -> float:
    """Parse a number of seconds above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number


def host_and_port(text: str) -> tuple[str, int]:
    """Parse `host:port`, `[ipv6]:port` or `host` (with Kafka's port 9092)."""
    address = text.strip()
    host, colon, port_text = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port_text = address, str(DEFAULT_PORT)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or "/" in host or not port_text.isdecimal() or int(port_text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not an address: write host:port")
    return host, int(port_text)


def name_and_value(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE; the value may be anything."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        problem = f"{name!r} has no value" if name.strip() else "the name is missing"
        raise argparse.ArgumentTypeError(f"{problem}: write NAME=VALUE")
    return name.strip(), value


def partition_numbers(text: str) -> tuple[int, ...]:
    """Parse numbers of partitions: "3", "0,2" or "0,4-7"."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        ends = (first, last if dash else first)
        if not all(each.isdecimal() and each.isascii() and len(each) < 10 for each in ends):
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a list of partitions, such as 3 or 0,4-7"
            )
        low, high = map(int, ends)
        if high < low:
            raise argparse.ArgumentTypeError(
                f"{text!r} contains a range that ends before it begins: write {high}-{low}"
            )
        if high - low > 100_000:
            raise argparse.ArgumentTypeError(
                f"{text!r} contains a range that is too large: the limit is 100,000 partitions"
            )
        numbers += range(low, high + 1)
    return tuple(numbers)


def new_parser(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    description: str,
    examples: str,
) -> argparse.ArgumentParser:
    """Add the parser of a command, whose help ends with examples."""
    return subparsers.add_parser(
        name,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
