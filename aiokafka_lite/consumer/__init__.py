"""The consumer: subscription, fetching, positions, group membership."""
