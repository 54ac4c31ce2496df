"""A store as the master of RocketMQ slaves: they copy its CommitLog over a port of its own (`serve --ha`)."""
