"""The asyncio consumer for Apache Kafka, with an embedded broker for tests."""
