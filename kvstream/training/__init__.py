"""Training of the embedded model and of the adapter of `reader`, and the documents for it.

The engine imports nothing from here. Start with ``python -m kvstream.training pocket --help``.
"""
