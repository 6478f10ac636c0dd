from __future__ import annotations

import argparse

import pytest

from demos import arguments


def test_every_bootstrap_server_is_checked() -> None:
    assert arguments.bootstrap_servers("a:1,b:2") == "a:1,b:2"
    with pytest.raises(argparse.ArgumentTypeError):
        arguments.bootstrap_servers("a:1,b:two")


def test_demos_listen_only_on_this_machine() -> None:
    assert arguments.loopback_address("localhost:9092") == ("localhost", 9092)
    with pytest.raises(argparse.ArgumentTypeError, match=r"write 127\.0\.0\.1"):
        arguments.loopback_address("0.0.0.0:9092")
