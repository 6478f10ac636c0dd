from __future__ import annotations

import argparse

import pytest

from demos import arguments


def test_every_bootstrap_server_is_checked() -> None:
    assert arguments.bootstrap_servers("a:1,b:2") == "a:1,b:2"
    with pytest.raises(argparse.ArgumentTypeError):
        arguments.bootstrap_servers("a:1,b:two")
