"""Settings of topics, groups and brokers: definitions and values (KIP-226)."""
