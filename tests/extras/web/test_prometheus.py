"""The text that Prometheus reads."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from aiokafka_lite import AIOKafkaConsumer, TopicPartition
from aiokafka_lite.extras import web
from aiokafka_lite.extras.web.prometheus import HELP, MOST_LABEL_SETS, labels_of, render
from tests.support.asking import ask
from tests.support.cluster import KafkaHandle


def partition(topic: str, number: int, **more: object) -> dict[str, object]:
    return {
        "topic": topic, "partition": number, "state": "fetching", "position": 5, "committed": None,
        "lag": 2, "is_paused": False, **more,
    }  # fmt: skip


def measured(*partitions: dict[str, object], nodes: int = 1) -> dict[str, object]:
    return {
        "client_id": "worker",
        "group_id": None,
        "records_total": 3,
        "lag": None,
        "partitions": list(partitions),
        "nodes": [{"node": number, "is_reachable": True} for number in range(nodes)],
    }


def samples(text: bytes) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def test_numbers_are_series_and_what_is_not_known_is_not() -> None:
    text = render((measured(partition("t", 0), partition("t", 1, state="paused")), "degraded", {}))
    found = [
        (name.removeprefix("aiokafka_lite_"), labels, value)
        for name, labels, value in samples(text)
    ]
    assert ("records_total", {}, 3) in found
    assert ("partition_position", {"topic": "t", "partition": "1"}, 5) in found
    assert ("partition_is_paused", {"topic": "t", "partition": "0"}, 0) in found
    assert ("node_is_reachable", {"node": "0"}, 1) in found
    assert ("partitions", {"state": "paused"}, 1) in found
    assert ("consumer_info", {"client_id": "worker", "group_id": ""}, 1) in found
    verdicts = {labels["verdict"]: value for name, labels, value in found if name == "health"}
    assert verdicts == {"ok": 0, "degraded": 1, "dead": 0}
    names = {name for name, _, _ in found}
    assert not names & {"lag", "partition_committed", "partition_state"}


def test_kinds_are_told() -> None:
    text = render((measured(partition("t", 0)), "ok", {})).decode()
    assert "# TYPE aiokafka_lite_records_total counter" in text
    assert "# TYPE aiokafka_lite_partition_lag gauge" in text


def test_no_more_label_sets_than_allowed_and_always_the_same() -> None:
    rows = [partition(f"topic-{n % 7}", n) for n in range(1_200)]
    seen = []
    for given in (rows, rows[::-1]):
        text = render((measured(*given, nodes=500), "ok", {}))
        found = list(samples(text))
        seen.append(
            {
                tuple(sorted(labels.items()))
                for _, labels, _ in found
                if "topic" in labels or "node" in labels
            }
        )
        assert ("aiokafka_lite_partitions_left_out", {}, 1_200 - MOST_LABEL_SETS + 100) in found
        assert ("aiokafka_lite_partitions", {"state": "fetching"}, 1_200) in found
    assert seen[0] == seen[1]
    assert len(seen[0]) == MOST_LABEL_SETS


def test_hostile_names_stay_within_their_quotes() -> None:
    hostile = 'a"} 1\nevil_total 666\r\n# TYPE x counter\\'
    text = render((measured(partition(hostile, 0)), "ok", {}))
    found = list(samples(text))
    assert ("aiokafka_lite_partition_lag", {"topic": hostile, "partition": "0"}, 2) in found
    assert "evil_total" not in {name for name, _, _ in found}


def test_consumer_without_partitions_has_its_sums() -> None:
    found = list(samples(render((measured(nodes=0), "dead", {}))))
    assert ("aiokafka_lite_partitions_left_out", {}, 0) in found


async def test_every_series_of_a_consumer_has_group_and_host_and_every_metric_a_help_text(
    kafka: KafkaHandle,
) -> None:
    topic = await kafka.create_topic()
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=kafka.bootstrap_servers, group_id=f"group of {topic}"
    )
    async with consumer, web.serve(consumer) as url:
        await consumer.position(TopicPartition(topic, 0))
        while consumer.metrics()["last_fetch_age_seconds"] is None:
            await consumer.poll(timeout_ms=20)
        text = (await ask(f"{url}metrics")).body
    found = list(samples(text))
    for name, labels, _ in found:
        assert labels["group"] == f"group of {topic}", name
        assert labels["host"] == socket.gethostname(), name
    assert {"partition_lag", "node_in_flight", "records_total", "health"} <= {
        name.removeprefix("aiokafka_lite_") for name, _, _ in found
    }
    addresses = [labels["address"] for name, labels, _ in found if name.endswith("node_info")]
    assert addresses == [kafka.bootstrap_servers]
    for family in text_string_to_metric_families(text.decode()):
        assert len(family.documentation.split()) >= 5, family.name


def test_a_consumer_without_a_group_has_no_label_for_one() -> None:
    metrics = measured(partition("t", 0))
    found = samples(render((metrics, "ok", labels_of(metrics))))
    assert {(*labels,) for name, labels, _ in found if name.endswith("records_total")} == {
        ("host",)
    }


def test_help_is_there_for_each_metric_that_the_documentation_has() -> None:
    page = (Path(__file__).parents[3] / "docs" / "monitoring.md").read_text()
    tables = page[page.index("### Of the consumer") :]
    for prefix, title in (("", "consumer"), ("partition_", "partition"), ("node_", "node")):
        part = tables.partition(f"### Of {'the' if not prefix else 'each'} {title}\n")[2]
        part = part.partition("\n#")[0]
        names = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?`) \|", part, re.M)))
        assert names
        texts = {"client_id", "group_id", "group_protocol", "group_state", "decoder", "nodes"}
        texts |= {"topic", "partition", "state"}
        texts |= {"node", "address"} if prefix == "node_" else set()
        assert {f"{prefix}{name}" for name in names if name not in texts} <= HELP.keys()
