"""The compression codecs of batches."""

from __future__ import annotations

import enum

from aiokafka_lite.errors import UnsupportedCodecError


class Codec(enum.IntEnum):
    """The codec in the lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def of(cls, name: Codec | str | int) -> Codec:
        """Return the codec by its name in Kafka's `compression.type`, or by its number."""
        if isinstance(name, Codec):
            return name
        try:
            return cls[name.upper()] if isinstance(name, str) else cls(name)
        except (KeyError, ValueError):
            known = ", ".join(codec.name.lower() for codec in cls)
            raise UnsupportedCodecError(
                f"unknown codec {name!r}: the supported codecs are {known}"
            ) from None
