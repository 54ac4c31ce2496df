"""What brokers of 4.9 to 5.5 keep besides plain files of units: RocksDB, BatchConsumeQueues, the timer wheel."""
