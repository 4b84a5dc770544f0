"""Answers from memory: tokens, citations, support, and a second pass over the sources."""
