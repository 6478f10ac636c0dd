"""aiokafka's module path for its producer's partitioner."""

from typing import TYPE_CHECKING

from aiokafka_lite._aiokafka import lend

if TYPE_CHECKING:
    from aiokafka.partitioner import DefaultPartitioner, murmur2

__all__ = ["DefaultPartitioner", "murmur2"]
__getattr__ = lend(__name__, (*__all__,))
