"""aiokafka's module path for its admin client, which has to be installed."""

from typing import TYPE_CHECKING

from aiokafka_lite._aiokafka import lend

if TYPE_CHECKING:
    from aiokafka.admin.client import AIOKafkaAdminClient

__all__ = ["AIOKafkaAdminClient"]
__getattr__ = lend(__name__, (*__all__,))
