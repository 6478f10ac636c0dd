"""Write a topic with librdkafka's producer, as fast as can be."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import Producer

from benchmarks.contestants.confluent import VERSION
from benchmarks.loading import QUIET, count_records, written_topic
from benchmarks.measure import Measurement, RunError, Workload
from benchmarks.servers import ServerMeter

_QUEUE_RECORDS: Final = 500_000
_QUEUE_KBYTES: Final = 1 << 20
_PAUSE_S: Final = 0.01


async def measure(subject: str, workload: Workload) -> Measurement:
    """Measure the wall time a record, from the second to the last acknowledgement."""
    assert workload.written is not None
    topic = workload.written
    values = list(topic.values())
    with written_topic(workload.bootstrap_servers, topic) as written:
        producer = Producer(
            {
                "bootstrap.servers": workload.bootstrap_servers,
                **QUIET,
                "enable.idempotence": True,
                "compression.type": topic.codec,
                "queue.buffering.max.messages": _QUEUE_RECORDS,
                "queue.buffering.max.kbytes": _QUEUE_KBYTES,
                **({"batch.size": workload.batch_bytes} if workload.batch_bytes else {}),
            }
        )
        # An idempotent producer that asks for its id before it is connected asks again only half a
        # second later: the first record waits for that, and is not timed.
        producer.produce(written.name, values[0])
        if producer.flush(workload.wait_s):
            raise RunError("the first record was not acknowledged")
        meter = ServerMeter(workload.bootstrap_servers)
        started = time.perf_counter()
        for number in range(1, topic.records):
            while True:
                try:
                    producer.produce(written.name, values[number % len(values)])
                except BufferError:
                    producer.poll(_PAUSE_S)
                else:
                    break
            if not number % 1000:
                producer.poll(0)
        if producer.flush(workload.wait_s):
            raise RunError("not all records were acknowledged")
        wall_s = time.perf_counter() - started
        records = count_records(workload.bootstrap_servers, written)
        figures = {"wall_ns": wall_s * 1e9 / topic.records, **meter.figures(topic.records)}
    return Measurement(VERSION, figures, records)
