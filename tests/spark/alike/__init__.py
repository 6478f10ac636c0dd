"""The same query with this source and with Spark's own Kafka source gives the same."""
