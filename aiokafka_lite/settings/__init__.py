"""Kafka's own settings (`kafka.*`) as text, with the names of Java's consumer and librdkafka."""
