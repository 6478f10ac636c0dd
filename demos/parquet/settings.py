"""The settings of existing tables, which a later run must have, too."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from demos.parquet.errors import PipelineError
from demos.parquet.options import PipelineOptions, format_duration
from demos.parquet.schemas import check_columns, infer_schema, parse_schema
from demos.parquet.storage import Storage

FILE: Final = "_pipeline/settings.json"


@dataclass(frozen=True, slots=True)
class TableSettings:
    """The permanent settings of tables. See `PipelineOptions`."""

    topic: str
    schema: str
    event_time: str | None
    keys: tuple[str, ...]
    measures: tuple[str, ...]
    window_ms: int

    def columns(self) -> StructType:
        return StructType.fromJson(json.loads(self.schema))


def read_settings(storage: Storage) -> TableSettings | None:
    """Return the settings of a directory's tables. None without tables."""
    if "settings.json" not in storage.names("_pipeline"):
        return None
    fields = json.loads(storage.read(FILE))
    del fields["version"]
    fields["schema"] = json.dumps(fields["schema"])
    return TableSettings(
        **{**fields, "keys": tuple(fields["keys"]), "measures": tuple(fields["measures"])}
    )


def settle(spark: SparkSession, storage: Storage, options: PipelineOptions) -> TableSettings:
    """Return the settings of existing tables, or store those of the options.

    Raises:
        OptionError: The options do not fit each other.
        PipelineError: The existing tables have other settings.
    """
    existing = read_settings(storage)
    if options.schema is not None:
        schema = parse_schema(options.schema)
    elif existing is not None:
        schema = existing.columns()
    else:
        schema = infer_schema(spark, options)
    check_columns(schema, options)
    wanted = TableSettings(
        topic=options.topic,
        # A missing field of a value is null, even if the schema does not allow it.
        schema=_nullable(schema).json(),
        event_time=options.event_time,
        keys=tuple(options.keys),
        measures=tuple(options.measures),
        window_ms=options.window_ms,
    )
    if existing is None:
        fields = {"version": 1, **asdict(wanted), "schema": json.loads(wanted.schema)}
        storage.write(FILE, json.dumps(fields, indent=1))
    else:
        _refuse_changes(storage.root, existing, wanted)
    return wanted


def _nullable(schema: StructType) -> StructType:
    columns = StructType()
    for each in schema:
        columns.add(each.name, each.dataType)
    return columns


def _refuse_changes(root: str, existing: TableSettings, wanted: TableSettings) -> None:
    for name, was, now in (
        ("topic", existing.topic, wanted.topic),
        ("schema", existing.columns().simpleString(), wanted.columns().simpleString()),
        ("event time", existing.event_time, wanted.event_time),
        ("keys", ",".join(existing.keys), ",".join(wanted.keys)),
        ("measures", ",".join(existing.measures), ",".join(wanted.measures)),
        ("window", format_duration(existing.window_ms), format_duration(wanted.window_ms)),
    ):
        if was != now:
            raise PipelineError(
                f"the tables in {root} were created with {name} {was}, not {now}: use the same "
                f"{name}, or write to another directory"
            )
