"""What becomes of a log: cut, cleaned, expired, killed."""
