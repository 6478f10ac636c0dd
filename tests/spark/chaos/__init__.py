"""Drivers, workers and brokers die while a stream is written, and the table equals the topic."""
