"""Time and memory of bounded reading, compared with its alternatives."""
