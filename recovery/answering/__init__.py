"""Answers for transactions that brokers of a cluster check: from the ledger, whether or not a producer lives."""
