"""Shows operators how a consumer is."""
