"""Sentences and lines around tokens: what of the text stands where."""
