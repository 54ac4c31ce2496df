"""Several servers on one store: a consumer group's clients are connected to any of them, and share out its queues."""
