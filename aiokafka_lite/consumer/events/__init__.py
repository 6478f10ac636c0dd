"""What a consumer tells while it runs: the events, and the streams by which they are read."""
