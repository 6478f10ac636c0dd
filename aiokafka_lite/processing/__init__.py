"""Arguments of `AIOKafkaConsumer.run`: retries, circuit breaker, dead letters."""

from aiokafka_lite.consumer.processing.handling import CircuitBreaker, DeadRecord, Retry
from aiokafka_lite.consumer.processing.outbox import Outputs
from aiokafka_lite.processing.dead_letters import DeadLetters

__all__ = ["CircuitBreaker", "DeadLetters", "DeadRecord", "Outputs", "Retry"]
