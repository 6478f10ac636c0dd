"""aiokafka's module path for partitions to be created."""

from typing import TYPE_CHECKING

from aiokafka_lite._aiokafka import lend

if TYPE_CHECKING:
    from aiokafka.admin.new_partitions import NewPartitions

__all__ = ["NewPartitions"]
__getattr__ = lend(__name__, (*__all__,))
