"""Kafka's own settings (`kafka.*`) as text, with the names of Java's consumer and librdkafka.

raw_options (one setting as text) → security (jaas, tls, oauth) → kafka_options (all of them).
"""
