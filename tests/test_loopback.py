"""Which hosts need no protection on the way."""

from __future__ import annotations

import sys

import pytest

from aiokafka_lite._loopback import is_loopback
from tests.support.for_each import for_each


@for_each(["localhost", "127.0.0.1", "127.8.9.10", "::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1"])
def test_this_machine_is_known_however_it_is_written(host: str) -> None:
    assert is_loopback(host)


@for_each(
    [
        "",
        "0.0.0.0",  # noqa: S104 -- every address of this machine, others' networks among them
        "10.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:localhost",
        "127.0.0.1.example.org",
        "127.example.org",
        "localhost.example.org",
        "fe80::1",
    ]
)
def test_whatever_may_be_elsewhere_is_not_taken_for_this_machine(host: str) -> None:
    assert not is_loopback(host)


def test_names_are_told_from_addresses_without_the_module_for_these(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ipaddress", None)
    assert not is_loopback("broker-1.example.org")
