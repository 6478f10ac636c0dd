"""What stands beside the consumer and uses only what every application can; each needs an extra."""
