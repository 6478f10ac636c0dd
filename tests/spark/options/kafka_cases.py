"""Names and values of kafka.*, without the prefix, as Kafka's consumer checks them."""

from __future__ import annotations

from typing import Final

KAFKA_ACCEPTED: Final = [
    ("allow.auto.create.topics", "false"),
    ("check.crcs", " FALSE "),
    ("client.dns.lookup", "use_all_dns_ips"),
    ("client.id", "mine"),
    ("client.rack", "a"),
    ("connections.max.idle.ms", "-1"),
    ("default.api.timeout.ms", "5000"),
    ("fetch.max.bytes", "0"),
    ("fetch.max.wait.ms", " 100 "),
    ("fetch.min.bytes", "1"),
    ("group.instance.id", "one"),
    ("heartbeat.interval.ms", "3000"),
    ("isolation.level", " read_committed "),
    ("max.partition.fetch.bytes", "1048576"),
    ("max.poll.interval.ms", "1"),
    ("max.poll.records", "20000"),
    ("metadata.max.age.ms", "0"),
    ("metrics.num.samples", "2"),
    ("partition.assignment.strategy", "org.apache.kafka.clients.consumer.RangeAssignor"),
    ("receive.buffer.bytes", "-1"),
    ("reconnect.backoff.max.ms", "1"),
    ("reconnect.backoff.ms", "0"),
    ("request.timeout.ms", "2147483647"),
    ("retry.backoff.ms", "+100"),
    ("send.buffer.bytes", "131072"),
    ("session.timeout.ms", "45000"),
    ("socket.connection.setup.timeout.ms", "10000"),
    ("ssl.endpoint.identification.algorithm", ""),
    ("acks", "all"),
]

KAFKA_REFUSED: Final = [
    ("check.crcs", "yes"),
    ("default.api.timeout.ms", "-1"),
    ("fetch.max.bytes", "-1"),
    ("fetch.max.wait.ms", "0.5"),
    ("fetch.min.bytes", "-1"),
    ("fetch.min.bytes", "2147483648"),
    ("isolation.level", "READ_COMMITTED"),
    ("isolation.level", "serializable"),
    ("max.partition.fetch.bytes", "1 MiB"),
    ("max.poll.interval.ms", "0"),
    ("max.poll.records", "0"),
    ("max.poll.records", "many"),
    ("metadata.max.age.ms", "-1"),
    ("metrics.num.samples", "0"),
    ("receive.buffer.bytes", "-2"),
    ("reconnect.backoff.ms", "-1"),
    ("request.timeout.ms", "30s"),
    ("retry.backoff.ms", "-1"),
    ("security.protocol", "TLS"),
    ("send.buffer.bytes", "-2"),
    ("session.timeout.ms", "soon"),
]

KAFKA_STRICTER: Final = [
    ("request.timeout.ms", "0"),
    ("socket.connection.setup.timeout.ms", "0"),
    ("fetch.min.byte", "1"),
]
"""What Kafka's consumer takes, and ours refuses: requests that fail at once, unknown names."""
