"""Metrics in Prometheus' text format, written by prometheus_client.

Every number of `AIOKafkaConsumer.metrics` becomes ``aiokafka_lite_`` and its name. Names that end
in _total are counters, all others gauges; what is not known is left out. Rows of a list become one
series for each row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, cast

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
)

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
PREFIX: Final = "aiokafka_lite_"
# Series with labels, of partitions and nodes together; what is above is in the sums only.
MOST_LABEL_SETS: Final = 1_000
MOST_NODES: Final = 100
VERDICTS: Final = ("ok", "degraded", "dead")
HELP: Final[Mapping[str, str]] = {
    "consumer_info": "Always 1; the labels are the consumer's names.",
    "fetched_bytes_total": "Bytes of Fetch answers.",
    "health": "1 for the verdict that holds, 0 for the others.",
    "lag": "Offsets that the positions are behind the ends of the logs, over all partitions.",
    "partition_lag": "Offsets that the position is behind the end of the log.",
    "partition_position": "Offset of the next record to be handed out.",
    "partitions": "Assigned partitions, by what keeps them from having records just now.",
    "partitions_left_out": "Assigned partitions that have no series here, as there are too many.",
    "records_total": "Records handed out.",
}
Rows = Sequence[Mapping[str, object]]


def render(metrics: Mapping[str, object], verdict: str) -> bytes:
    """Return metrics as text; may be called in any thread."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(list(families(metrics, verdict))))
    return generate_latest(registry)


class _Collected:
    """Gives a registry what was collected."""

    def __init__(self, collected: list[Metric]) -> None:
        self._collected = collected

    def collect(self) -> Iterable[Metric]:
        return self._collected

    def describe(self) -> Iterable[Metric]:
        return ()


def families(metrics: Mapping[str, object], verdict: str) -> Iterator[Metric]:
    """Yield the metrics, each with all its series."""
    for name, value in metrics.items():
        if isinstance(value, (int, float)):
            yield _family(name, (), [((), value)])
    yield _family("health", ("verdict",), [((each,), each == verdict) for each in VERDICTS])
    names = {name: str(metrics.get(name) or "") for name in ("client_id", "group_id")}
    yield _family("consumer_info", tuple(names), [(tuple(names.values()), 1)])

    partitions = cast("Rows", metrics["partitions"])
    nodes = cast("Rows", metrics["nodes"])[:MOST_NODES]
    shown = sorted(partitions, key=lambda row: (row["topic"], row["partition"]))
    shown = shown[: MOST_LABEL_SETS - len(nodes)]
    states = Counter(str(row["state"]) for row in partitions)
    yield _family("partitions", ("state",), [((state,), count) for state, count in states.items()])
    yield _family("partitions_left_out", (), [((), len(partitions) - len(shown))])
    yield from _rows("partition_", ("topic", "partition"), shown)
    yield from _rows("node_", ("node",), nodes)


def _rows(prefix: str, labels: tuple[str, ...], rows: Rows) -> Iterator[Metric]:
    if not rows:
        return
    for name in rows[0]:
        samples = [
            (tuple(str(row[label]) for label in labels), value)
            for row in rows
            if isinstance(value := row[name], (int, float))
        ]
        if name not in labels and samples:
            yield _family(f"{prefix}{name}", labels, samples)


def _family(
    name: str, labels: tuple[str, ...], samples: Iterable[tuple[tuple[str, ...], float]]
) -> Metric:
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    described = HELP.get(name, name.replace("_", " ").capitalize() + ".")
    family = kind(PREFIX + name, described, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family
