"""Logs: which lines are of one shape, how often and when each shape occurs, what is unusual."""
