"""Wrong arguments of the broker's methods: an error at once that names the argument."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any

import pytest

from aiokafka_lite.broker import Broker, BrokerConfig
from aiokafka_lite.broker.cluster import EmbeddedCluster
from aiokafka_lite.broker.direct import DirectAccess
from aiokafka_lite.broker.faults.builder import ConnectionRuleBuilder, FaultMethods, RuleBuilder
from aiokafka_lite.broker.network.request_log import RequestLog
from aiokafka_lite.broker.security.listener import Listener
from aiokafka_lite.broker.thread import BrokerThread
from aiokafka_lite.errors import KafkaError
from aiokafka_lite.structs import TopicPartition
from tests.support.for_each import for_each

CLASSES = (
    *(Broker, EmbeddedCluster, DirectAccess),
    *(FaultMethods, RuleBuilder, ConnectionRuleBuilder, RequestLog),
)
NAN = float("nan")
WRONG: dict[str, list[object]] = {
    "bool": ["no", 1],
    "int": ["3", True, 1.5, NAN, [1]],
    "float": ["1", True, NAN],
    "str": [5, b"t", ["t"]],
    "TopicPartition": ["t", 5, ("t", "0"), TopicPartition("t", True)],
}
# Handlers of requests call these for each topic, connections the last two for each request.
UNCHECKED = ("topic", "has_topic", "topic_by_id", "arrived", "answered")


def parameters(classes: Iterable[type]) -> Iterator[tuple[str, FunctionType, str, str]]:
    """Yield every parameter of a simple type of the public methods."""
    for each in classes:
        for method, function in vars(each).items():
            is_public = method == "__init__" or not method.startswith("_")
            if is_public and method not in UNCHECKED and isinstance(function, FunctionType):
                for name, parameter in inspect.signature(function).parameters.items():
                    kind = str(parameter.annotation).removesuffix(" | None")
                    if kind in WRONG:
                        yield each.__name__, function, name, kind


def finish(result: object) -> None:
    """Run a coroutine up to its first wait."""
    if inspect.iscoroutine(result):
        result.send(None)


def test_every_method_refuses_an_argument_of_a_wrong_type_by_name() -> None:
    seen = 0
    for owner, function, name, kind in parameters(CLASSES):
        for wrong in WRONG[kind]:
            seen += 1
            with pytest.raises(TypeError) as caught:
                # The checks precede the method, so `self` and the other arguments are not used.
                finish(function(object(), **{name: wrong}))
            text = str(caught.value)
            assert text.startswith(f"{name} must be "), f"{owner}.{function.__name__}: {text}"
            assert text.endswith(f", not {wrong!r}")
    assert seen > 350


def test_every_method_of_a_thread_refuses_an_argument_of_a_wrong_type_by_name() -> None:
    right: dict[str, object] = {"str": "t", "int": 0, "TopicPartition": TopicPartition("t", 0)}
    right["Callable[[Broker], bool]"] = lambda _: True
    seen = 0
    with BrokerThread() as broker:
        for _, function, name, kind in parameters([BrokerThread]):
            others = {
                each.name: right.get(str(each.annotation))
                for each in inspect.signature(function).parameters.values()
                if each.default is each.empty and each.name not in ("self", name)
            }
            for wrong in WRONG[kind]:
                seen += 1
                with pytest.raises(TypeError, match=f"^{name} must be .*, not "):
                    function(broker, **others, **{name: wrong})
    assert seen > 100


def wrong(given: object) -> Any:
    """Return a value whose type a type checker would reject."""
    return given


Call = Callable[[Any], object]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda b: b.create_topic("n", configs={"cleanup.policy": ["compact"]}), "a str, a number"),
        (lambda b: b.create_topic("n", configs={"retention.ms": None}), r"configs\['retention.ms'"),
        (lambda b: b.create_topic("n", configs={5: "x"}), "a name in configs must be a str, not 5"),
        (lambda b: b.create_topic("n", configs="x"), "configs must be a dict such as"),
        (lambda b: b.produce_all("t", "abc"), "records must be a list of NewRecord, not 'abc'"),
        (lambda b: b.produce_all("t", ["x"]), r"a record must be NewRecord\(value, .*, not 'x'"),
        (lambda b: b.produce("t", "v", headers=5), r"headers must be a list of \(name, value\)"),
        (lambda b: b.wait_until(5), "is_so must be a plain function, not 5"),
        (lambda b: b.on(KeyError, when=5), "when must be a plain function or None, not 5"),
        (lambda b: b.on(1.5), "api must be a request class"),
        (lambda b: b.on(True), "api must be a request class"),
        (lambda b: b.on("Fetch", topic=5), "topic must be a str, or a list of str or None"),
        (lambda b: b.on("Fetch").fail(KeyError), "error must be .* not the class KeyError"),
        (lambda b: b.on("Fetch").fail(KeyError("x")), r"error must be .* not KeyError\('x'\)"),
        (lambda b: b.on("Fetch").fail(KafkaError), "error must be .* not the class KafkaError"),
        (lambda b: b.on("Fetch").fail(None), "error must be .*NotLeaderForPartitionError.*None"),
        (
            lambda b: b.on("Fetch").answer(5),
            "replacement must be a Response, or a plain function that",
        ),
        (lambda b: b.on("Fetch").on_frame("x"), "hook must be a plain function"),
        (lambda b: b.on("Fetch").split(at=[1.5]), "at must be a list of positions"),
        (lambda b: b.on("Metadata").stale_metadata(5), "leaders must be a dict"),
        (lambda b: b.requests.of(error=KeyError), "error must be the class of a Kafka error"),
        (lambda b: Broker(config=wrong({"nodes": 3})), "config must be a BrokerConfig or None"),
        (lambda b: Broker(config=BrokerConfig(), nodes=3), "config replaces all other settings"),
        (lambda b: Broker(racks="x"), r"list with one rack name \(str\) per node, not 'x'"),
        (lambda b: Broker(data_dir=wrong(5)), "data_dir must be a path or None, not 5"),
        (lambda b: Broker(users=wrong(["u"])), "users must be a dict that maps user names"),
        (lambda b: Broker(stop_timeout_s="1"), "stop_timeout_s must be a number, not '1'"),
        (lambda b: Listener(host=wrong(5)), "host must be a str, not 5"),
        (lambda b: BrokerThread(wrong(5)), "config must be a BrokerConfig or None, not 5"),
    ],
)
async def test_other_wrong_types_are_refused_by_name(call: Call, text: str) -> None:
    async with Broker() as broker:
        broker.create_topic("t")
        with pytest.raises(TypeError, match=text):
            finish(call(broker))


@for_each(
    [
        (lambda b: b.records("t", isolation_level="x"), "isolation_level must be 'read_uncommi"),
        (
            lambda b: b.on("Fetch").fail(5, at="x"),
            "at must be 'answer' or",
        ),
        (lambda b: b.on("Fetch").fail(99_999), "error must be an error code .* 32767, not 99999"),
        (lambda b: b.on(KeyError), "KeyError is not an API of this broker"),
        (
            lambda b: Broker(listeners=[Listener()], security_protocol="SASL_SSL"),
            "listeners replaces security_protocol",
        ),
        (lambda b: Broker(listeners=[Listener()], port=9), "set port of each Listener"),
    ]
)
def test_values_without_a_meaning_are_refused_by_name(call: Call, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call(Broker())


def test_every_setting_refuses_a_wrong_type_by_name() -> None:
    for field in dataclasses.fields(BrokerConfig):
        given: dict[str, Any] = {field.name: object()}
        with pytest.raises((TypeError, ValueError), match=f"{field.name} must be |ssl_context"):
            BrokerConfig(**given)


def test_numbers_and_flags_of_a_topics_configuration_become_text() -> None:
    broker = Broker()
    configs = {"retention.ms": 1000, "min.cleanable.dirty.ratio": 0.5, "preallocate": False}
    topic = broker.create_topic("t", configs=configs)
    assert topic.config.overrides == {
        "retention.ms": "1000",
        "min.cleanable.dirty.ratio": "0.5",
        "preallocate": "false",
    }


def test_a_total_that_adds_no_partitions_is_refused_with_the_present_one() -> None:
    broker = Broker()
    broker.create_topic("t", 3)
    with pytest.raises(
        KafkaError, match="topic 't' already has 3 partitions, so the number cannot be set to 3"
    ):
        broker.add_partitions("t", 3)
