"""Transactions in a topic, for those who read it."""

from __future__ import annotations

from confluent_kafka import Producer

from tests.support.cluster import unique


def write_transactions(bootstrap_servers: str, topic: str) -> None:
    """Leave committed, aborted, committed records, then some in an open transaction."""
    settings = {"bootstrap.servers": bootstrap_servers, "linger.ms": 0}
    producer = Producer({**settings, "transactional.id": unique("tx")})
    producer.init_transactions(10)
    for name, is_committed in (("a", True), ("b", False), ("c", True)):
        producer.begin_transaction()
        for i in range(5):
            producer.produce(topic, f"{name}{i}", partition=0)
        producer.flush(10)
        if is_committed:
            producer.commit_transaction(10)
        else:
            producer.abort_transaction(10)
    producer.begin_transaction()
    producer.produce(topic, "open", partition=0)
    producer.flush(10)
