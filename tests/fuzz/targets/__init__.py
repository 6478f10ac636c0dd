"""What is fuzzed: one target for each entry that takes bytes or text from others."""
