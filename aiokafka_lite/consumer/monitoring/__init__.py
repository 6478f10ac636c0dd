"""What operators see of a consumer."""
