"""What an append goes through: admission, encoding, the append itself, dispatch to derived files, group commit."""
