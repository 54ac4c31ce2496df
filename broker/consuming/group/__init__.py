"""What the consumers of a group share, in all processes: positions, leases and members, in one table."""
