"""Which findings explain others: a lost part of the log, a log shorter than its queues, a copy of a live store."""
