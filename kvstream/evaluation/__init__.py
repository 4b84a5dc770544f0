"""Texts with known answers: made up (`synthetic`), for benchmarks and training."""
