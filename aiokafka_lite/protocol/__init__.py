"""The Kafka protocol without input or output: declarations, codecs, frames."""
