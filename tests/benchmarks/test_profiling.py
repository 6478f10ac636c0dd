from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.catalogue import QUICK, scenarios
from benchmarks.contestants import LITE_ASYNC_FOR, LITE_POLL
from benchmarks.measure import RunError
from benchmarks.profiling import choose, main, profile_server, record
from benchmarks.topics import Topic

COMMAND = ["-m", "timeit", "-n", "7", "pass"]


def test_scenario_and_contestant_are_chosen_by_name() -> None:
    known = scenarios(QUICK)
    scenario, contestant = choose(known, "plain", None)
    assert (scenario.name, contestant) == ("plain", LITE_POLL)
    _, contestant = choose(known, "trickle", "lite async for, uvloop")
    assert contestant == LITE_ASYNC_FOR.on_uvloop()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--scenario", "no-such"], "no scenario 'no-such': plain, lz4"),
        (["--contestant", "no-such"], "no contestant 'no-such': lite poll"),
    ],
)
def test_unknown_name_is_wrong_usage(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spy", "reason"), [(None, "is not installed"), ("/bin/false", "could not record")]
)
def test_functions_are_listed_where_no_flame_graph_can_be_drawn(
    spy: str | None, reason: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profile.svg").write_text("of an earlier run")
    written = record(COMMAND, tmp_path, spy)
    assert tmp_path / "profile.txt" in written
    assert "timeit.py" in (tmp_path / "profile.txt").read_text()
    assert not (tmp_path / "profile.svg").exists()
    assert reason in capfd.readouterr().err


def test_flame_graph_is_what_py_spy_draws(tmp_path: Path) -> None:
    spy = tmp_path / "spy"
    spy.write_text(f"#!{sys.executable}\nimport sys, pathlib\n"
                   "path = sys.argv[sys.argv.index('--output') + 1]\n"
                   "pathlib.Path(path).write_text(' '.join(sys.argv))\n")  # fmt: skip
    spy.chmod(0o755)
    (path,) = record(COMMAND, tmp_path, str(spy))
    assert path.read_text().endswith(f"-- {sys.executable} {' '.join(COMMAND)}")


def test_command_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        record(["-m", "no_such_module"], tmp_path, None)


@pytest.mark.skipif(sys.platform != "linux", reason="finds the broker in /proc")
def test_broker_is_what_is_profiled_where_one_is_measured(tmp_path: Path) -> None:
    spy = tmp_path / "spy"
    # Not a shell's trap: that cannot be set where SIGINT is ignored, as for jobs in the background.
    spy.write_text(f"""#!{sys.executable}
import signal, sys
from pathlib import Path

out, watched = sys.argv[sys.argv.index("--output") + 1], sys.argv[-1]
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGINT}})
signal.signal(signal.SIGINT, lambda *_: None)
signal.sigwait({{signal.SIGINT}})
Path(out).write_text(Path(f"/proc/{{watched}}/cmdline").read_text().replace(chr(0), " "))
""")
    spy.chmod(0o755)
    drain = next(each for each in scenarios(QUICK) if each.name == "broker-drain")
    scenario = replace(drain, topics=(Topic("none", 100, 200),))
    (path,) = profile_server(scenario, scenario.contestants[0], tmp_path, str(spy))
    assert "-m aiokafka_lite broker" in path.read_text()


def test_broker_cannot_be_profiled_without_py_spy(tmp_path: Path) -> None:
    drain = next(each for each in scenarios(QUICK) if each.name == "broker-drain")
    with pytest.raises(RunError, match="py-spy is not installed"):
        profile_server(drain, drain.contestants[0], tmp_path, None)
