"""Takes the place of ``aiokafka.consumer``."""

from aiokafka_lite.as_aiokafka.consumer.consumer import AIOKafkaConsumer

__all__ = ["AIOKafkaConsumer"]
