"""What methods, cache and attention share: scoring, submodular functions, sub-caches, gates."""
