"""Builds batches of magic 2. `_build_py` documents `BatchBuilder` and `size_of`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from aiokafka_lite.records.codec import Codec
from aiokafka_lite.records.transactions import CONTROL_KEY, END_MARKER_VALUE, ControlType

try:
    from aiokafka_lite.records._build import BatchBuilder, size_of
except ModuleNotFoundError as error:
    # The extension may be missing, but a broken one must not be hidden.
    if error.name != "aiokafka_lite.records._build":
        raise
    from aiokafka_lite.records._build_py import BatchBuilder, size_of

if TYPE_CHECKING:
    from aiokafka_lite.records._build_py import BytesLike, Headers

__all__ = ["BatchBuilder", "build_batch", "control_batch", "size_of"]


def build_batch(
    records: Iterable[tuple[int, BytesLike | None, BytesLike | None, Headers]],
    *,
    codec: Codec | str = Codec.NONE,
    base_offset: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
    leader_epoch: int = -1,
) -> bytes:
    """Return one batch of (timestamp in ms, key, value, headers). Raises as `BatchBuilder`."""
    builder = BatchBuilder(
        codec=codec,
        base_offset=base_offset,
        is_transactional=is_transactional,
        is_control=is_control,
        leader_epoch=leader_epoch,
    )
    for timestamp_ms, key, value, headers in records:
        builder.append(timestamp_ms, key, value, headers)
    return builder.build(
        producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=base_sequence
    )


def control_batch(
    control_type: ControlType | int,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    coordinator_epoch: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """Return a batch with the marker that commits or aborts a transaction."""
    key = CONTROL_KEY.pack(0, control_type)
    value = END_MARKER_VALUE.pack(0, coordinator_epoch)
    return build_batch(
        [(timestamp_ms, key, value, ())],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
        leader_epoch=leader_epoch,
    )
