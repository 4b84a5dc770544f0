"""Tools of methods, cache and attention: scoring, submodular functions, sub-caches, gates."""
