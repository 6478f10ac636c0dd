"""Buffers, decodes and deserialises the records of brokers."""
