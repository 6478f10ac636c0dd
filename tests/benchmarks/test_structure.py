"""`make structure` prints what it has counted."""

from __future__ import annotations

import sys

import pytest

from benchmarks import structure


def test_what_a_get_walks_through_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert structure.main(["--records", "60000", "--names"]) == 0
    out = capsys.readouterr().out
    assert "getmany: Python calls a record" in out
    assert "consumer/delivery/gets.py" in out  # entered by every getmany
    if sys.version_info >= (3, 11):  # before, a frame does not know its class
        assert "AIOKafkaConsumer" in out
