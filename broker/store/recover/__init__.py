"""Bring a store in order before it is written to: survey, case, plan, apply. Called by the writer only."""
