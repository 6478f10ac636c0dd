"""aiokafka's module path for its producer: here it is this package's."""

from aiokafka_lite.producing import AIOKafkaProducer

__all__ = ["AIOKafkaProducer"]
