"""Verbs that keep a process running: they serve, follow, answer, or work until they are stopped."""
