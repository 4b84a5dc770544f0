"""Exact answers from the words and the structure of a text, without a model."""
