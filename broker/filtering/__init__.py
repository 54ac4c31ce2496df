"""Which messages a subscription wants, by an expression over their properties; pure."""
