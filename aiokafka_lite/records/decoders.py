"""The two decoders, with the same names and the same results, and the choice between them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from aiokafka_lite.records import _decode_py
from aiokafka_lite.structs import ConsumerRecord

if TYPE_CHECKING:
    from aiokafka_lite.records._columns_py import Columns as Columns


class PlainBatches(Protocol):
    """Reads batches without compression, markers and aborted transactions, one after the other."""

    pos: int
    next_offset: int

    def open(self, pos: int, floor: int) -> bool:
        """Skip batches below offset `floor`, and open the next. False if that is no plain one."""

    def take(self, into: list[ConsumerRecord], limit: int) -> bool:
        """Append at most `limit` records of any number of batches. Return True at the end."""

    def take_columns(self, columns: Columns, limit: int) -> bool: ...


class Decoder(Protocol):
    """The names of a decoder module. The compiled classes have the methods of `_decode_py`."""

    @property
    def BatchCursor(self) -> type[_decode_py.BatchCursor]: ...  # noqa: N802 -- a class

    @property
    def PlainBatches(self) -> Callable[..., PlainBatches] | None: ...  # noqa: N802 -- a class

    def columns_class(self) -> type[Columns]: ...

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


DECODERS: Final[Mapping[str, Decoder]] = _find_decoders()
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
