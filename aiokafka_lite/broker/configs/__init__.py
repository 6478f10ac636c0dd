"""Settings of topics, groups and brokers: what there is, and what was set (KIP-226)."""
