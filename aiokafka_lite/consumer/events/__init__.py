"""The events of a consumer, and their subscriptions."""
