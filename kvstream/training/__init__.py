"""How the embedded model and the adapter of `reader` are made: documents with questions, training.

Nothing here is imported by the engine. Start with ``python -m kvstream.training pocket --help``.
"""
