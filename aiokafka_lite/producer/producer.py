"""aiokafka's module path for its producer: here it is this package's."""

from aiokafka_lite.producing import AIOKafkaProducer
from aiokafka_lite.producing import TransactionBlock as TransactionContext

__all__ = ["AIOKafkaProducer", "TransactionContext"]

# What FastStream gives as `acks` where nobody has said any.
_missing = None
