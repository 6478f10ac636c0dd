"""Record batches of Apache Arrow from record sets, without a Python object per record.

::

    arrow = ArrowColumns()
    while record_set.take_columns(arrow.columns, max_rows):
        use(arrow.finish())

pyarrow gets the memory that `RecordSet.take_columns` fills, without a copy. This needs no event
loop and no consumer. It is the only module of the core that imports pyarrow.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeVar

from aiokafka_lite.records import decoders
from aiokafka_lite.structs import ConsumerRecord

try:
    import pyarrow as pa
except ModuleNotFoundError as error:
    if error.name != "pyarrow":
        raise
    raise ModuleNotFoundError(
        "Arrow record batches need pyarrow: pip install 'aiokafka-lite[arrow]'", name="pyarrow"
    ) from error

if TYPE_CHECKING:
    from aiokafka_lite.records._columns_py import Binary, Filled, Headers, RowGroup

TOPIC_NAMES: Final = pa.dictionary(pa.int32(), pa.string())
HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])

DEFAULT_SCHEMA: Final = pa.schema(
    [
        ("topic", TOPIC_NAMES),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("timestamp_type", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(HEADER)),
    ]
)

T = TypeVar("T")

# The timestamp type of records of format 0 in Java's clients.
NO_TIMESTAMP_TYPE: Final = -1

# The number of constant arrays that are kept for reuse.
MOST_KEPT: Final = 16
# The factors for Kafka's milliseconds.
FACTORS: Final[Mapping[str, int]] = {"ms": 1, "us": 1_000, "ns": 1_000_000}


def _is_timestamp(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.unit in FACTORS and kind.tz is not None


def _is_headers(kind: pa.DataType) -> bool:
    # The name of the list's elements may differ: "item" in pyarrow, "element" in Spark.
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    parts = [(part.name, part.type) for part in kind.value_type]
    return parts == [("key", pa.string()), ("value", pa.binary())] and kind.value_type[1].nullable


def _is_one_of(*kinds: pa.DataType) -> Callable[[pa.DataType], bool]:
    return lambda kind: kind in kinds


_SUPPORTED: Final[Mapping[str, tuple[Callable[[pa.DataType], bool], str]]] = {
    "topic": (_is_one_of(TOPIC_NAMES, pa.string()), "dictionary<int32, string> or string"),
    "partition": (_is_one_of(pa.int32()), "int32"),
    "offset": (_is_one_of(pa.int64()), "int64"),
    "timestamp": (_is_timestamp, "timestamp in ms, us or ns with a time zone"),
    "timestamp_type": (_is_one_of(pa.int32()), "int32"),
    # As Spark's own Kafka source writes it.
    "timestampType": (_is_one_of(pa.int32()), "int32"),
    "key": (_is_one_of(pa.binary()), "binary"),
    "value": (_is_one_of(pa.binary()), "binary"),
    "headers": (_is_headers, "list<struct<key: string, value: binary>>"),
}
_NEVER_NULL: Final = frozenset({"topic", "partition", "offset"})


def _check(schema: pa.Schema) -> None:
    if not isinstance(schema, pa.Schema):
        raise TypeError(f"schema must be a pyarrow.Schema or None, not {type(schema).__name__}")
    if not len(schema):
        raise ValueError("an Arrow schema must have at least one column")
    if len(set(schema.names)) != len(schema):
        raise ValueError(
            f"an Arrow schema must not contain a column twice: {', '.join(schema.names)}"
        )
    for field in schema:
        if field.name not in _SUPPORTED:
            raise ValueError(
                f"Kafka records have no column {field.name!r}: choose among {', '.join(_SUPPORTED)}"
            )
        is_supported, supported = _SUPPORTED[field.name]
        if not is_supported(field.type):
            raise ValueError(f"column {field.name!r} must be {supported}, not {field.type}")
        if not field.nullable and field.name not in _NEVER_NULL:
            raise ValueError(
                f"column {field.name!r} can contain nulls: declare the column as nullable"
            )


class ArrowColumns:
    """Columns for `RecordSet.take_columns`. A topic's number is the same in all their batches."""

    def __init__(
        self,
        schema: pa.Schema | None = None,
        *,
        byte_limit: int | None = None,
        missing_timestamp_ms: int | None = None,
    ) -> None:
        """Start without rows.

        Args:
            schema: Columns of `DEFAULT_SCHEMA`, in any order. The timestamp type may have the name
                timestampType, as in Spark's Kafka source.
            byte_limit: The limit of keys, values and headers in a batch of more than one row. At
                most 2 GiB, the default.
            missing_timestamp_ms: The timestamp of records of format 0, which have none. Their
                timestamp type is then -1, as in Java's clients. By default both are null.

        Raises:
            TypeError: It is not a schema.
            ValueError: A column is unknown, or has an unsupported type.
        """
        self.schema: Final = DEFAULT_SCHEMA if schema is None else schema
        _check(self.schema)
        names = set(self.schema.names)
        unit = self.schema.field("timestamp").type.unit if "timestamp" in names else None
        self._factor: Final = 0 if unit is None else FACTORS[unit]
        self.columns: Final = decoders.current().columns_class()(
            offsets="offset" in names,
            timestamp_factor=self._factor,
            keys="key" in names,
            values="value" in names,
            headers="headers" in names,
            byte_limit=byte_limit,
        )
        self._missing_timestamp_ms: Final = missing_timestamp_ms
        self._topics = _strings([])
        self._topic_numbers: dict[str, int] = {}
        self._kept: dict[tuple[str, object], pa.Array] = {}

    def finish(self) -> pa.RecordBatch:
        """Return the rows as a record batch, which owns their memory, and remove them here."""
        filled = self.columns.finish()
        arrays = [self._array(field, filled) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def from_records(self, records: Sequence[ConsumerRecord]) -> pa.RecordBatch:
        arrays = [self._array_of_records(field, records) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, field: pa.Field, filled: Filled) -> pa.Array:
        rows, kind = filled.rows, field.type
        match field.name:
            case "topic":
                return self._topic_array(
                    field, [(group.topic, group.rows) for group in filled.row_groups]
                )
            case "partition":
                return self._repeated(
                    field, [(group.partition, group.rows) for group in filled.row_groups]
                )
            case "timestamp_type" | "timestampType":
                types = [(self._type(group), group.rows) for group in filled.row_groups]
                return self._repeated(field, types)
            case "offset" if filled.offsets is not None:
                return _from_memory(kind, rows, None, filled.offsets)
            case "timestamp" if (found := filled.timestamps) is not None:
                timestamps = _from_memory(kind, rows, found.valid, found.values)
                return timestamps if found.valid is None else self._filled_up(timestamps, filled)
            case "key" if filled.keys is not None:
                return _binary_array(kind, rows, filled.keys)
            case "value" if filled.values is not None:
                return _binary_array(kind, rows, filled.values)
            case "headers" if filled.headers is not None:
                return _headers_array(kind, rows, filled.headers)
            case "headers":
                return self._repeated(field, [(None, rows)])
        raise AssertionError(f"column {field.name} was not filled")

    def _type(self, rows: RowGroup | ConsumerRecord) -> int | None:
        if rows.timestamp_type is None and self._missing_timestamp_ms is not None:
            return NO_TIMESTAMP_TYPE
        return rows.timestamp_type

    def _filled_up(self, timestamps: pa.Array, filled: Filled) -> pa.Array:
        """Replace null timestamps by `missing_timestamp_ms`."""
        missing_ms = self._missing_timestamp_ms
        if missing_ms is None or all(
            group.timestamp_type is not None for group in filled.row_groups
        ):
            return timestamps
        missing = pa.scalar(missing_ms * self._factor, pa.int64())
        return timestamps.fill_null(missing.cast(timestamps.type))

    def _topic_array(self, field: pa.Field, groups: Sequence[tuple[str, int]]) -> pa.Array:
        for topic, _ in groups:
            if topic not in self._topic_numbers:
                self._topic_numbers[topic] = len(self._topic_numbers)
                self._topics = _strings(list(self._topic_numbers))
                self._kept.clear()  # these arrays have the previous dictionary
        return self._repeated(field, groups)

    def _repeated(self, field: pa.Field, groups: Iterable[tuple[object, int]]) -> pa.Array:
        pieces = [self._constant(field, value, rows) for value, rows in _merged(groups)]
        if not pieces:
            return pa.nulls(0, field.type)
        return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)

    def _constant(self, field: pa.Field, value: object, rows: int) -> pa.Array:
        """Repeat a value: a slice of an array that is kept for further batches."""
        key = (field.name, value)
        kept = self._kept.get(key)
        if kept is None or len(kept) < rows:
            if len(self._kept) >= MOST_KEPT:
                self._kept.clear()
            kept = self._kept[key] = self._new_constant(field.type, value, rows)
        return kept.slice(0, rows)

    def _new_constant(self, kind: pa.DataType, value: object, rows: int) -> pa.Array:
        if value is None:
            return pa.nulls(rows, kind)
        if kind == TOPIC_NAMES:
            numbers = pa.repeat(_int32(self._topic_numbers[str(value)])[0], rows)
            return pa.DictionaryArray.from_arrays(numbers, self._topics)
        one = _int32(value) if isinstance(value, int) else _strings([str(value)])
        return pa.repeat(one[0], rows)

    def _array_of_records(self, field: pa.Field, records: Sequence[ConsumerRecord]) -> pa.Array:
        match field.name:
            case "topic":
                return self._topic_array(field, [(record.topic, 1) for record in records])
            case "timestamp":
                return pa.array([self._timestamp(record) for record in records], field.type)
            case "headers":
                return pa.array([record.headers or None for record in records], field.type)
            case "timestampType":
                types = [self._type(record) for record in records]
                return pa.array(types, field.type)
            case name:
                return pa.array([getattr(record, name) for record in records], field.type)

    def _timestamp(self, record: ConsumerRecord) -> int | None:
        is_missing = self._type(record) == NO_TIMESTAMP_TYPE
        timestamp = self._missing_timestamp_ms if is_missing else record.timestamp
        if timestamp is None:
            return None
        scaled = timestamp * self._factor
        return scaled if -(2**63) <= scaled < 2**63 else None


def _merged(groups: Iterable[tuple[T, int]]) -> list[tuple[T, int]]:
    return [
        (value, sum(rows for _, rows in same)) for value, same in groupby(groups, key=itemgetter(0))
    ]


# pa.array and pa.scalar would import pandas if it is installed, which takes 0.2 s.


def _int32(value: int) -> pa.Array:
    return _from_memory(pa.int32(), 1, None, array("i", [value]))


def _strings(texts: Sequence[str]) -> pa.Array:
    encoded = [text.encode() for text in texts]
    bounds = array("i", accumulate(map(len, encoded), initial=0))
    return _from_memory(pa.string(), len(encoded), None, bounds, b"".join(encoded))


def _from_memory(
    kind: pa.DataType, length: int, valid: object, *memory: object, children: object = None
) -> pa.Array:
    """Return an array over memory that must not change."""
    buffers = [None if valid is None else pa.py_buffer(valid), *map(pa.py_buffer, memory)]
    return pa.Array.from_buffers(kind, length, buffers, children=children)


def _binary_array(kind: pa.DataType, length: int, values: Binary) -> pa.Array:
    return _from_memory(kind, length, values.valid, values.bounds, values.content)


def _headers_array(kind: pa.DataType, length: int, headers: Headers) -> pa.Array:
    parts = [
        _binary_array(part.type, headers.header_count, values)
        for part, values in zip(kind.value_type, (headers.names, headers.values), strict=True)
    ]
    pairs = _from_memory(kind.value_type, headers.header_count, None, children=parts)
    return _from_memory(kind, length, headers.valid, headers.bounds, children=[pairs])
