"""Benchmarks, training of gates and scorers, and texts with known answers (`synthetic`)."""
