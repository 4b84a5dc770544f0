"""Training of the embedded model and of the adapter of `reader`, and the documents for it.

Start with ``python docs/research/lab/train.py pocket --help``.
"""
