"""What a person looks at: info, dumps, reports, lag, dead letters. Reads only, returns values; `recovery.cli`
prints."""
