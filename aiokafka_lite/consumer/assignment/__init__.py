"""What a consumer subscribes, what it is assigned, and what is known of each partition."""
