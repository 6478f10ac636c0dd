"""The consumer: subscription, fetching, positions, group membership."""

from __future__ import annotations

from aiokafka_lite.consumer.consumer import AIOKafkaConsumer

__all__ = ["AIOKafkaConsumer"]
