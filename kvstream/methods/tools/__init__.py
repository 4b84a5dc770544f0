"""What several methods share: scoring, submodular functions, sub-caches, gates."""
