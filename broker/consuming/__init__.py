"""What consumers of one store share: positions, leases and members; and how messages come back to a group."""
