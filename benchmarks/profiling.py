"""`python -m benchmarks.profiling`: see where the time of one contestant goes.

Writes under out/: a flame graph of one run, native frames included, by py-spy; or a table of
functions by cProfile, where py-spy is missing or may not look into processes. Of a contestant that
an embedded broker serves it is the broker that is looked at. And the Cython sources, each line
coloured by how much of Python it needs.
"""

from __future__ import annotations

import argparse
import os
import pstats
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.catalogue import FULL, scenarios
from benchmarks.contestants import Contestant
from benchmarks.loading import ensure_topics
from benchmarks.measure import RunError
from benchmarks.runner import accompanied, child_arguments, execute_in_process
from benchmarks.scenarios import Scenario
from benchmarks.servers import Servers, listener_pid
from tests.support.real_kafka import RealKafka

PACKAGE: Final = Path("aiokafka_lite")
_SAMPLES_A_SECOND: Final = "1000"
_PASSES: Final = 5
_FUNCTIONS_SHOWN: Final = 60
# As in setup.py.
_DIRECTIVES: Final = ("-X", "boundscheck=False", "-X", "wraparound=False")


def main(arguments: Sequence[str] | None = None) -> int:
    """Profile one contestant in one scenario."""
    options = _parser().parse_args(arguments)
    size = replace(FULL, records=options.records)
    try:
        scenario, contestant = choose(scenarios(size), options.scenario, options.contestant)
    except LookupError as error:
        print(error, file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    if contestant.server.is_embedded:
        try:
            written = profile_server(scenario, contestant, options.out, find_spy())
        except RunError as error:
            print(error, file=sys.stderr)
            return 1
    elif options.bootstrap:
        written = _profile(options.bootstrap, scenario, contestant, options.out)
    else:
        with RealKafka(jvm_options=()) as kafka:
            written = _profile(kafka.bootstrap_servers, scenario, contestant, options.out)
    written += annotate(options.out / "annotated")
    print("written:", *written, sep="\n  ")
    return 0


def choose(
    known: Sequence[Scenario], scenario_name: str, contestant_name: str | None
) -> tuple[Scenario, Contestant]:
    """Return the scenario and the contestant of these names; without a name the first contestant.

    Raises:
        LookupError: There is none; says which there are.
    """
    by_name = {each.name: each for each in known}
    if scenario_name not in by_name:
        raise LookupError(f"no scenario {scenario_name!r}: {', '.join(by_name)}")
    scenario = by_name[scenario_name]
    contestants = {each.name: each for each in scenario.contestants}
    if contestant_name is None:
        return scenario, scenario.contestants[0]
    if contestant_name not in contestants:
        raise LookupError(f"no contestant {contestant_name!r}: {', '.join(contestants)}")
    return scenario, contestants[contestant_name]


def _profile(
    bootstrap_servers: str, scenario: Scenario, contestant: Contestant, out: Path
) -> list[Path]:
    ensure_topics(bootstrap_servers, scenario.topics)
    workload = replace(scenario.workload(bootstrap_servers), passes=_PASSES)
    command = child_arguments(contestant.task or scenario.task, contestant, workload)
    with accompanied(scenario, workload):
        return record(command, out, find_spy())


def profile_server(
    scenario: Scenario, contestant: Contestant, out: Path, spy: str | None
) -> list[Path]:
    """Watch an embedded broker while it serves a contestant; returns the flame graph.

    Raises:
        RunError: There is no py-spy, it may not look into processes, or the contestant failed.
    """
    if spy is None:
        raise RunError("py-spy is not installed, and nothing else looks into a running process")
    path = out / "profile.svg"
    path.unlink(missing_ok=True)
    with Servers("") as servers:
        workload = scenario.workload(servers.address(contestant.server, scenario.topics))
        pid = listener_pid(int(workload.bootstrap_servers.rpartition(":")[2]))
        options = ["--native", "--rate", _SAMPLES_A_SECOND, "--output", str(path)]
        watching = subprocess.Popen([spy, "record", *options, "--pid", str(pid)])
        try:
            execute_in_process(contestant.task or scenario.task, contestant, workload)
        finally:
            watching.send_signal(signal.SIGINT)  # that is how it is told to write
            watching.wait()
    if not path.exists():
        raise RunError("py-spy could not record (see above)")
    return [path]


def find_spy() -> str | None:
    """Return the path of py-spy, or None."""
    beside_python = str(Path(sys.executable).parent)
    return shutil.which("py-spy", path=os.pathsep.join((beside_python, os.environ["PATH"])))


def record(command: Sequence[str], out: Path, spy: str | None) -> list[Path]:
    """Run Python with the arguments `command`; returns what was written about the run.

    That is a flame graph by py-spy, or a table of functions by cProfile where that does not work.

    Raises:
        CalledProcessError: The command itself fails.
    """
    path = out / "profile.svg"
    path.unlink(missing_ok=True)
    if spy is not None:
        options = ["--native", "--rate", _SAMPLES_A_SECOND, "--format", "flamegraph"]
        options += ["--output", str(path), "--", sys.executable]
        if subprocess.run([spy, "record", *options, *command], check=False).returncode == 0:
            return [path]
    reason = "is not installed" if spy is None else "could not record (see above)"
    print(f"py-spy {reason}: falling back to cProfile", file=sys.stderr)
    return _functions(command, out)


def _functions(command: Sequence[str], out: Path) -> list[Path]:
    """Write the functions that took the most time of a run, themselves and with what they call."""
    raw, path = out / "profile.pstats", out / "profile.txt"
    subprocess.run([sys.executable, "-m", "cProfile", "-o", str(raw), *command], check=True)
    with path.open("w") as text:
        statistics = pstats.Stats(str(raw), stream=text)
        for order in ("tottime", "cumulative"):
            statistics.sort_stats(order).print_stats(_FUNCTIONS_SHOWN)
    return [path, raw]


def annotate(out: Path) -> list[Path]:
    """Write each Cython source as a page that shows which lines call into Python."""
    out.mkdir(parents=True, exist_ok=True)
    pages = []
    for source in sorted(PACKAGE.rglob("*.pyx")):
        c_file = out / source.with_suffix(".c").name
        command = [sys.executable, "-m", "cython", "-3", "--annotate", *_DIRECTIVES]
        subprocess.run([*command, "-o", str(c_file), str(source)], check=True)
        c_file.unlink()
        pages.append(c_file.with_suffix(".html"))
    return pages


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make profile", description="Profile one contestant.")
    parser.add_argument("--scenario", default="plain", metavar="NAME")
    parser.add_argument("--contestant", metavar="NAME", help="default: the scenario's first")
    parser.add_argument(
        "--bootstrap",
        default=os.environ.get("BOOTSTRAP"),
        metavar="HOST:PORT",
        help="use this Kafka (default: $BOOTSTRAP, else a real one is started)",
    )
    parser.add_argument("--records", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--out", type=Path, default=Path("out"), metavar="DIR")
    return parser


if __name__ == "__main__":
    sys.exit(main())
