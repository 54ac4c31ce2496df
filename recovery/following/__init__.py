"""A copy of a live master's CommitLog that verifies itself as it grows: `checkback follow`.

    link ──► log ──► verifier ──► book ──► status
    (HA)     (files) (scan)       (SQLite)  (lines, JSON, metrics)

`Follower` puts the parts together. `decisions` says what to ask the master for and what its answer means; `retention`
says what may go. Both are pure.
"""
