"""Logs: find the templates of lines, how often and when each occurs, and what is unusual."""
