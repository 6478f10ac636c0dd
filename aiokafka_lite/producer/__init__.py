"""aiokafka's module path for its producer: here it is this package's."""

from __future__ import annotations

from aiokafka_lite.producing import AIOKafkaProducer

__all__ = ["AIOKafkaProducer"]
