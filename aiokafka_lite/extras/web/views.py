"""The data of the page as JSON: a limited number of rows at a time, with shortened names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast

from aiokafka_lite import __version__
from aiokafka_lite._pages.values import LONGEST, ROWS, Json, clip, page_number

if TYPE_CHECKING:
    from aiokafka_lite.extras.web.measured import Measured

Row: TypeAlias = "dict[str, Json]"

# States of a partition in which something is wrong, though it may pass.
TROUBLES: Final = frozenset(
    {
        "task_died",
        "out_of_group",
        "error_waits",
        "handlers_paused",
        "no_leader",
        "broker_down",
        "backing_off",
    }
)
# Nothing of a partition was finished for so long, though there are records.
LONG_STANDSTILL_S: Final = 25.0


def is_in_trouble(row: Row) -> bool:
    return row["state"] in TROUBLES or cast("float", row["standstill_seconds"]) >= LONG_STANDSTILL_S


FILTERS: Final[Mapping[str, Callable[[Row], bool]]] = {
    "all": lambda row: True,
    "behind": lambda row: bool(row["lag"]),
    "paused": lambda row: bool(row["is_paused"]),
    "trouble": is_in_trouble,
}
OVERVIEW: Final = (
    "client_id",
    "group_id",
    "lag",
    "records_total",
    "fetched_bytes_total",
    "last_heartbeat_age_seconds",
    "last_fetch_age_seconds",
    "loop_lag_seconds",
    "loop_lag_max_seconds",
    "buffered_bytes",
    "buffered_limit_bytes",
    "processing_at_work",
    "processing_waiting_for_retry",
    "processing_uncommitted",
    "processing_paused",
    "processing_finished_total",
    "processing_dead_total",
)


class ConsumerPageQuery(NamedTuple):
    show: str
    find: str
    page: int

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> ConsumerPageQuery:
        """Parse a request's parameters; invalid ones get their defaults."""
        show = parameters.get("show", "")
        return cls(
            show=show if show in FILTERS else "all",
            find=parameters.get("find", "")[:LONGEST],
            page=page_number(parameters.get("page", "")),
        )


def overview(measured: Measured, query: ConsumerPageQuery) -> Row:
    """Return the data above every view: the consumer's health, totals and counts."""
    rows = rows_of(measured, "partitions")
    metrics = cast("Row", measured.metrics)
    return {
        "version": __version__,
        "verdict": measured.health.verdict,
        "reasons": [clip(reason, 4 * LONGEST) for reason in measured.health.reasons],
        **{name: _clipped(metrics.get(name)) for name in OVERVIEW},
        **{name: sum(map(is_shown, rows)) for name, is_shown in FILTERS.items()},
        "nodes": len(rows_of(measured, "nodes")),
    }


def partitions(measured: Measured, query: ConsumerPageQuery) -> Row:
    is_shown = FILTERS[query.show]
    found = [
        row
        for row in rows_of(measured, "partitions")
        if is_shown(row) and query.find in f"{row['topic']}/{row['partition']}"
    ]
    found.sort(key=lambda row: (row["topic"], row["partition"]))
    first = (query.page - 1) * ROWS
    return {
        "total": len(found),
        "page": query.page,
        "page_rows": ROWS,
        "rows": [_partition(measured, row) for row in found[first : first + ROWS]],
    }


def _partition(measured: Measured, row: Row) -> Row:
    topic, partition = cast("str", row["topic"]), cast("int", row["partition"])
    return {
        **row,
        "topic": clip(topic),
        "why": clip(measured.explain(topic, partition), 2 * LONGEST),
        "is_in_trouble": is_in_trouble(row),
    }


def nodes(measured: Measured, query: ConsumerPageQuery) -> Row:
    found = rows_of(measured, "nodes")
    return {"total": len(found), "rows": cast("list[Json]", found[:ROWS])}


def rows_of(measured: Measured, name: str) -> list[Row]:
    return cast("list[Row]", measured.metrics[name])


def _clipped(value: Json) -> Json:
    return clip(value) if isinstance(value, str) else value
