"""Check-back: asks how the transactions in doubt ended, decides by a policy, and ends them. The only writer of ends."""
