"""What brokers have sent and the application has not taken: kept, decoded, deserialised."""
