"""Kafka's own settings (`kafka.*`) as text, as Java's consumer and librdkafka name them.

raw_options (one setting as text) → security (jaas, tls, oauth) → kafka_options (all of them).
"""
