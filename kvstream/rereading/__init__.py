"""The second look: what is worth it, and the answer from it."""
