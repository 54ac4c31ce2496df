"""From records to transactions: events, outcomes, digest, what is in doubt."""
