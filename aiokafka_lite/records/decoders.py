"""The two decoders, with the same names and the same results, and the choice between them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from aiokafka_lite.records import _decode_py
from aiokafka_lite.structs import ConsumerRecord

if TYPE_CHECKING:
    from aiokafka_lite.records._columns_py import Filled

__all__ = [
    "COMPILED",
    "DECODERS",
    "PLAIN_DECODER_NOTE",
    "Columns",
    "BatchReader",
    "RecordReader",
    "Decoder",
    "current",
    "use_decoder",
]


class Columns(Protocol):
    """Rows that grow at the end. See `_columns_py`."""

    @property
    def rows(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def is_full(self) -> bool: ...

    @property
    def first_offset(self) -> int: ...

    @property
    def last_offset(self) -> int: ...

    def mark(self) -> None: ...

    def finish(self) -> Filled: ...

    def clear(self) -> None: ...


class RecordReader(Protocol):
    """Reads the records of one batch once, as records or as rows."""

    def take(self, into: list[ConsumerRecord], limit: int) -> bool: ...

    def take_columns(self, columns: Columns, limit: int) -> bool: ...


class BatchReader(RecordReader, Protocol):
    """Reads a batch of magic 2 once. Its records may be in several pieces."""

    def go_on(self, records: memoryview, count: int, /) -> None: ...

    def pass_early(self) -> bool: ...


class PlainBatchReader(Protocol):
    """Reads batches without compression, markers and aborted transactions."""

    @property
    def pos(self) -> int:
        """The start of the batch after the current one."""

    @property
    def next_offset(self) -> int:
        """The next offset after the records that were read or skipped."""

    def open(self, pos: int, floor: int, /) -> bool:
        """Skip plain batches without records from offset `floor` on, and open the next one.

        Returns False if the next one at `pos` is not plain, broken, or missing.
        """

    def take(self, into: list[ConsumerRecord], limit: int, /) -> bool:
        """Append at most `limit` records of any number of batches. Return True at the end."""

    def take_columns(self, columns: Columns, limit: int, /) -> bool: ...


class _PlainBatches(Protocol):
    def __call__(
        self,
        topic: str,
        partition: int,
        view: memoryview,
        crc32c: Callable[[memoryview], int] | None,
        is_committed_only: bool,
        ceiling: int = ...,
        inflate: Callable[[int, memoryview], memoryview] | None = ...,
        give_back: Callable[[memoryview], None] | None = ...,
        epochs: list[tuple[int, int]] | None = ...,
        /,
    ) -> PlainBatchReader: ...


class _BatchCursor(Protocol):
    def __call__(
        self,
        topic: str,
        partition: int,
        records: memoryview,
        *,
        count: int,
        base_offset: int,
        last_offset_delta: int,
        base_timestamp: int,
        append_time: int | None,
        floor: int,
        ceiling: int = ...,
    ) -> BatchReader: ...


class _MessageCursor(Protocol):
    def __call__(
        self,
        topic: str,
        partition: int,
        messages: memoryview,
        *,
        magic: int,
        wrapper_offset: int | None,
        append_time: int | None,
        floor: int,
        ceiling: int = ...,
    ) -> RecordReader: ...


class Decoder(Protocol):
    """The names of a decoder module. `_decode_py` documents them."""

    @property
    def BatchCursor(self) -> _BatchCursor: ...  # noqa: N802 -- a class

    @property
    def MessageCursor(self) -> _MessageCursor: ...  # noqa: N802 -- a class

    @property
    def PlainBatches(self) -> _PlainBatches: ...  # noqa: N802 -- a class

    def new_columns(
        self,
        *,
        offsets: bool = ...,
        timestamp_factor: int = ...,
        keys: bool = ...,
        values: bool = ...,
        headers: bool = ...,
        byte_limit: int | None = ...,
    ) -> Columns: ...

    def whole_records(self, view: memoryview, limit: int, /) -> tuple[int, int, int]: ...

    def end_offset(self, view: memoryview, /) -> int | None: ...


EXTENSIONS: Final = (
    "aiokafka_lite._record",
    "aiokafka_lite.records._columns",
    "aiokafka_lite.records._decode",
)


def _find_decoders() -> dict[str, Decoder]:
    found: dict[str, Decoder] = {"python": _decode_py}
    try:
        compiled = importlib.import_module("aiokafka_lite.records._decode")
    except ModuleNotFoundError as error:
        # The extension may be missing, but a broken one must not be hidden.
        if error.name not in EXTENSIONS:
            raise
    else:
        found["compiled"] = compiled
    return found


DECODERS: Final[Mapping[str, Decoder]] = MappingProxyType(_find_decoders())
"""The available decoders by name: "python" always, "compiled" if it was built."""

COMPILED: Final = "compiled" in DECODERS
"""Whether records are decoded by the extension."""

_WHY_PLAIN: Final = (
    "AIOKAFKA_LITE_IMPL is python: unset this variable to use compiled extensions"
    if os.environ.get("AIOKAFKA_LITE_IMPL") == "python"
    else f"{os.path.dirname(__file__)} contains no compiled extensions. If this directory belongs "
    "to a checkout that hides the installed package, start Python in another directory. Otherwise "
    "install a C compiler (Debian: apt install gcc python3-dev; macOS: xcode-select --install) and "
    "reinstall aiokafka-lite"
)
PLAIN_DECODER_NOTE: Final = (
    f"records are decoded by plain Python, which is many times slower, because {_WHY_PLAIN}"
)
"""The note to print if COMPILED is False."""

_current: Decoder = DECODERS["compiled" if COMPILED else "python"]


def current() -> Decoder:
    """Return the decoder of new record sets."""
    return _current


@contextmanager
def use_decoder(name: str) -> Iterator[Decoder]:
    """Use another decoder for record sets created in the `with` block, in tests."""
    global _current
    previous, _current = _current, DECODERS[name]
    try:
        yield _current
    finally:
        _current = previous
