"""Argument types of the demos, in addition to those of the commands."""

from __future__ import annotations

import argparse

from aiokafka_lite._loopback import is_loopback
from aiokafka_lite.cli.arguments import host_and_port, parse_duration_ms


def bootstrap_servers(text: str) -> str:
    for address in text.split(","):
        host_and_port(address)
    return text


def loopback_address(text: str) -> tuple[str, int]:
    """Parse host:port of this machine: the embedded broker of a demo requires no password."""
    host, port = host_and_port(text)
    if not is_loopback(host):
        raise argparse.ArgumentTypeError(
            f"{host!r} may be reached from other machines, and the demo's broker requires no "
            "password: write 127.0.0.1, or use your own broker with --bootstrap"
        )
    return host, port


def duration_ms(text: str) -> int:
    try:
        return parse_duration_ms(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def positive_duration_ms(text: str) -> int:
    duration = duration_ms(text)
    if duration == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration above 0")
    return duration


def names(text: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts):
        raise argparse.ArgumentTypeError(
            f"{text!r} contains an empty name: separate names with one comma, as in a,b"
        )
    return parts
