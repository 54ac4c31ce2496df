"""What lies inside a record: its body, the body of an op message, and the CRC over the whole. Pure, as its parent."""
