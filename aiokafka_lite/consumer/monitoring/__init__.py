"""Health, metrics and diagnoses of a consumer."""
