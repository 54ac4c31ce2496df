"""Which database a ledger is: the proof before a tombstone, many ledgers of one group, and what a person does."""
