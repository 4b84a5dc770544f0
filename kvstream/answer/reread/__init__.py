"""The second pass: choose the best excerpts of the sources, and answer from them."""
