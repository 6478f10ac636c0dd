"""The tables of docs/benchmarks.md and README: this package and the other clients.

The best figure of a row is printed in bold.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from benchmarks.figures import Figure
from benchmarks.results import Shown
from benchmarks.tables import MISSING, markdown

CLIENTS: Final = ("aiokafka_lite", "aiokafka", "confluent-kafka", "confluent-kafka `AIOConsumer`")


class Row(NamedTuple):
    """One question, and the contestant of each client ("" if there is none)."""

    title: str
    scenario: str
    figure: str
    contestants: tuple[str, str, str, str]


_BATCHES: Final = ("lite poll", "aiokafka getmany", "confluent consume, least CPU", "")
_SINGLE: Final = ("lite async for", "aiokafka async for", "confluent poll", "confluent AIOConsumer")
_GETMANY: Final = ("lite getmany", "aiokafka getmany", "confluent poll", "")
_MEMBERS: Final = ("lite consumer", "aiokafka range", "confluent consumer", "")
_STARTS: Final = ("lite", "aiokafka", "confluent", "")

ROWS: Final = (
    Row("full speed, batches: CPU", "plain", "cpu_ns", _BATCHES),
    Row("full speed, batches: wall time", "plain", "wall_ns", _BATCHES),
    Row("full speed, batches, lz4: CPU", "lz4", "cpu_ns", _BATCHES),
    Row("full speed, batches, zstd: CPU", "zstd", "cpu_ns", _BATCHES),
    Row("full speed, batches, 1,000-byte values: CPU", "big", "cpu_ns", _BATCHES),
    Row("full speed, `async for`: CPU", "plain", "cpu_ns", (*_SINGLE[:2], "", "")),
    Row("1,000 records a second: CPU", "trickle", "cpu_us", _SINGLE),
    Row("1,000 records a second: age, p50", "trickle", "p50_ms", _SINGLE),
    Row("1,000 records a second: age, p99", "trickle", "p99_ms", _SINGLE),
    Row("500 records a second on 3,000 partitions: CPU", "many", "cpu_us", _SINGLE),
    Row("500 records a second on 3,000 partitions: age, p99", "many", "p99_ms", _SINGLE),
    Row(
        "3,000 partitions, idle: CPU", "idle", "cpu_percent",
        ("lite async for", "aiokafka getmany", "confluent poll", ""),
    ),
    Row("a slow application: peak memory", "memory-plain", "rss_mib", (*_SINGLE[:3], "")),
    Row("a broker is killed: pause without records", "failover-kill", "silence_s", _GETMANY),
    Row("a member is replaced: pause of partitions that move", "rebalance", "moves_s", _MEMBERS),
    Row("start until the first record, in a group", "start-group", "first_ms", _STARTS),
    Row("a seek during a long poll until its record, p50", "moves-seek", "first_p50_ms", _STARTS),
    Row(
        "import: wall time", "import", "wall_ms",
        ("import aiokafka_lite.consumer", "import aiokafka", "import confluent_kafka", ""),
    ),
)  # fmt: skip


SHORT_CLIENTS: Final = CLIENTS[:3]
SHORT_ROWS: Final = (
    Row("CPU per record, full speed, in batches", "plain", "cpu_ns", _BATCHES),
    Row("CPU per record, 1,000 records a second", "trickle", "cpu_us", _SINGLE),
)
# Without figures: README repeats a few rows of docs/why.md, which tests compare with the packages.
FEATURES: Final = (
    ("[Kafka 4's group protocol (KIP-848)](docs/groups.md)", "yes", "–", "yes"),
    ("[handlers: concurrency, retries, dead letters](docs/processing.md)", "yes", "–", "–"),
    (
        "[a broker for tests](docs/testing.md)",
        "embedded, for any client", "–", "a mock in librdkafka",
    ),
    ("admin client", "–", "yes", "yes"),
)  # fmt: skip


def short_table(runs: Shown) -> str:
    """Return the table of README: two rows of figures, then features."""
    count = len(SHORT_CLIENTS)
    lines = [f"| | {' | '.join(SHORT_CLIENTS)} |", "|---" * (count + 1) + "|"]
    for row in SHORT_ROWS:
        figures = [runs.best(row.scenario, name, row.figure) for name in row.contestants[:count]]
        if figures[0] is not None:
            kind = _figure(runs, row)
            cells = [
                MISSING if each is None else f"{each:,.0f} {_short(kind.unit)}" for each in figures
            ]
            lines.append(f"| [{row.title}](docs/benchmarks.md) | {' | '.join(cells)} |")
    lines += [f"| {' | '.join(feature)} |" for feature in FEATURES]
    return "\n".join(lines) + "\n"


def _short(unit: str) -> str:
    return unit.partition(" ")[0]


def table(runs: Shown) -> str:
    """Return the rows with a figure of this package; less is better in all."""
    rows = []
    for row in ROWS:
        figures = [runs.best(row.scenario, name, row.figure) for name in row.contestants]
        if figures[0] is not None:
            kind = _figure(runs, row)
            texts = [MISSING if each is None else kind.text(each) for each in figures]
            least = min(each for each in figures if each is not None)
            cells = [
                f"**{text}**" if figure == least else text
                for figure, text in zip(figures, texts, strict=True)
            ]
            rows.append([f"{row.title}, {kind.unit}", *cells])
    return markdown(["", *CLIENTS], rows)


def _figure(runs: Shown, row: Row) -> Figure:
    questions = runs.asking(row.scenario)[-1].questions
    question = next(each for each in questions if each.name == row.scenario)
    return next(each for each in question.figures if each.key == row.figure)
