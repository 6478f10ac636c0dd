"""OpenTelemetry's instrumentation for aiokafka, unchanged, on our consumer."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import aiokafka
import pytest
from opentelemetry.instrumentation.aiokafka import AIOKafkaInstrumentor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from aiokafka_lite import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka_lite.as_aiokafka.consumer import AIOKafkaConsumer as AsAiokafkas
from aiokafka_lite.broker import Broker
from tests.support.cluster import KafkaHandle, unique
from tests.support.reading import reading
from tests.support.rows import rows

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01".encode()


@pytest.fixture(params=["in aiokafka's place", "beside aiokafka's"])
def spans(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[InMemorySpanExporter]:
    """What the instrumentation exports of our consumer, which it may not know."""
    if request.param == "in aiokafka's place":
        monkeypatch.setattr(aiokafka, "AIOKafkaConsumer", AIOKafkaConsumer)
    with exported() as exporter:
        yield exporter


@contextmanager
def exported() -> Iterator[InMemorySpanExporter]:
    """What is exported of what is instrumented within the block."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor = AIOKafkaInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    yield exporter
    instrumentor.uninstrument()
    provider.shutdown()


def attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


async def test_getone_makes_a_span_in_the_producers_trace(
    kafka: KafkaHandle, spans: InMemorySpanExporter
) -> None:
    topic = await kafka.create_topic()
    group_id = unique("group")
    await kafka.produce(topic, 0, rows(0, 1), headers=[("traceparent", TRACEPARENT)])
    async with reading(kafka, topic, group_id=group_id, client_id="me") as consumer:
        await consumer.getone()
    (span,) = spans.get_finished_spans()
    assert (span.name, span.kind) == (f"{topic} receive", SpanKind.CONSUMER)
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" == TRACE_ID
    said = attributes(span)
    assert said["messaging.client.id"] == "me"
    assert said["messaging.consumer.group.name"] == group_id
    assert said["messaging.kafka.message.offset"] == 0
    assert said["server.address"] == f'"{kafka.bootstrap_servers}"'


@pytest.mark.parametrize("is_installed", [True, False], ids=["in its place", "beside it"])
async def test_send_makes_a_span_that_the_record_continues(
    kafka: KafkaHandle, monkeypatch: pytest.MonkeyPatch, is_installed: bool
) -> None:
    topic = await kafka.create_topic()
    if is_installed:
        monkeypatch.setattr(aiokafka, "AIOKafkaProducer", AIOKafkaProducer)
    with exported() as spans:
        async with AIOKafkaProducer(
            bootstrap_servers=kafka.bootstrap_servers, client_id="me"
        ) as producer:
            await producer.send_and_wait(topic, b"v", partition=0)
    (span,) = spans.get_finished_spans()
    assert (span.name, span.kind) == (f"{topic} send", SpanKind.PRODUCER)
    assert attributes(span)["messaging.client.id"] == "me"
    async with reading(kafka, topic) as consumer:
        record = await consumer.getone()
    assert span.context is not None
    assert f"{span.context.trace_id:032x}" in dict(record.headers)["traceparent"].decode()


async def test_getmany_makes_spans_of_the_poll_and_of_each_record(
    kafka: KafkaHandle, spans: InMemorySpanExporter
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 3))
    async with reading(kafka, topic) as consumer:
        (batch,) = (await consumer.getmany(timeout_ms=10_000.0)).values()
    finished = spans.get_finished_spans()
    offsets = [
        attributes(span)["messaging.kafka.message.offset"]
        for span in finished
        if "messaging.kafka.message.offset" in attributes(span)
    ]
    assert offsets == [record.offset for record in batch] == [0, 1, 2]
    counts = [attributes(span).get("messaging.batch.message_count") for span in finished]
    assert counts.count(3) == 2  # of the topic's partition, and of the poll


async def test_poll_makes_the_spans_of_getmany(
    kafka: KafkaHandle, spans: InMemorySpanExporter
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 3), headers=[("traceparent", TRACEPARENT)])
    async with reading(kafka, topic) as consumer:
        (batch,) = (await consumer.poll()).values()
        assert await consumer.poll(timeout_ms=0) == {}
        await kafka.produce(topic, 0, rows(3, 2))
        ((second,),) = (await consumer.poll(10_000, max_records=1)).values()
        assert second.offset == 3
    finished = spans.get_finished_spans()
    offsets = [attributes(span).get("messaging.kafka.message.offset") for span in finished]
    assert [offset for offset in offsets if offset is not None] == [0, 1, 2, 3]
    assert [record.offset for record in batch] == [0, 1, 2]
    of_records = [span for span in finished if "messaging.message.id" in attributes(span)]
    traces = [span.context.trace_id for span in of_records if span.context is not None]
    assert [f"{trace:032x}" == TRACE_ID for trace in traces] == [True, True, True, False]


async def test_with_aiokafkas_defaults_each_get_makes_its_spans_once(
    kafka: KafkaHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 6))
    monkeypatch.setattr(aiokafka, "AIOKafkaConsumer", AsAiokafkas)
    with exported() as spans:
        for kind in (AIOKafkaConsumer, AsAiokafkas):
            async with kind(
                topic, bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest"
            ) as consumer:
                found = [(await consumer.getone()).offset, (await anext(consumer)).offset]
                for get in (consumer.getmany, consumer.poll):
                    ((record,),) = (await get(timeout_ms=10_000, max_records=1)).values()
                    found.append(record.offset)
            assert found == [0, 1, 2, 3]
            offsets = [
                attributes(span).get("messaging.kafka.message.offset")
                for span in spans.get_finished_spans()
            ]
            assert [offset for offset in offsets if offset is not None] == found
            spans.clear()


async def test_batch_makes_the_spans_of_getmany(
    kafka: KafkaHandle, spans: InMemorySpanExporter
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 3))
    async with reading(kafka, topic) as consumer, consumer.batch() as batch:
        assert [record.offset for record in batch] == [0, 1, 2]
    finished = spans.get_finished_spans()
    offsets = [attributes(span).get("messaging.kafka.message.offset") for span in finished]
    assert [offset for offset in offsets if offset is not None] == [0, 1, 2]


async def test_anext_makes_a_span_of_each_record(
    kafka: KafkaHandle, spans: InMemorySpanExporter
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 3))
    async with reading(kafka, topic) as consumer:
        assert [(await anext(consumer)).offset for _ in range(2)] == [0, 1]
        assert (await consumer.__anext__()).offset == 2
        await consumer.stop()
        with pytest.raises(StopAsyncIteration):
            await anext(consumer)
    assert len(spans.get_finished_spans()) == 3


async def test_async_for_makes_a_span_of_each_record(
    kafka: KafkaHandle, spans: InMemorySpanExporter
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 5))
    async with reading(kafka, topic) as consumer:
        async for record in consumer:
            if record.offset == 4:
                await consumer.stop()
    assert len(spans.get_finished_spans()) == 5


async def test_uninstrumented_again_the_consumer_makes_no_spans(
    kafka: KafkaHandle, spans: InMemorySpanExporter
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 1))
    instrumentor = AIOKafkaInstrumentor()
    instrumentor.uninstrument()
    try:
        async with reading(kafka, topic) as consumer:
            assert aiter(consumer) is consumer
            assert (await anext(consumer)).offset == 0
    finally:
        instrumentor.instrument()
    assert not spans.get_finished_spans()


async def test_uninstrumented_meanwhile_it_makes_no_more_spans(
    kafka: KafkaHandle, spans: InMemorySpanExporter
) -> None:
    topic = await kafka.create_topic()
    await kafka.produce(topic, 0, rows(0, 4))
    instrumentor = AIOKafkaInstrumentor()
    async with reading(kafka, topic) as consumer:
        assert (await anext(consumer)).offset == 0
        instrumentor.uninstrument()
        try:
            assert (await anext(consumer)).offset == 1
            assert (await consumer.getone()).offset == 2
            assert len(await consumer.poll()) == 1
        finally:
            instrumentor.instrument()
    assert len(spans.get_finished_spans()) == 1


@contextmanager
def replaced(name: str, get: object) -> Iterator[None]:
    at_first = getattr(aiokafka.AIOKafkaConsumer, name)
    setattr(aiokafka.AIOKafkaConsumer, name, get)
    try:
        yield
    finally:
        setattr(aiokafka.AIOKafkaConsumer, name, at_first)


async def test_what_cannot_be_wrapped_around_it_as_well_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @functools.wraps(aiokafka.AIOKafkaConsumer.getone)
    async def traced(self: AIOKafkaConsumer, *partitions: TopicPartition) -> object:
        raise NotImplementedError

    async with Broker() as broker:
        broker.produce("t", "v")
        kafka = KafkaHandle("embedded", broker.bootstrap_servers)
        with replaced("getone", traced), caplog.at_level(logging.WARNING):
            async with reading(kafka, "t") as consumer:
                assert (await consumer.getone()).value == b"v"
    (said,) = [line for line in caplog.messages if "AIOKafkaConsumer.getone" in line]
    assert "as_aiokafka.install()" in said


async def test_a_consumer_that_is_instrumented_itself_has_no_other_spans() -> None:
    async with Broker() as broker:
        broker.produce("t", "v")
        consumer = AIOKafkaConsumer(
            "t", bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
        )
        consumer.getone = functools.partial(consumer.getone)  # type: ignore[method-assign]
        with exported() as spans:
            async with consumer:
                assert (await consumer.getone()).value == b"v"
        assert not spans.get_finished_spans()
