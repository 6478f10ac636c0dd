"""Takes the place of ``aiokafka.consumer``."""

from __future__ import annotations

from aiokafka_lite.as_aiokafka.consumer.consumer import AIOKafkaConsumer

__all__ = ["AIOKafkaConsumer"]
