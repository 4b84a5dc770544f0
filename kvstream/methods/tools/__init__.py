"""Tools of methods, cache and attention: scoring, submodular functions, gates, learned weights."""
