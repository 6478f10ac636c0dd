"""Record batches: decoded, built and compressed, without input or output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiokafka_lite.records.batch import BatchHeader, iter_batches, patch_batch, read_header
from aiokafka_lite.records.codec import Codec
from aiokafka_lite.records.decoders import COMPILED, DECODERS, use_decoder
from aiokafka_lite.records.record_set import RecordSet, decode_all, each_record, end_offset
from aiokafka_lite.records.transactions import ControlType

if TYPE_CHECKING:
    from aiokafka_lite.records.build import BatchBuilder, build_batch, control_batch

__all__ = [
    "COMPILED",
    "DECODERS",
    "BatchBuilder",
    "BatchHeader",
    "Codec",
    "ControlType",
    "RecordSet",
    "build_batch",
    "control_batch",
    "decode_all",
    "each_record",
    "end_offset",
    "iter_batches",
    "patch_batch",
    "read_header",
    "use_decoder",
]


def __getattr__(name: str) -> object:
    """Import the builders lazily, because consumers do not use them."""
    if name not in ("BatchBuilder", "build_batch", "control_batch"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from aiokafka_lite.records import build

    return getattr(build, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
