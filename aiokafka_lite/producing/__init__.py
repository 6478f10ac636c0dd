"""Writes records to Kafka, each once and in order, also in transactions.

::

    async with AIOKafkaProducer(bootstrap_servers="localhost:9092") as producer:
        await producer.send_and_wait("flights", b"landed", key=b"LH123")
"""

from __future__ import annotations

from aiokafka_lite.producing.batch import BatchedRecord, OwnBatch
from aiokafka_lite.producing.producer import AIOKafkaProducer, TransactionBlock

__all__ = ["AIOKafkaProducer", "BatchedRecord", "OwnBatch", "TransactionBlock"]
