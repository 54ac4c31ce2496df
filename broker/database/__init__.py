"""What stands in the application's database beside the ledger: whose ledger it is, and what was processed."""
