"""The second pass: which excerpts of the sources are worth it, and the answer from them."""
