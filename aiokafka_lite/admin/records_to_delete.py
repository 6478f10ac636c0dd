"""aiokafka's module path for records to be deleted."""

from typing import TYPE_CHECKING

from aiokafka_lite._aiokafka import lend

if TYPE_CHECKING:
    from aiokafka.admin.records_to_delete import RecordsToDelete

__all__ = ["RecordsToDelete"]
__getattr__ = lend(__name__, (*__all__,))
