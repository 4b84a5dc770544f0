"""One HTML page that shows a run and opens from disk without a network."""
