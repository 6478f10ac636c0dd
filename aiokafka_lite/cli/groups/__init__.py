"""`groups`, `lag` and `reset`: consumer groups, as Kafka's admin clients see them."""
