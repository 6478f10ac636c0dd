"""aiokafka's module path for its producer's batches; ours are in records."""

from typing import TYPE_CHECKING

from aiokafka_lite._aiokafka import lend

if TYPE_CHECKING:
    from aiokafka.record import MemoryRecords

__all__ = ["MemoryRecords"]
__getattr__ = lend(__name__, (*__all__,))
