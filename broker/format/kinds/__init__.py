"""What brokers of 4.9 to 5.5 write besides units: keys and values of RocksDBs, the timer wheel."""
