"""A member of a consumer group: its queues, pulls, positions and locks."""
