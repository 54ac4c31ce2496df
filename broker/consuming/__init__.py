"""How messages are read for a consumer, divided, and given back to its group; what the group shares is in `group`."""
