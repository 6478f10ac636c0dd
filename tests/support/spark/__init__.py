"""Spark for tests and benchmarks: sessions, and the jars of its own Kafka source."""
