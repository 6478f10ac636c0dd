"""The subscription and the assigned partitions of a consumer."""
