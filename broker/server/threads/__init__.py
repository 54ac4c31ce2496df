"""The threads of a server that store, look things up and keep who is there, for all connections by turns."""
