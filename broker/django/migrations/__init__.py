"""The tables of the ledger, as `broker.Ledger` declares them."""
