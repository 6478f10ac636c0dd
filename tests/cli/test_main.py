from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from aiokafka_lite import __version__
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.cli.main import Command, main
from aiokafka_lite.records import decoders
from aiokafka_lite.records.decoders import PLAIN_DECODER_NOTE


def test_overview_names_version_decoder_loops_and_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert __version__ in text
    assert "decoder" in text
    assert "asyncio" in text
    for command in ("topics", "broker"):
        assert f"  {command} " in text


@pytest.mark.parametrize("is_compiled", [True, False])
def test_plain_decoder_is_told_in_one_line_with_what_to_install(
    is_compiled: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(decoders, "COMPILED", is_compiled)
    main([])
    notes = [line for line in capsys.readouterr().out.splitlines() if PLAIN_DECODER_NOTE in line]
    assert len(notes) == (0 if is_compiled else 1)
    assert all("reinstall" in note or "unset" in note for note in notes)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("", "COMMAND"),
        ("broker", "[--status-port PORT | --no-status]"),
        ("reset", "(--topic TOPIC[:N,N-N…] | --all-topics) (--to WHERE | --by N)"),
        ("completion", "bash, zsh, fish, tcsh, powershell"),
        ("dlq", "Show a dead letter: the failure, and the record's headers, key and value."),
    ],
)
def test_help_is_printed(
    command: str,
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit) as caught:
        main([*command.split(), "--help"])
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith("usage: ")
    assert text in printed


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


def test_output_that_nobody_reads_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "aiokafka_lite"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == b""
