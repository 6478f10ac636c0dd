"""aiokafka's module path for its producer, which has to be installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiokafka_lite._aiokafka import lend

if TYPE_CHECKING:
    from aiokafka.producer import AIOKafkaProducer

__all__ = ["AIOKafkaProducer"]
__getattr__ = lend(__name__, (*__all__,))
