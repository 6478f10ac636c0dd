"""pytest fixtures: an embedded Kafka broker for each test, for any client.

pytest loads the plugin through the package's entry point, without an import::

    def test_my_service(kafka_broker):
        kafka_broker.produce("orders", "42")
        run_my_service(bootstrap_servers=kafka_broker.bootstrap_servers)
        assert [record.value for record in kafka_broker.records("invoices")] == [b"42"]


    @pytest.mark.kafka_broker(partitions=3)
    async def test_my_consumer(kafka_broker, kafka_topic):
        async with AIOKafkaConsumer(
            kafka_topic, bootstrap_servers=kafka_broker.bootstrap_servers
        ) as consumer: ...

`@pytest.mark.kafka_sim` runs a coroutine in a deterministic simulation, once for each seed, with
the extra `simulation`::

    @pytest.mark.kafka_sim(seeds=200, nodes=3, faults="all")
    async def test_my_service(kafka): ...

The broker of the fixtures runs on its own event loop and thread, and listens on free ports of
127.0.0.1, for blocking clients, every event loop and other processes. Only tests that use a
fixture import it.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import pytest

if TYPE_CHECKING:
    from aiokafka_lite.broker.thread import BrokerThread

__all__ = ["MarkerOptions", "kafka", "kafka_broker", "kafka_cluster", "kafka_topic"]

CLUSTER_NODES: Final = 3
MARKER: Final = "kafka_broker"
# The earlier name of the marker, which other projects use for their own markers.
OLD_MARKER: Final = "kafka"
SIMULATED: Final = "kafka_sim"
MARKED: Final = "The test .* is marked with '@pytest.mark.asyncio' but it is not an async function"
_topic_numbers = itertools.count(1)


class MarkerOptions(NamedTuple):
    """The options of the marker. For each option the marker closest to the test wins."""

    nodes: int | None = None
    num_partitions: int = 1
    auto_create_topics: bool = True
    partitions: int | None = None
    configs: dict[str, str | float | bool] | None = None


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _are_configs(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(setting, str | int | float)
        for name, setting in value.items()
    )


_POSITIVE: Final = ("a whole number above 0", _is_positive)
_CHECKS: Final[Mapping[str, tuple[str, Callable[[object], bool]]]] = {
    "nodes": _POSITIVE,
    "num_partitions": _POSITIVE,
    "auto_create_topics": ("True or False", lambda value: isinstance(value, bool)),
    "partitions": _POSITIVE,
    "configs": ("a dict such as {'cleanup.policy': 'compact'}", _are_configs),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kafka_sim", "simulated Kafka")
    group.addoption(
        "--kafka-sim-seeds", type=int, metavar="N", help="run simulated tests with seeds 1 to N"
    )
    group.addoption(
        "--kafka-sim-replay", type=int, metavar="SEED", help="run simulated tests with this seed"
    )


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_pycollect_makeitem() -> Generator[None, object, object]:
    """Replace coroutine functions of simulated tests, before other plugins see them."""
    collected = yield
    for item in collected if isinstance(collected, list) else [collected]:
        if (
            isinstance(item, pytest.Function)
            and inspect.iscoroutinefunction(item.obj)
            and item.get_closest_marker(SIMULATED) is not None
        ):
            item.obj = _simulated(item, item.obj)
            # The mark may be that of the module, so pytest-asyncio's advice to remove it is wrong.
            item.add_marker(pytest.mark.filterwarnings(f"ignore:{MARKED}:pytest.PytestWarning"))
    return collected


def _simulated(item: pytest.Function, function: Callable[..., Any]) -> Callable[..., None]:
    @functools.wraps(function)
    def run(**arguments: Any) -> None:
        __tracebackhide__ = True
        try:
            from aiokafka_lite.simulation.marker import run_item
        except ImportError as error:
            pytest.fail(f"@pytest.mark.{SIMULATED}: {error}", pytrace=False)
        run_item(item, function, arguments)

    # inspect.iscoroutinefunction looks through it.
    del run.__wrapped__
    run.is_simulated = True  # type: ignore[attr-defined]
    return run


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a marked test that would run without the simulation."""
    is_marked = item.get_closest_marker(SIMULATED) is not None
    if is_marked and not hasattr(getattr(item, "obj", None), "is_simulated"):
        pytest.fail(
            f"@pytest.mark.{SIMULATED} runs only coroutine functions (async def). This test is "
            "none, or it is decorated or a method of a unittest.TestCase",
            pytrace=False,
        )


class _NoCluster:
    """The value of the fixture `kafka` for other fixtures."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # asked by tools
            raise AttributeError(name)
        pytest.fail(
            "fixtures cannot use kafka, because each seed has its own: call a function in the "
            "test instead",
            pytrace=False,
        )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{SIMULATED}(seeds, nodes, faults, faults_s, settle_s): runs a coroutine with an argument "
        "`kafka` in a deterministic simulation, once for each seed",
    )
    config.addinivalue_line(
        "markers",
        f"{MARKER}({', '.join(_CHECKS)}): sets options of the fixtures kafka_broker and "
        "kafka_cluster (nodes, num_partitions, auto_create_topics) and kafka_topic (partitions, "
        "configs)",
    )
    config.addinivalue_line(
        "markers",
        f"{OLD_MARKER}(...): a deprecated name for {MARKER}. This marker is ignored if an "
        f"argument is not an option of {MARKER}, because other projects use this name too",
    )


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> _NoCluster:
    """The simulated cluster of a test with `@pytest.mark.kafka_sim`, a new one for each seed."""
    if request.node.get_closest_marker(SIMULATED) is None:
        pytest.fail(f"the fixture kafka needs @pytest.mark.{SIMULATED}", pytrace=False)
    return _NoCluster()


@pytest.fixture
def kafka_broker(request: pytest.FixtureRequest) -> Iterator[BrokerThread]:
    """A new, empty broker with one node. It creates topics on a client's request.

    `@pytest.mark.kafka_broker(nodes=…, num_partitions=…, auto_create_topics=…)` changes that. An
    unexpected exception in the broker fails the test.
    """
    yield from _run_broker(request, nodes=1)


@pytest.fixture
def kafka_cluster(request: pytest.FixtureRequest) -> Iterator[BrokerThread]:
    """A new, empty broker with three nodes, each on its own port. See `kafka_broker`."""
    yield from _run_broker(request, nodes=CLUSTER_NODES)


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest) -> str:
    """The name of a new topic, on `kafka_cluster` if the test uses it, or else on `kafka_broker`.

    `@pytest.mark.kafka_broker(partitions=…, configs=…)` sets its partitions, by default
    `num_partitions`, and its topic configurations.
    """
    is_on_cluster = "kafka_cluster" in request.fixturenames
    broker: BrokerThread = request.getfixturevalue(
        "kafka_cluster" if is_on_cluster else "kafka_broker"
    )
    options = _options(request)
    name = f"topic-{next(_topic_numbers)}"
    broker.create_topic(name, options.partitions, options.configs)
    return name


def _run_broker(request: pytest.FixtureRequest, *, nodes: int) -> Iterator[BrokerThread]:
    options = _options(request)

    from aiokafka_lite.broker.config import BrokerConfig
    from aiokafka_lite.broker.thread import BrokerThread

    config = BrokerConfig(
        nodes=options.nodes or nodes,
        num_partitions=options.num_partitions,
        auto_create_topics=options.auto_create_topics,
    )
    with BrokerThread(config) as broker:
        yield broker


def _options(request: pytest.FixtureRequest) -> MarkerOptions:
    given: dict[str, object] = {}
    for marker in request.node.iter_markers():  # from the test outwards
        if marker.name == OLD_MARKER and _is_ours(marker):
            request.node.warn(
                pytest.PytestDeprecationWarning(
                    f"@pytest.mark.{OLD_MARKER} is deprecated, because other projects use a marker "
                    f"of this name too: use @pytest.mark.{MARKER}"
                )
            )
        elif marker.name != MARKER:
            continue
        if marker.args:
            _refuse("takes options by name only", f"{MARKER}({marker.args[0]!r})")
        for name, value in marker.kwargs.items():
            if name not in _CHECKS:
                _refuse(
                    f"has no option {name!r} (its options are {', '.join(_CHECKS)})",
                    f"{name}={value!r}",
                )
            wanted, is_right = _CHECKS[name]
            if not is_right(value):
                _refuse(f"takes {wanted} for {name!r}", f"{name}={value!r}")
            given.setdefault(name, value)
    return MarkerOptions(**given)  # type: ignore[arg-type]  # checked above


def _is_ours(marker: pytest.Mark) -> bool:
    return not marker.args and bool(marker.kwargs) and marker.kwargs.keys() <= _CHECKS.keys()


def _refuse(rule: str, written: str) -> NoReturn:
    pytest.fail(f"@pytest.mark.{MARKER} {rule}, but this test has {written}", pytrace=False)
