"""The commands of the shop."""
