"""Messages to a cluster, half messages and their ends among them."""
