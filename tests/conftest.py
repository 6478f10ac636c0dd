"""The harness: which broker, which loop, which decoder a test runs with.

A test that asks for the fixture `kafka` runs against the embedded broker and against a real one,
on asyncio's loop and on uvloop. One that asks for `decoder` runs with both decoders too. The long
form (make test-all, AIOKAFKA_LITE_TEST_LONG=1) has every combination, and reports each failure in
out/failures.txt when it happens. The short form (make test) has one loop for each broker: the
marker `every_loop` is for tests whose outcome the loop decides. Every row of a test's other
parameters runs on the embedded broker, one of them on a real Kafka.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
import zlib
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

import aiokafka_lite
from aiokafka_lite import records
from aiokafka_lite.broker import Broker
from tests.support import shared_kafka
from tests.support.bytecode import compile_share
from tests.support.cluster import KafkaHandle
from tests.support.extensions import stale_extensions
from tests.support.failures import FailuresAtOnce
from tests.support.java import JavaTools
from tests.support.java_runner import JavaRunner
from tests.support.real_kafka import KafkaUnavailableError, RealKafka
from tests.support.required import summary, unavailable
from tests.support.rounds import LONG
from tests.support.virtual_time import VIRTUAL_TIME

if TYPE_CHECKING:
    from _pytest.python import CallSpec
    from pyspark.sql import SparkSession
    from xdist.workermanage import WorkerController

hypothesis.settings.register_profile("short", max_examples=20, deadline=None)
hypothesis.settings.register_profile("long", max_examples=300, deadline=None)
hypothesis.settings.load_profile("long" if LONG else "short")

LoopFactory = Callable[[], asyncio.AbstractEventLoop]
ASYNCIO_LOOP: Mapping[str, LoopFactory] = {"asyncio": asyncio.new_event_loop}

# Fixtures that need Java, or the jars of Kafka, which Java fetches.
_OF_JAVA = frozenset({"java_tools", "java_runner", "definitions"})


def every_loop() -> Mapping[str, LoopFactory]:
    """asyncio's loop, and uvloop where that extra is installed."""
    if importlib.util.find_spec("uvloop") is None:
        return ASYNCIO_LOOP
    import uvloop

    return {**ASYNCIO_LOOP, "uvloop": uvloop.new_event_loop}


EVERY_LOOP = every_loop()


def pytest_configure(config: pytest.Config) -> None:
    stale = stale_extensions(Path(aiokafka_lite.__file__).parent)
    if stale and os.environ.get("AIOKAFKA_LITE_IMPL") != "python":
        raise pytest.UsageError(
            f"{', '.join(stale)} changed after it was compiled. Compile it (python setup.py "
            "build_ext --inplace), or set AIOKAFKA_LITE_IMPL=python"
        )
    config.addinivalue_line("markers", "every_loop: run on asyncio's loop and on uvloop")
    config.addinivalue_line("markers", "few_rows(count): only so many rows in the short form")
    config.addinivalue_line("markers", "real_if_long: with a real Kafka in the long form only")
    config.addinivalue_line(
        "markers", "virtual_time: run on a loop whose time passes when nothing is left to do"
    )
    config.addinivalue_line(
        "markers",
        "virtual_time_if_embedded: the embedded broker's loop in the short form is one of virtual "
        "time",
    )
    config.addinivalue_line(
        "markers", "real_time: it races with the clock, whatever its module is marked with"
    )
    if LONG and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce())


_SHARED_KAFKA = pytest.StashKey[shared_kafka.SharedKafka]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    # In the process that starts the workers.
    stash = node.config.stash
    if _SHARED_KAFKA not in stash:
        stash[_SHARED_KAFKA] = shared_kafka.SharedKafka()
    node.workerinput[shared_kafka.INPUT] = stash[_SHARED_KAFKA].asked_at


def pytest_sessionstart(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        from tests.support.scheduling import collect_share  # needs pytest-xdist

        compile_share(session.config)
        collect_share(session.config)


def pytest_unconfigure(config: pytest.Config) -> None:
    if shared := config.stash.get(_SHARED_KAFKA, None):
        shared.close()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object | None:
    if config.getoption("dist") != "loadfile":
        return None
    from tests.support.scheduling import SchedulingWithHeavyOnes  # needs pytest-xdist

    return SchedulingWithHeavyOnes(config, log)  # without a log it prints what it does


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, LoopFactory]:
    if item.get_closest_marker("virtual_time"):
        return VIRTUAL_TIME
    names: Sequence[str] = getattr(item, "fixturenames", ())
    if "kafka" in names and _has_virtual_time(item):
        return {**EVERY_LOOP, **VIRTUAL_TIME}
    if "kafka" in names or item.get_closest_marker("every_loop"):
        return EVERY_LOOP
    return ASYNCIO_LOOP


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while items are created: all of them stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Drop the parameters that the form leaves out before they become items, which costs more.

    One set of parameters stays, because a function without any becomes an item without any.
    """
    definition = metafunc.definition
    calls = metafunc._calls
    wanted = [
        call
        for call in calls
        if _is_wanted(definition, call.params, {mark.name for mark in call.marks})
    ]
    if not LONG:
        few = definition.get_closest_marker("few_rows")
        wanted = _of_short_form(wanted, definition.nodeid, few.args[0] if few else len(wanted))
    metafunc._calls = wanted or calls[:1]


def _of_short_form(calls: Sequence[CallSpec], nodeid: str, most: int) -> list[CallSpec]:
    """Choose one of a function's rows with a real Kafka, and at most so many of the others.

    Which rows these are differs from function to function.
    """
    real = [call for call in calls if _is_real(call.params)]
    others = [call for call in calls if not _is_real(call.params)]
    first = zlib.crc32(nodeid.encode())
    return [*_spread(others, most, first), *_spread(real, 1, first)]


def _is_real(params: Mapping[str, object]) -> bool:
    """Whether the cluster is a real Kafka: `outside` is one next to the test's loop."""
    return "real" in (params.get("kafka"), params.get("outside"))


def _spread(calls: Sequence[CallSpec], count: int, first: int) -> list[CallSpec]:
    """Choose rows at equal distances, beginning anywhere."""
    if len(calls) <= count:
        return list(calls)
    return [calls[(first + len(calls) * number // count) % len(calls)] for number in range(count)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    keep: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        params = (
            item.callspec.params
            if isinstance(item, pytest.Function) and hasattr(item, "callspec")
            else {}
        )
        names: Sequence[str] = getattr(item, "fixturenames", ())
        if params.get("kafka") == "real" or "real_kafka" in names:
            item.add_marker(pytest.mark.real_kafka)
        if not _OF_JAVA.isdisjoint(names):
            item.add_marker(pytest.mark.java)
        (keep if _is_wanted(item, params, set()) else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = keep


def _is_wanted(item: pytest.Item, params: Mapping[str, object], own_marks: set[str]) -> bool:
    """Whether the form has a test with these parameters, of which some marks may be their own."""
    if not _can_run(params):
        return False
    if LONG:
        return True
    marks = own_marks | {mark.name for mark in item.iter_markers()}
    if "slow" in marks or ("real_if_long" in marks and _is_real(params)):
        return False
    return _can_fail_alone(params, has_virtual_time=_has_virtual_time(item))


def _has_virtual_time(item: pytest.Item) -> bool:
    is_marked = item.get_closest_marker("virtual_time_if_embedded") is not None
    return is_marked and item.get_closest_marker("real_time") is None


def _can_run(params: Mapping[str, object]) -> bool:
    """Whether there is such a thing: a real Kafka's time does not pass by itself."""
    is_virtual = params.get("_asyncio_loop_factory") is VIRTUAL_TIME["virtual"]
    return not (is_virtual and params.get("kafka") == "real")


def _can_fail_alone(params: Mapping[str, object], *, has_virtual_time: bool) -> bool:
    """Whether a test may fail with these choices and with no others of the short form.

    Of broker × loop × decoder the even half does. It still holds every pair of choices if there is
    a decoder. Without one it holds every choice: asyncio's loop with the embedded broker, uvloop
    with the real one. The loop of the embedded broker may be one of virtual time instead.
    """
    if not {"kafka", "_asyncio_loop_factory"} <= params.keys() or EVERY_LOOP is ASYNCIO_LOOP:
        return True
    is_real = params["kafka"] == "real"
    is_asyncio = params["_asyncio_loop_factory"] is ASYNCIO_LOOP["asyncio"]
    if has_virtual_time and is_asyncio:
        return False
    is_uvloop = not is_asyncio and params["_asyncio_loop_factory"] is not VIRTUAL_TIME["virtual"]
    return (is_real + is_uvloop + (params.get("decoder") == "python")) % 2 == 0


def pytest_collection_finish(session: pytest.Session) -> None:
    # What collecting made lives to the end: the collections after each test need not look at it.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    # Nor at what lives on when a module's tests are over: imports, reports, sessions' fixtures.
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    # pytest-xdist hands all workers' reports to the one process that has a terminal.
    stats = terminalreporter.stats
    reports = [
        each for name in ("passed", "failed", "skipped", "error") for each in stats.get(name, ())
    ]
    terminalreporter.write_line(summary(reports))


@pytest.fixture(scope="session")
def real_kafka(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a real Kafka: BOOTSTRAP, or one started for this run."""
    if address := os.environ.get("BOOTSTRAP"):
        yield address
        return
    try:
        if asked_at := getattr(request.config, "workerinput", {}).get(shared_kafka.INPUT):
            yield shared_kafka.shared_address(asked_at)
            return
        kafka = RealKafka()
    except KafkaUnavailableError as error:
        unavailable(error)
    with kafka:
        yield kafka.bootstrap_servers


@pytest.fixture(scope="session")
def java_tools() -> JavaTools:
    """Kafka's own command-line tools; the test is skipped where Java or the jars are missing."""
    try:
        return JavaTools()
    except KafkaUnavailableError as error:
        unavailable(error)


@pytest.fixture(scope="session")
def java_runner() -> Iterator[JavaRunner]:
    """One JVM for all of Kafka's tools; the test is skipped where Java or the jars are missing."""
    try:
        runner = JavaRunner()
    except KafkaUnavailableError as error:
        unavailable(error)
    with runner:
        try:
            runner.run("topics", "--version")
        except KafkaUnavailableError as error:
            unavailable(f"Java cannot run a source file (install a JDK, not a JRE): {error}")
        yield runner


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session that tests share: two cores, UTC; has Spark's own Kafka source if it can be had.

    A test changes settings by `spark.newSession()`, which shares the JVM and costs nothing.
    """
    from aiokafka_lite.spark import KafkaDataSource
    from tests.support.spark.session import SparkUnavailableError, find_settings, spark_session

    try:
        with spark_session(find_settings()) as session:
            session.dataSource.register(KafkaDataSource)
            yield session
    except SparkUnavailableError as error:
        unavailable(error)


@pytest.fixture(params=["embedded", "real"])
async def kafka(request: pytest.FixtureRequest) -> AsyncIterator[KafkaHandle]:
    """A cluster to test against: a fresh embedded broker, or the run's real Kafka."""
    if request.param == "real":
        handle = KafkaHandle("real", request.getfixturevalue("real_kafka"))
        yield handle
        if LONG:  # a Kafka may have 20,000 open files, and the long form makes as many partitions
            await handle.delete_created()
    else:
        async with Broker() as broker:
            yield KafkaHandle("embedded", broker.bootstrap_servers)
    gc.collect()  # what was left unclosed warns now, in the test that left it
    leaked = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not leaked, f"tasks left behind: {leaked}"


@pytest.fixture(params=["compiled", "python"])
def decoder(request: pytest.FixtureRequest) -> Iterator[str]:
    """Which record decoder is used."""
    if request.param not in records.DECODERS:
        pytest.skip("the compiled decoder is not built: install a C compiler and reinstall")
    with records.use_decoder(request.param):
        yield request.param
