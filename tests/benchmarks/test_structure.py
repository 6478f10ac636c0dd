"""`make structure` prints what it has counted."""

from __future__ import annotations

import re
import sys

import pytest

from benchmarks import structure
from tests.support.rounds import LONG

RECORDS = "60000" if LONG else "30000"


def test_what_a_get_walks_through_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert structure.main(["--records", RECORDS, "--names"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"modules +│ +[1-9]\d+", out)
    assert re.search(r"fields of Source +│ +\d\d ", out)
    assert "getmany: Python calls a record" in out
    assert "consumer/delivery/gets.py" in out  # entered by every getmany
    if sys.version_info >= (3, 11):  # before, a frame does not know its class
        assert "AIOKafkaConsumer" in out
