"""`python -m demos pipeline`: a topic as Parquet tables, exactly once."""

from __future__ import annotations

import argparse
import importlib.util
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aiokafka_lite.cli.arguments import name_and_value, positive_int
from aiokafka_lite.cli.problems import CommandError, MissingExtraError, UsageError
from demos.arguments import bootstrap_servers, duration_ms, names, positive_duration_ms
from demos.flights.dataset import DISTRIBUTION

if TYPE_CHECKING:
    from demos.pipeline.job import PipelineJobOptions

_DESCRIPTION: Final = """\
Write a topic to three Parquet tables with Spark, exactly once: the records (raw), counts and
means per window (aggregate), and unreadable records (quarantine). The command can be stopped or
killed at any time. The next run continues where the previous run ended."""
_EPILOG: Final = """\
With --flights, the command loads the real flights of 2013 into the topic and writes the tables. The
command then checks the tables against the data set, and draws a plot. Without --bootstrap, the
command starts an embedded broker."""
HOUR_MS: Final = 3_600_000
DEFAULT_TRIGGER_MS: Final = 10_000
DEFAULT_PARTITIONS: Final = 4


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "pipeline",
        help="write a topic to Parquet tables with Spark, exactly once",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_input(parser)
    _add_tables(parser)
    _add_run(parser)
    _add_spark(parser)
    parser.set_defaults(run=run)


def _add_input(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("input")
    group.add_argument(
        "--bootstrap", type=bootstrap_servers, metavar="HOST:PORT", help="the Kafka cluster"
    )
    group.add_argument("--topic", help="the topic to read (default with --flights: flights)")
    group.add_argument(
        "--flights",
        action="store_true",
        help="load the flights into the topic if they are missing, and check the tables at the end",
    )
    group.add_argument(
        "--limit", type=positive_int, metavar="N", help="with --flights: only the first N flights"
    )
    group.add_argument(
        "--partitions",
        type=positive_int,
        metavar="N",
        help="with --flights: the number of partitions of the topic (default: 4)",
    )
    group.add_argument(
        "--kafka",
        type=name_and_value,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=(
            "a Kafka client setting without the prefix 'kafka.', such as security.protocol=SSL "
            "(repeatable)"
        ),
    )
    group.add_argument(
        "--option",
        type=name_and_value,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another option of the source, such as failOnDataLoss=false or "
        "startingOffsets=latest (repeatable). startingOffsets is earliest by default",
    )
    group.add_argument(
        "--format",
        choices=("aiokafka_lite", "kafka"),
        default="aiokafka_lite",
        help="the data source (default: aiokafka_lite). kafka is Spark's own source, and needs the "
        "jars of Spark's Kafka connector",
    )


def _add_tables(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("tables")
    group.add_argument(
        "--out",
        metavar="DIR",
        help="directory of the tables: a path, or a URL that Spark can write to (default with "
        "--flights: out/pipeline)",
    )
    group.add_argument(
        "--schema",
        type=Path,
        metavar="FILE",
        help="a file with the columns of the JSON values, in Spark's DDL or JSON format (default: "
        "the columns of existing tables, otherwise inferred from the topic's first records)",
    )
    group.add_argument(
        "--event-time",
        metavar="COLUMN",
        help="the TIMESTAMP column with the event time of a row (default: the timestamp of the "
        "Kafka record)",
    )
    group.add_argument(
        "--key",
        type=names,
        default=(),
        metavar="COLUMN,...",
        help=("columns to group by, in addition to the time window"),
    )
    group.add_argument(
        "--measure",
        type=names,
        default=(),
        metavar="COLUMN,...",
        help="numeric columns to aggregate. The table has the count, sum, min, max and mean of "
        "each",
    )
    group.add_argument(
        "--window",
        type=positive_duration_ms,
        default=HOUR_MS,
        metavar="LENGTH",
        help="length of the aggregate's windows (default: 1 hour)",
    )
    group.add_argument(
        "--watermark",
        type=duration_ms,
        metavar="LENGTH",
        help="how far event times can be behind the latest event time of their partition "
        "(default: 1 day). The aggregate ignores rows that are further behind if their windows "
        "are already closed. With --flights the default is 365 days, because the flights are not "
        "in the order of their times",
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("run")
    how = group.add_mutually_exclusive_group()
    how.add_argument(
        "--once",
        action="store_true",
        help=(
            "read the records that are in the topic when the command starts, then exit (default)"
        ),
    )
    how.add_argument(
        "--continuous",
        action="store_true",
        help="keep reading new records until Ctrl-C or SIGTERM, then finish the current batch",
    )
    group.add_argument(
        "--trigger",
        type=positive_duration_ms,
        metavar="LENGTH",
        help="with --continuous: time between two batches (default: 10s)",
    )
    group.add_argument(
        "--max-offsets-per-trigger",
        type=positive_int,
        metavar="N",
        help="the maximum number of offsets per batch (default: no limit)",
    )
    group.add_argument(
        "--group",
        metavar="ID",
        help="commit the offsets of finished batches to this consumer group",
    )
    group.add_argument(
        "--metrics",
        type=Path,
        metavar="FILE",
        help="append one JSON object per batch to this file (default: metrics.jsonl in the "
        "directory --out, or no file if --out is a URL)",
    )
    group.add_argument(
        "--no-plot",
        action="store_true",
        help="with --flights: do not draw the plot out/pipeline.png",
    )


def _add_spark(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("Spark")
    group.add_argument(
        "--master",
        metavar="URL",
        help=("the Spark master (default: spark.master of Spark's settings, or local[*])"),
    )
    group.add_argument(
        "--conf",
        type=name_and_value,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of Spark, such as spark.driver.memory=4g (repeatable)",
    )


def run(options: argparse.Namespace) -> int:
    """Run the pipeline. Returns 0, or 1 if the flights' tables are wrong."""
    _require_extras(with_flights=options.flights, with_plot=not options.no_plot)
    from aiokafka_lite.spark.java import use_java
    from demos.pipeline.job import run_job

    wanted = _job_options(options)
    use_java()  # fails before half a minute of reading and loading
    if wanted.flights is None:
        run_job(wanted)
        return 0
    # Imported here, because it needs the extra `demo`.
    from demos.pipeline.flights_job import run_flights

    return 0 if run_flights(wanted, wanted.flights) else 1


def _job_options(options: argparse.Namespace) -> PipelineJobOptions:
    from demos.parquet import PipelineOptions
    from demos.pipeline.job import FlightsOptions, PipelineJobOptions

    topic: str = options.topic or ("flights" if options.flights else "")
    out: str = options.out or ("out/pipeline" if options.flights else "")
    if not options.flights:
        for name, value in (
            ("--bootstrap", options.bootstrap), ("--topic", topic), ("--out", out)
        ):  # fmt: skip
            if not value:
                raise UsageError(f"{name} is required unless --flights is given")
    elif options.continuous:
        raise UsageError(
            "--flights checks the tables at the end of the run, but --continuous runs until "
            "Ctrl-C: leave one out"
        )
    for name, value, needed, has_needed in (
        ("--limit", options.limit, "--flights", options.flights),
        ("--partitions", options.partitions, "--flights", options.flights),
        ("--trigger", options.trigger, "--continuous", options.continuous),
    ):
        if value is not None and not has_needed:
            raise UsageError(f"{name} needs {needed}")
    given = {
        "schema": None if options.schema is None else _read_schema(options.schema),
        "event_time": options.event_time,
        "keys": options.key,
        "measures": options.measure,
        "watermark_ms": options.watermark,
        "max_offsets_per_trigger": options.max_offsets_per_trigger,
    }
    flights = None
    if options.flights:
        from demos.pipeline.flights import FLIGHTS

        for name in ("schema", "event_time", "keys", "measures"):
            if given[name] not in (None, ()):
                option = name.replace("_", "-").removesuffix("s")
                raise UsageError(
                    f"--flights sets its own {name.replace('_', ' ')}, so leave out --{option}"
                )
        given = {
            **FLIGHTS,
            **{name: value for name, value in given.items() if value not in (None, ())},
        }
        flights = FlightsOptions(
            partition_count=options.partitions or DEFAULT_PARTITIONS,
            limit=options.limit,
            plot=None if options.no_plot else Path("out"),
        )
    is_local = "://" not in out
    metrics = options.metrics or (Path(out, "metrics.jsonl") if is_local else None)
    return PipelineJobOptions(
        pipeline=lambda bootstrap: PipelineOptions(
            bootstrap_servers=bootstrap,
            topic=topic,
            out=out,
            window_ms=options.window,
            source_format=options.format,
            group=options.group,
            source={
                **{f"kafka.{name}": value for name, value in options.kafka},
                **dict(options.option),
            },
            **{name: value for name, value in given.items() if value is not None},
        ),
        bootstrap_servers=options.bootstrap,
        topic=topic,
        trigger_s=(options.trigger or DEFAULT_TRIGGER_MS) / 1000 if options.continuous else None,
        metrics=metrics,
        master=options.master,
        conf=dict(options.conf),
        flights=flights,
    )


def _read_schema(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read the schema {path}: {error}") from None


def _require_extras(*, with_flights: bool, with_plot: bool) -> None:
    needed = [("pyspark", "spark"), ("pyarrow", "spark")]
    if with_flights:
        try:
            metadata.distribution(DISTRIBUTION)
        except metadata.PackageNotFoundError:
            raise MissingExtraError(DISTRIBUTION, extra="demo") from None
        needed += [("rich", "demo"), *([("matplotlib", "demo")] if with_plot else [])]
    for package, extra in needed:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, extra=extra)
