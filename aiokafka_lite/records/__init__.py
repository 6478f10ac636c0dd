"""Record batches: read, written, compressed. No input or output happens here."""

from __future__ import annotations

from aiokafka_lite.records.batch import BatchHeader, iter_batches, patch_batch, read_header
from aiokafka_lite.records.build import BatchBuilder, build_batch, control_batch
from aiokafka_lite.records.codec import Codec
from aiokafka_lite.records.decoders import COMPILED, DECODERS, use_decoder
from aiokafka_lite.records.record_set import RecordSet, decode_all, end_offset
from aiokafka_lite.records.transactions import ControlType

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
    "end_offset",
    "iter_batches",
    "patch_batch",
    "read_header",
    "use_decoder",
]
